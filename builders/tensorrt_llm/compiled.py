"""A folder of compiled engines, planned: the target, what drafts for it, and the limits that a server keeps to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from builders.checkpoint import Checkpoint
from builders.drafts.checks import check_source
from builders.drafts.source import DraftSource
from builders.tensorrt_llm.additions import Additions, eagle, medusa
from builders.tensorrt_llm.asked import Asked
from builders.tensorrt_llm.engine_plan import MODE_NUMBERS, EnginePlan
from builders.tensorrt_llm.families import Family, family_of
from builders.tensorrt_llm.top_logits import TopLogits
from trtspec.capabilities import ENGINE
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.engine_spec import (
    DRAFT,
    EAGLE,
    EXTERNAL,
    LOOKAHEAD,
    MEDUSA,
    NONE,
    TARGET,
    FolderSpec,
)
from trtspec.executors.tensorrt_llm.executor_arguments import choices, executor_arguments, takes_chunks
from trtspec.executors.tensorrt_llm.probe import PINNED
from trtspec.speculative import BY_ENGINE, FLAG, SpeculativeConfig
from trtspec.types import Method

_MODES = {Method.MEDUSA: MEDUSA, Method.EAGLE: EAGLE, Method.LOOKAHEAD: LOOKAHEAD}
"""Methods that draft in the engine; the others draft outside of it."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The engines, in the order in which they are built."""

    speculative: SpeculativeConfig
    asked: Asked
    engines: tuple[EnginePlan, ...]

    @property
    def target(self) -> EnginePlan:
        return next(engine for engine in self.engines if engine.name == TARGET)

    @property
    def folder(self) -> FolderSpec:
        """What a server reads."""
        return FolderSpec(
            version=PINNED,
            flow=ENGINE,
            tp=self.asked.tp,
            pp=self.asked.pp,
            max_prompt_tokens=self._max_prompt_tokens,
            max_batch_size=self.asked.max_batch_size,
            logits_size=self.target.checkpoint.config.vocab_size,
            engines={engine.name: engine.spec for engine in self.engines},
        )

    def arguments(self) -> dict[str, Any]:
        """Everything that will be passed, and what comes of it."""
        folder, world = self.folder, self.asked.tp * self.asked.pp
        return {
            "plan": {
                "backend": "tensorrt_llm",
                "flow": ENGINE,
                "method": self.speculative.method.value,
                "tensorrt_llm": PINNED,
                "world_size": world,
                "ranks": list(range(world)),
                "workers": self.asked.workers,
            },
            **{engine.name: _engine(engine) for engine in self.engines},
            "serve": {
                engine.name: executor_arguments(engine.name, folder, self.speculative) for engine in self.engines
            },
            "limits": self._limits(),
            "memory": {engine.name: _memory(engine) for engine in self.engines},
        }

    @property
    def _max_prompt_tokens(self) -> int:
        """Where prompts cannot come in chunks, one is a single pass."""
        longest, engine = self.target.max_input_len, self.target.spec
        return longest if takes_chunks(engine) else min(longest, engine.max_num_tokens)

    def _limits(self) -> dict[str, int]:
        return {
            "max_context_tokens": self.target.max_seq_len,
            "max_prompt_tokens": self._max_prompt_tokens,
            "max_batch_size": self.asked.max_batch_size,
            "max_draft_tokens": self.speculative.draft_tokens,
            "max_tree_nodes": self.speculative.draft_nodes,
        }


def plan_compiled(
    target: Checkpoint,
    source: DraftSource | None,
    speculative: SpeculativeConfig,
    asked: Asked,
    *,
    dtype: str,
    quantization: str,
    max_seq_len: int,
) -> Compiled:
    """Settle everything; refuse what cannot be compiled."""
    method = speculative.method
    _check_method(method, asked, quantization)
    if source is not None:
        check_source(source, target.config, speculative)
    family = family_of(target.architecture, method)
    mode = _mode(speculative)
    draft_len = _draft_len(speculative, asked, mode)

    def engine(name: str, checkpoint: Checkpoint, model_class: str, **more: Any) -> EnginePlan:
        return EnginePlan(name, checkpoint, model_class, dtype, quantization, asked, max_seq_len, **more)

    engines = [
        engine(
            TARGET,
            target,
            family.model_class,
            mode=mode,
            draft_len=draft_len,
            additions=_additions(target, source, speculative, family, draft_len, asked.tp),
            top_logits=TopLogits() if mode == NONE and method is not Method.NONE else None,
        )
    ]
    if source is not None and source.model is not None:
        small = source.model
        engines.append(engine(DRAFT, small, family_of(small.architecture, method).model_class))
    for item in engines:
        item.check()
    return Compiled(speculative, asked, tuple(engines))


