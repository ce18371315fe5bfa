"""What the LLM API's configurations refuse, and what their validators set."""

from __future__ import annotations

from typing import Any

from tensorrt_llm._table import Declared, ValidationError

_CAPTURE = {"mistral_large3": {-1}}


def _require(good: bool, text: str) -> None:
    if not good:
        raise ValidationError(text)


class KvCacheConfig(Declared):
    def _check(self) -> None:
        fraction, window = self._values["free_gpu_memory_fraction"], self._values["max_attention_window"]
        _require(fraction is None or 0 <= fraction <= 1, "free_gpu_memory_fraction must be between 0 and 1")
        _require(window is None or (bool(window) and min(window) > 0), "max_attention_window must be positive integers")
        _require(self._values["max_gpu_total_bytes"] >= 0, "max_gpu_total_bytes must be non-negative")


class DecodingBaseConfig(Declared):
    _backends: tuple[str, ...] = ("pytorch",)
    _two_models = False

    def _check(self) -> None:
        values = self._values
        for name in ("acceptance_window", "acceptance_length_threshold"):
            _require((values[name] or 0) >= 0, f"{name} must be >= 0")
        schedule = values["draft_len_schedule"]
        if schedule is not None:
            self._check_schedule(schedule, values["max_draft_len"])
            values["draft_len_schedule"] = dict(sorted(schedule.items()))
        self._settle()

    def _check_schedule(self, schedule: dict[int, int], deepest: int | None) -> None:
        _require(all(least >= 1 for least in schedule), "draft_len_schedule: batch sizes must be >= 1")
        _require(all(length >= 0 for length in schedule.values()), "draft_len_schedule: lengths must be >= 0")
        _require(1 in schedule, "draft_len_schedule must contain batch size 1")
        if deepest is not None:
            _require(schedule[1] == deepest, "draft_len_schedule[1] must equal max_draft_len")
            _require(max(schedule.values()) <= deepest, "draft_len_schedule: lengths exceed max_draft_len")

    def _settle(self) -> None:
        self._values["max_total_draft_tokens"] = self._values["max_draft_len"]

    def _needs(self, *names: str) -> None:
        """What the PyTorch flow asserts once it takes the configuration."""
        for name in names:
            _require(bool(self._values[name]), f"{type(self).__name__}: {name} must be specified, and be more than 0")

    def _validate(self) -> None:
        self._needs("max_draft_len")


class EagleDecodingConfig(DecodingBaseConfig):
    def _settle(self) -> None:
        values = self._values
        _require(values["max_draft_len"] is not None, "max_draft_len is required for Eagle")
        _require(not (values["eagle_choices"] and values["use_dynamic_tree"]), "eagle_choices exclude a dynamic tree")
        _require(not values["eagle_choices"], "the draft token tree is still under development")
        values["num_eagle_layers"] = values["max_draft_len"]
        if values["eagle3_layers_to_capture"] is None:
            values["eagle3_layers_to_capture"] = _CAPTURE.get(values["eagle3_model_arch"])
        super()._settle()

    @property
    def _two_models(self) -> bool:
        return not self._values["eagle3_one_model"]

    def _validate(self) -> None:
        self._needs("max_draft_len")
        _require(self._values["speculative_model"] is not None, "EAGLE3 draft model must be specified.")


class MTPDecodingConfig(DecodingBaseConfig):
    def _settle(self) -> None:
        self._values["max_draft_len"] = self._values["num_nextn_predict_layers"]
        super()._settle()


class NGramDecodingConfig(DecodingBaseConfig):
    _two_models = True

    def _validate(self) -> None:
        self._needs("max_draft_len", "max_matching_ngram_size")


class DraftTargetDecodingConfig(DecodingBaseConfig):
    _two_models = True

    def _validate(self) -> None:
        self._needs("max_draft_len")
        _require(self._values["speculative_model"] is not None, "Draft model must be specified.")


class MedusaDecodingConfig(DecodingBaseConfig):
    _backends = ()


class LookaheadDecodingConfig(DecodingBaseConfig):
    _backends = ()

    def _settle(self) -> None:
        for name in ("max_window_size", "max_ngram_size", "max_verification_set_size"):
            _require(self._values[name] > 0, f"{name} must be positive")


class SamplingParams(Declared):
    def _check(self) -> None:
        values = self._values
        for name, low, high in (("top_p", 0, 1), ("top_k", 0, None), ("temperature", 0, None)):
            given = values[name]
            if given is not None and (given < low or (high is not None and given > high)):
                raise ValueError(f"{name} is {given}, which is out of range")
        values["best_of"] = values["best_of"] or values["n"]
        values["pad_id"] = values["end_id"] if values["pad_id"] is None else values["pad_id"]
        if values["best_of"] < values["n"]:
            raise ValueError("best_of must not be less than n")
        if values["best_of"] > 1 and self._greedy and not values["use_beam_search"]:
            raise ValueError("greedy decoding in the LLM API does not allow multiple returns")
        if (values["truncate_prompt_tokens"] or 1) < 1:
            raise ValueError("truncate_prompt_tokens must be 1 or more")

    @property
    def _greedy(self) -> bool:
        """As it is decided once and for all: a temperature without anything else is a temperature."""
        temperature, top_k, top_p = (self._values[name] for name in ("temperature", "top_k", "top_p"))
        nothing: Any = temperature is None and top_k is None and top_p is None
        return bool(nothing or temperature == 0 or top_k == 1)
