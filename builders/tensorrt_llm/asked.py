"""The flags that only builds for TensorRT-LLM read."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trtspec.cache import cache_directory
from trtspec.capabilities import ENGINE, PYTORCH, refusal
from trtspec.errors import ConfigError
from trtspec.types import Method

FLOWS = ("auto", ENGINE, PYTORCH)
MAX_BATCH_SIZE, MAX_NUM_TOKENS = 16, 8192


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, before a checkpoint is known. None leaves a value to the plan."""

    flow: str = "auto"
    tp: int = 1
    pp: int = 1
    max_batch_size: int = MAX_BATCH_SIZE
    max_input_len: int | None = None
    max_num_tokens: int = MAX_NUM_TOKENS
    max_draft_len: int | None = None
    workers: int = 1
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"{flag(item.name)} is {value}; allowed is 1 or more")

    def flow_for(self, method: Method) -> str:
        """The flow that is asked for, or the first that has the method."""
        flows = (self.flow,) if self.flow != "auto" else (ENGINE, PYTORCH)
        reasons = [refusal(method, flow) for flow in flows]
        found = next((flow for flow, reason in zip(flows, reasons, strict=True) if reason is None), None)
        if found is None:
            raise ConfigError(f"--method {method.value} --backend tensorrt_llm --flow {self.flow}: {reasons[-1]}")
        return found

    def facts(self) -> dict[str, Any]:
        """What decides the engines; workers and timing caches do not."""
        named = ("flow", "tp", "pp", "max_batch_size", "max_input_len", "max_num_tokens", "max_draft_len")
        return {name: getattr(self, name) for name in named}

    @property
    def timings(self) -> Path:
        return self.timing_cache or cache_directory() / "tensorrt_llm" / "timings"


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the group."""
    group = parser.add_argument_group(
        "with --backend tensorrt_llm",
        "Engines for TensorRT-LLM 1.2.1. --dry-run needs neither it nor a GPU, and prints all that would be passed.",
        argument_default=argparse.SUPPRESS,  # so that a default that is given is told from one that is not
    )
    group.add_argument(
        "--flow",
        choices=FLOWS,
        help="engine compiles, pytorch serves the checkpoint as it is (default: auto, the one that has the method, "
        "engine where both do)",
    )
    group.add_argument("--tp", type=int, metavar="N", help="GPUs that share each layer (default: 1)")
    group.add_argument("--pp", type=int, metavar="N", help="groups of GPUs that hold some layers each (default: 1)")
    group.add_argument(
        "--max-batch-size",
        type=int,
        metavar="N",
        help=f"requests that are decoded together; memory grows with it (default: {MAX_BATCH_SIZE})",
    )
    group.add_argument(
        "--max-input-len", type=int, metavar="N", help="longest prompt (default: one less than the context)"
    )
    group.add_argument(
        "--max-num-tokens",
        type=int,
        metavar="N",
        help=f"tokens that one pass may process (default: {MAX_NUM_TOKENS})",
    )
    group.add_argument(
        "--max-draft-len",
        type=int,
        metavar="N",
        help="nodes of a draft that an engine has room for (default: those of the speculative configuration)",
    )
    group.add_argument("--workers", type=int, metavar="N", help="ranks that are compiled at the same time (default: 1)")
    group.add_argument(
        "--timing-cache", type=Path, metavar="FILE", help="kernel timings, read and added to (default: in the cache)"
    )


def from_flags(options: argparse.Namespace) -> Asked:
    """Read the group."""
    return Asked(**{name: getattr(options, name) for name in _given(options)})


def given_flags(options: argparse.Namespace) -> list[str]:
    """Flags of the group that were given, be it at their defaults."""
    return [flag(name) for name in _given(options)]


def _given(options: argparse.Namespace) -> list[str]:
    return [item.name for item in fields(Asked) if hasattr(options, item.name)]
