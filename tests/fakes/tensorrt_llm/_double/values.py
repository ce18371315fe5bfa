"""What the constructors and setters of the bindings refuse beyond types: ranges, and values that exclude each other."""

from __future__ import annotations

import math
from typing import Any

from tensorrt_llm._double.errors import check, thrown
from tensorrt_llm._table import Declared

_SEEDS = 2**64
_LARGEST_BEAM = 64


class SamplingConfig(Declared):
    def _check(self) -> None:
        sampling = self._values
        if sampling["seed"] is not None and not 0 <= sampling["seed"] < _SEEDS:
            raise TypeError(f"SamplingConfig(): seed must fit 64 bits without a sign, not {sampling['seed']}")
        check(0 < sampling["beam_width"] <= _LARGEST_BEAM, f"beam_width {sampling['beam_width']}")
        for name, (low, high, open_below) in _RANGES.items():
            value = sampling[name]
            good = value is None or (low <= value <= high and not (open_below and value == low))
            check(good and value == value, f"{name} {value} is out of range")
        sequences, width = sampling["num_return_sequences"], sampling["beam_width"]
        check(sequences is None or width == 1 or sequences <= width, f"num_return_sequences {sequences} > {width}")


_RANGES: dict[str, tuple[float, float, bool]] = {
    "top_k": (0, math.inf, False),
    "top_p": (0, 1, True),
    "top_p_min": (0, 1, False),
    "top_p_reset_ids": (0, math.inf, False),
    "top_p_decay": (0, 1, True),
    "temperature": (0, math.inf, False),
    "min_tokens": (0, math.inf, False),
    "beam_search_diversity_rate": (0, math.inf, False),
    "repetition_penalty": (0, math.inf, True),
    "length_penalty": (0, math.inf, False),
    "early_stopping": (0, math.inf, False),
    "no_repeat_ngram_size": (0, math.inf, False),
    "num_return_sequences": (0, math.inf, True),
    "min_p": (0, 1, False),
}
"""Lowest and highest value, and whether the lowest itself is refused."""


class OutputConfig(Declared):
    def _check(self) -> None:
        for name, row in self._access.items():
            if row["type"] == "bool":
                self._values[name] = bool(self._values[name])


class ExternalDraftTokensConfig(Declared):
    def _check(self) -> None:
        values = self._values
        check(bool(values["tokens"]), "!mTokens.empty()")
        threshold, logits = values["acceptance_threshold"], values["logits"]
        check(threshold is None or 0 < threshold <= 1, "acceptance_threshold is out of (0, 1]")
        if logits is not None:
            shape = (1, 4) if values["fast_logits"] else (len(values["tokens"]), logits.shape[-1])
            check(tuple(logits.shape) == shape, f"logits have shape {tuple(logits.shape)}, expected {shape}")


class LookaheadDecodingConfig(Declared):
    def _check(self) -> None:
        window, ngram, verification = self._sizes
        check(window >= 1 and ngram >= 1 and verification >= 0, f"invalid w {window}, n {ngram}, g {verification}")
        check(ngram > 1 or (window == 1 and verification == 0), "ngram 1 requires window 1 and verification set 0")

    @property
    def _sizes(self) -> tuple[int, int, int]:
        names = ("max_window_size", "max_ngram_size", "max_verification_set_size")
        window, ngram, verification = (self._values[name] for name in names)
        return window, ngram, verification

    def calculate_speculative_resource(self) -> tuple[int, int, int, int]:
        return _resources(*self._sizes)

    @staticmethod
    def calculate_speculative_resource_tuple(window: int, ngram: int, verification: int) -> tuple[int, int, int, int]:
        return _resources(window, ngram, verification)

    @staticmethod
    def get_default_lookahead_decoding_window() -> int:
        return 4

    @staticmethod
    def get_default_lookahead_decoding_ngram() -> int:
        return 3

    @staticmethod
    def get_default_lookahead_decoding_verification_set() -> int:
        return 4


