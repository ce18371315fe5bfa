"""What an operator can set on an engine when it is opened, each declared once.

Flags, variables, the file of settings, their help and their checks derive from the fields' metadata
(`trtspec.declared`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trtspec.declared import check_values, flag
from trtspec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """What embedded engines alone have a default for: elsewhere these are refused, or bound nothing unless given."""

    max_pass_tokens: int = 256
    kv_cache_mib: int = 1024
    kv_block_tokens: int = 0
    threads: int = 0
    device: str = "auto"
    cuda_graphs: bool = True


@dataclass(frozen=True, slots=True)
class TensorRtLlmOptions:
    """What engines of TensorRT-LLM alone have: elsewhere these are refused."""

    stall_seconds: int = 300
    full_vocabulary: str = "plain"


_OWN = {EmbeddedOptions: "embedded engines", TensorRtLlmOptions: "TensorRT-LLM"}
_DEFAULTS = {item.name: (item.default, whose) for kind, whose in _OWN.items() for item in fields(kind)}


def _left_open(name: str, text: str, **more: Any) -> Any:
    """A field that is None where it was not given; its help tells what engines of its kind then take."""
    default, whose = _DEFAULTS[name]
    metadata = {"help": text, "default": default, "told": f"{default} for {whose}", **more}
    return field(default=None, metadata=metadata)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Run-time options of an engine; none of them changes what tokens it emits."""

    max_batch_size: int = field(default=16, metadata={"help": "requests decoded together", "min": 1})
    max_pass_tokens: int | None = _left_open(
        "max_pass_tokens", "tokens one pass may process, prefill chunks and draft nodes included", min=1
    )
    kv_cache_mib: int | None = _left_open(
        "kv_cache_mib",
        "memory for keys and values, in MiB; kept prefixes fill it over time; TensorRT-LLM takes what is free",
        min=1,
    )
    kv_block_tokens: int | None = _left_open(
        "kv_block_tokens", "token positions in a block of the KV cache; 0 is the runner's choice", min=0
    )
    prefix_sharing: bool = field(
        default=True, metadata={"help": "requests of a tenant share the cache of equal prompt beginnings"}
    )
    threads: int | None = _left_open("threads", "CPU threads of the engine; 0 takes all cores", min=0)
    device: str | None = _left_open(
        "device",
        "where the engine computes; auto is a GPU where there is one and the engine's runner is eager",
        choices=("auto", "cpu", "cuda"),
    )
    cuda_graphs: bool | None = _left_open("cuda_graphs", "on a GPU, replay passes of few tokens as CUDA graphs")
    stall_seconds: int | None = _left_open(
        "stall_seconds", "time without any response after which the engine is restarted", min=1
    )
    full_vocabulary: str | None = _left_open(
        "full_vocabulary",
        "compiled ngram and draft_model whose drafts are verified here: requests that can draw any token of the "
        "vocabulary, which no draft can help, are decoded plainly or refused",
        choices=("plain", "refuse"),
    )
    verify: bool = field(default=False, metadata={"help": "hash every artifact of the engine folder before loading"})
    speculative: Mapping[str, Any] | None = None
    """Keys of a speculative configuration that change what the engine was built with, within what it was built for."""

    def __post_init__(self) -> None:
        check_values(self)

    @property
    def embedded(self) -> EmbeddedOptions:
        """What was given, with an embedded engine's defaults for the rest."""
        return EmbeddedOptions(**self._given(EmbeddedOptions))

    @property
    def tensorrt_llm(self) -> TensorRtLlmOptions:
        """What was given, with TensorRT-LLM's defaults for the rest."""
        return TensorRtLlmOptions(**self._given(TensorRtLlmOptions))

    def _given(self, kind: type) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(kind)}
        return {name: value for name, value in values.items() if value is not None}

    def refuse(self, names: Iterable[str], theirs: str, ours: str) -> None:
        """Raises `ConfigError` where one of these was given: it is for other engines and would change nothing here."""
        for name in names:
            if getattr(self, name) is not None:
                raise ConfigError(f"{flag(name)} is for {theirs}, and this one was built for {ours}; leave it out")
