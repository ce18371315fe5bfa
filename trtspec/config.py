"""What an operator can set on an engine when it is opened, each declared once.

Flags, their help and their checks derive from the fields' metadata (`trtspec.cli.options`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trtspec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Run-time options of an engine; none of them changes what tokens it emits."""

    max_batch_size: int = field(default=16, metadata={"help": "requests decoded together", "min": 1})
    max_pass_tokens: int = field(
        default=256, metadata={"help": "tokens one pass may process, prefill chunks and draft nodes included", "min": 1}
    )
    kv_cache_mib: int = field(
        default=1024,
        metadata={"help": "memory for keys and values, in MiB; kept prefixes fill it over time", "min": 1},
    )
    kv_block_tokens: int = field(
        default=0, metadata={"help": "token positions in a block of the KV cache; 0 is the runner's choice", "min": 0}
    )
    prefix_sharing: bool = field(
        default=True, metadata={"help": "requests of a tenant share the cache of equal prompt beginnings"}
    )
    threads: int = field(default=0, metadata={"help": "CPU threads of the engine; 0 takes all cores", "min": 0})
    device: str = field(
        default="auto",
        metadata={
            "help": "where the engine computes; auto is a GPU where there is one and the engine's runner is eager",
            "choices": ("auto", "cpu", "cuda"),
        },
    )
    cuda_graphs: bool = field(default=True, metadata={"help": "on a GPU, replay passes of few tokens as CUDA graphs"})
    stall_seconds: int = field(
        default=300,
        metadata={"help": "TensorRT-LLM: time without any response after which the engine is restarted", "min": 1},
    )
    full_vocabulary: str = field(
        default="plain",
        metadata={
            "help": "TensorRT-LLM, compiled ngram and draft_model: requests that can draw any token of the vocabulary, "
            "which no draft can help, are decoded plainly or refused",
            "choices": ("plain", "refuse"),
        },
    )
    verify: bool = field(default=False, metadata={"help": "hash every artifact of the engine folder before loading"})
    speculative: Mapping[str, Any] | None = None
    """Keys of a speculative configuration that change what the engine was built with, within what it was built for."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, flag = getattr(self, item.name), "--" + item.name.replace("_", "-")
            least = item.metadata.get("min")
            if least is not None and value < least:
                raise ConfigError(f"{flag} is {value}; allowed is {least} or more")
            choices = item.metadata.get("choices", (value,))
            if value not in choices:
                raise ConfigError(f"{flag} is {value}; allowed is {', '.join(choices)}")