def _resources(window: int, ngram: int, verification: int) -> tuple[int, int, int, int]:
    """Decoding tokens, path length, draft tokens and draft path length."""
    rest = 0 if ngram == 1 else ngram - 2
    drafts = rest + (window - 1 + verification) * (ngram - 1)
    return drafts + 1, ngram, drafts, ngram - 1


class EagleConfig(Declared):
    def _check(self) -> None:
        threshold = self._values["posterior_threshold"]
        check(threshold is None or 0 <= threshold < 1, f"posterior_threshold {threshold} is out of [0, 1)")
        both = self._values["use_dynamic_tree"] and self._values["eagle_choices"] is not None
        check(not both, "When dynamic tree is enabled, eagle choices should not be set")


class DecodingMode(Declared):
    """Made by its factories alone."""

    _kind = ""

    @classmethod
    def _of(cls, kind: str) -> DecodingMode:
        mode = cls.__new__(cls)
        mode._kind, mode._values = kind, {"name": kind}
        return mode

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodingMode) and other._kind == self._kind

    def __hash__(self) -> int:
        return hash(self._kind)

    def useVariableBeamWidthSearch(self, use: bool) -> DecodingMode:
        return self


_PREDICATES: dict[str, tuple[str, ...]] = {
    "isTopKandTopP": ("TopKTopP",),
    "isTopKorTopP": ("TopK", "TopP", "TopKTopP"),
    "isTopK": ("TopK", "TopKTopP"),
    "isTopP": ("TopP", "TopKTopP"),
}
MODES = ("Auto", "TopK", "TopP", "TopKTopP", "BeamSearch", "Medusa", "Lookahead", "ExplicitDraftTokens", "Eagle")


def _add_modes() -> None:
    for kind in MODES:
        setattr(DecodingMode, kind, staticmethod(lambda kind=kind: DecodingMode._of(kind)))
        if kind != "TopKTopP":
            _PREDICATES.setdefault(f"is{kind}", (kind,))
    for name, kinds in _PREDICATES.items():
        setattr(DecodingMode, name, lambda self, kinds=kinds: self._kind in kinds)


_add_modes()
_NEEDS = {
    "lookahead_decoding_config": ("LookaheadDecodingConfig is", "Lookahead"),
    "medusa_choices": ("MedusaChoices are", "Medusa"),
    "eagle_config": ("EagleConfig is", "Eagle"),
}
"""Settings that need a mode."""


class DecodingConfig(Declared):
    def _check(self) -> None:
        mode = self._values["decoding_mode"]
        for name, (what, kind) in _NEEDS.items():
            if self._values[name] is not None:
                check(mode is not None, f"{what} set, but DecodingMode is not set")
                check(mode._kind == kind, f"{what} set, but DecodingMode is not set to {kind}")

    def _takes_none(self, name: str) -> bool:
        return False

    def _assigned(self, name: str) -> None:
        if name in _NEEDS:
            self._values["decoding_mode"] = DecodingMode._of(_NEEDS[name][1])
        elif self._values["decoding_mode"]._kind in ("Medusa", "Lookahead", "ExplicitDraftTokens"):
            raise RuntimeError(thrown("Speculative decoding modes are set with their settings"))


class Request(Declared):
    BATCHED_POST_PROCESSOR_NAME = "batched"
    _renamed = {"type": "request_type"}

    def _check(self) -> None:
        check(bool(self._values["input_token_ids"]), "!mInputTokenIds.empty()")
        check(self._values["max_tokens"] > 0, "mMaxNewTokens > 0")

    def _takes_none(self, name: str) -> bool:
        return name in ("logits_post_processor", "eagle_config")

    @property
    def _sequences(self) -> int:
        """Independent outputs; the sampling configuration's count wins over the deprecated one."""
        return self._values["sampling_config"].num_return_sequences or self._values["num_return_sequences"]


class ExecutorConfig(Declared):
    _settable_to_none = False


class KvCacheConfig(Declared):
    _settable_to_none = False

    def fill_empty_fields_from_runtime_defaults(self, **defaults: Any) -> None:
        raise NotImplementedError("the double has no runtime defaults")