def _mode(speculative: SpeculativeConfig) -> str:
    """Drafts from outside are verified by our own loop over a plain engine, unless the engine is to do it."""
    return EXTERNAL if speculative.acceptance == BY_ENGINE else _MODES.get(speculative.method, NONE)


def _additions(
    target: Checkpoint, source: DraftSource | None, speculative: SpeculativeConfig, family: Family, nodes: int, tp: int
) -> Additions | None:
    if source is None or speculative.method not in _MODES:
        return None
    if speculative.method is Method.MEDUSA:
        return medusa(source, target, family, nodes, tp)
    return eagle(source, target, speculative, nodes, _non_leaves(speculative), tp)


def _draft_len(speculative: SpeculativeConfig, asked: Asked, mode: str) -> int:
    """Nodes that the engine has room for; none where drafts are verified outside of a mode."""
    if mode == NONE:
        if asked.max_draft_len is not None:
            raise ConfigError(
                f"--max-draft-len is {asked.max_draft_len} and --method {speculative.method.value} needs no room for "
                f"drafts in its engine; leave it out, and set num_speculative_tokens in {FLAG}"
            )
        return 0
    nodes = speculative.draft_nodes
    room = nodes if asked.max_draft_len is None else asked.max_draft_len
    if room < nodes:
        raise ConfigError(
            f"--max-draft-len is {room} and the speculative configuration has drafts of {nodes} nodes; give {nodes} or "
            "more, or a smaller tree"
        )
    return room


def _non_leaves(speculative: SpeculativeConfig) -> int:
    """Most nodes of a depth that have children; a dynamic tree expands up to its width of them."""
    if speculative.dynamic_tree:
        return speculative.tree_width
    parents = {tuple(path[:-1]) for path in choices(speculative) if len(path) > 1}
    return max(Counter(len(path) for path in parents).values(), default=1)


def _check_method(method: Method, asked: Asked, quantization: str) -> None:
    if asked.pp > 1 and method is not Method.NONE:
        reason = "EAGLE networks run in one stage" if method is Method.EAGLE else "no such engine has been tried"
        raise ConfigError(
            f"--pp is {asked.pp} and --method is {method.value}: {reason}; use --tp, or --method none with --pp"
        )
    if quantization != "none" and method in (Method.MEDUSA, Method.EAGLE):
        raise ConfigError(
            f"--quantization is {quantization} and --method is {method.value}: TensorRT-LLM would quantize the drafter "
            "too, whose weights come as they are; leave one out"
        )


def _engine(engine: EnginePlan) -> dict[str, Any]:
    spec, additions = engine.spec, engine.additions
    added: dict[str, Any] = {}
    if additions is not None:
        tensors = dict(_tensors(additions, engine.asked.tp))
        added = {
            "checkpoint": {**additions.settings, "tensor": tensors},
            "load": {"call": f"{additions.model_class}.from_checkpoint"},
        }
    return {
        "convert": engine.convert,
        **added,
        "build": engine.build,
        **({"top_logits": engine.top_logits.plan} if engine.top_logits else {}),
        "engine": {
            "max_seq_len": spec.max_seq_len,
            "max_num_tokens": spec.max_num_tokens,
            "max_draft_len": spec.max_draft_len,
            "speculative_decoding_mode": MODE_NUMBERS[spec.mode],
            "outputs": list(spec.outputs),
        },
    }


def _tensors(additions: Additions, tp: int) -> Iterator[tuple[str, list[int]]]:
    """Heads, blocks and nets are all alike: `*` stands for their numbers."""
    for item in additions.tensors:
        yield re.sub(r"(medusa_heads|medusa_layers|eagle_nets)\.\d+", r"\1.*", item.name), list(item.rank_shape(tp))


def _memory(engine: EnginePlan) -> dict[str, int]:
    return {
        "weights_bytes_per_rank": engine.weights_bytes,
        "kv_bytes_per_token_per_rank": engine.kv_bytes,
        "kv_bytes_per_rank_full_batch": prod((engine.asked.max_batch_size, engine.spec.max_seq_len, engine.kv_bytes)),
        **({"top_logits_bytes_per_rank": engine.top_logits_bytes} if engine.top_logits else {}),
    }
