"""The LLM API's side of the loop: which engine is opened, what may run, and who is told."""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from tensorrt_llm._double.faults import Faults
from tensorrt_llm._double.glm import TYPE, as_qwen3
from tensorrt_llm._double.hugging_face import Source
from tensorrt_llm._double.machine import Machine, Plan
from tensorrt_llm._double.passes import Pass
from tensorrt_llm._double.request_output import Update
from tensorrt_llm._double.results import as_json
from tensorrt_llm._double.reuse import Reuse
from tensorrt_llm._double.sampling import Refused
from tensorrt_llm._double.sequence import CANCELLED, END_ID, LENGTH, STOP_WORDS, Group, Sequence
from tensorrt_llm._double.statistics import iteration_stats, spec_decoding
from tensorrt_llm._double.throttle import LIMITS
from tensorrt_llm._table import ValidationError

from trtspec.types import Request, SamplingParams

_MOST_BATCH, _PASS_TOKENS = 64, 2048
_REASONS = {END_ID: "stop", STOP_WORDS: "stop", LENGTH: "length", CANCELLED: "cancelled"}
_MISSING = (
    *("bad", "bad_token_ids", "stop", "embedding_bias", "logits_processor", "min_tokens", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "min_p", "logprobs", "prompt_logprobs"),
    *("guided_decoding", "additional_model_outputs", "use_beam_search", "return_context_logits"),
)
"""What the double does not follow in this flow."""


def open_machine(model: Path, arguments: dict[str, Any]) -> Machine:
    """The engine for a decoding configuration, which is checked as the flow checks it."""
    config = arguments["speculative_config"]
    speculative: dict[str, Any] = {"method": "none"}
    draft = None
    if config is not None:
        name = type(config).__name__.removesuffix("DecodingConfig")
        if "pytorch" not in config._backends:
            raise ValidationError(f"Speculation type {name} does not support backend pytorch")
        config._validate()
        if not config._two_models and (ignored := [key for key in LIMITS if getattr(config, key)]):
            raise ValueError(f"{name} drafts inside the target's passes, and {ignored[0]} would be ignored")
        if config._two_models and not arguments["disable_overlap_scheduler"]:
            raise ValueError(f"{name} drafts between passes: disable_overlap_scheduler must be True")
        speculative, draft = _SETTINGS[name](config)
    source = Source(model)
    if speculative["method"] == "mtp":
        _check_modules(source)
    batch = min(arguments["max_batch_size"], _MOST_BATCH)
    tokens = arguments["max_num_tokens"] or _PASS_TOKENS
    with tempfile.TemporaryDirectory() as temporary:
        ours = as_qwen3(source, Path(temporary)) if source.raw["model_type"] == TYPE else model
        machine = Machine.open(Plan(ours, speculative, batch, tokens, draft))
    return machine if config is None else machine.throttled(config, tokens)


def _check_modules(source: Source) -> None:
    """What `MTPForCausalLM` refuses: families without a layer for it, and configs that tell no modules."""
    kind = source.raw["model_type"]
    if kind != TYPE:
        raise ValueError(f"Model type {kind} not supported for MTP")
    if not source.raw.get("num_nextn_predict_layers"):
        raise TypeError(f"{source.path} has no modules for MTP")


def _path(config: Any) -> Path:
    return Path(config.speculative_model)


_SETTINGS: dict[str, Any] = {
    "NGram": lambda config: (
        {
            "method": "ngram",
            "num_speculative_tokens": config.max_draft_len,
            "prompt_lookup_max": config.max_matching_ngram_size,
        },
        None,
    ),
    "DraftTarget": lambda config: (
        {"method": "draft_model", "num_speculative_tokens": config.max_draft_len},
        _path(config),
    ),
    "Eagle": lambda config: ({"method": "eagle3", "num_speculative_tokens": config.max_draft_len}, _path(config)),
    "MTP": lambda config: ({"method": "mtp", "num_speculative_tokens": config.num_nextn_predict_layers}, None),
}


