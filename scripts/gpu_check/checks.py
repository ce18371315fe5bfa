"""What all modes share: a thing that must hold, exit codes, and what is told on the way. Needs nothing but Python."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.bench.peers.report import table

FAILED, WRONG, NO_GPU = 1, 2, 3
"""Exit codes: something differs, a wrong command line or engine, nothing to check on."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    passed: bool
    detail: str


class Progress:
    """Says what is going on, with the time since the start."""

    def __init__(self, started: float | None = None) -> None:
        self._started = time.monotonic() if started is None else started

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)

    def tell(self, checks: Sequence[Check]) -> list[Check]:
        for check in checks:
            self.say(f"{'ok    ' if check.passed else 'FAILED'} {check.name}: {check.detail}")
        return list(checks)


def verdict(checks: Sequence[Check]) -> str:
    """In words."""
    failed = sum(not check.passed for check in checks)
    return f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} checks passed"


def checks_table(checks: Sequence[Check]) -> str:
    rows = [[check.name, "yes" if check.passed else "NO", check.detail] for check in checks]
    return table(["check", "holds", "seen"], rows)


def exit_code(checks: Sequence[Check]) -> int:
    return 0 if all(check.passed for check in checks) else FAILED


def no_gpu(version: str) -> str:
    """What to say where PyTorch of a version finds none."""
    return (
        f"gpu-check: PyTorch {version} finds no GPU, so nothing was checked; install an NVIDIA driver "
        "and a PyTorch built for CUDA (TRTSPEC_TORCH_INDEX names its index), or check on the CPU: --device cpu"
    )