class LlmAdmission:
    """Called with one request after another, from the loop's thread."""

    def __init__(self, machine: Machine, faults: Faults, reuse: Reuse, arguments: dict[str, Any]) -> None:
        self._machine, self._faults, self._reuse = machine, faults, reuse
        positions = Source(Path(arguments["model"])).raw["max_position_embeddings"]
        self._longest = arguments["max_seq_len"] or positions
        config = arguments["speculative_config"]
        self._samples = config is None or config._two_models or config.allow_advanced_sampling
        self._seen = 0

    def admit(self, group: Group) -> list[Sequence]:
        call, self._seen = group.request, self._seen + 1
        if self._faults.refuses(self._seen):
            raise Refused("This request is refused by a planted fault")
        room = self._longest - len(call.prompt)
        if room < 1:
            raise Refused(f"The prompt length ({len(call.prompt)}) should be less than max_seq_len ({self._longest})")
        for name in _MISSING:
            if getattr(call.params, name):
                raise Refused(f"the double does not follow {name} in this flow")
        if call.params.n > 1:
            raise Refused("the double makes one output a request")
        group.reused_blocks, group.reused_tokens = self._reuse.find(call.prompt, call.salt)
        ends = () if call.params.ignore_eos or call.params.end_id < 0 else (call.params.end_id,)
        asked = Request(
            request_id=str(group.id),
            prompt=tuple(call.prompt),
            max_tokens=min(call.params.max_tokens, room),
            sampling=self._sampling(call.params),
            seed=call.params.seed or 0,
            eos_ids=frozenset(ends),
            max_draft_tokens=self._machine.limits.max_draft_tokens,
        )
        words = tuple((token,) for token in call.params.stop_token_ids or ())
        return [Sequence(group, 0, asked, words, 0)]

    def _sampling(self, params: Any) -> SamplingParams:
        """Drafters that are part of the model's passes are followed greedily, unless the prototype is switched on."""
        if params._greedy or not self._samples:
            return SamplingParams()
        temperature = 1.0 if params.temperature is None else params.temperature
        return SamplingParams(temperature, params.top_k or 0, 1.0 if params.top_p is None else params.top_p)


class Reporter:
    """Implements `Listener` for outputs of the LLM API."""

    def __init__(
        self, machine: Machine, reuse: Reuse, stats: deque[dict[str, Any]], live: dict[int, Any], capacity: int
    ) -> None:
        self._machine, self._reuse, self._stats, self._live, self._capacity = machine, reuse, stats, live, capacity

    def stepped(self, sequence: Sequence, new: list[int], iteration: int) -> None:
        call, finished = sequence.group.request, sequence.finished
        if finished:
            self._reuse.store(call.prompt + sequence.tokens[:-1], call.salt)
            self._live.pop(sequence.group.id, None)
            if self._machine.throttle is not None:
                self._machine.throttle.ended(len(sequence.tokens), sequence.iterations)
        elif not call.output._streaming:
            return
        stopped = sequence.reason == STOP_WORDS
        tokens = list(new) if call.output._streaming else list(sequence.tokens)
        if stopped and not call.params.include_stop_str_in_output:
            tokens = tokens[:-1]
        update = Update(
            tokens=tuple(tokens),
            iterations=sequence.iterations,
            cached_tokens=sequence.group.reused_tokens,
            finish_reason=_REASONS[sequence.reason] if finished else None,
            stop_reason=sequence.tokens[-1] if stopped else None,
        )
        call.output._deliver(update)

    def failed(self, group: Group, text: str) -> None:
        self._live.pop(group.id, None)
        group.request.output._deliver(Update(error=text))

    def passed(self, facts: Pass) -> None:
        if self._stats.maxlen:
            stats = as_json(iteration_stats(facts, self._machine.engine.stats(), self._reuse, self._capacity))
            self._stats.append({**stats, "specDecodingStats": spec_decoding(facts)})
