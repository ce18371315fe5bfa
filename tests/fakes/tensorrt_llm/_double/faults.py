"""Faults that a test plants by environment variables; the package's docstring lists them."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from tensorrt_llm._double.errors import thrown

PREFIX = "TRTLLM_DOUBLE_"


class ForwardFailure(Exception):
    """A pass failed, and with it all requests that were in it."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and when; 0 is never."""

    error_every: int = 0
    forward_error_at: int = 0
    hang_at: int = 0
    abort_at: int = 0
    pass_seconds: float = 0.0

    @classmethod
    def planted(cls, rank: int = 0) -> Faults:
        """Those of the environment, on the rank that it names. Running out of memory happens here."""
        if rank != _read("FAULTY_RANK"):
            return cls()
        if _read("OOM"):
            raise RuntimeError(thrown("[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc: out of memory"))
        counts = {name: int(_read(name.upper())) for name in ("error_every", "forward_error_at", "hang_at", "abort_at")}
        return cls(**counts, pass_seconds=_read("PASS_SECONDS"))

    def refuses(self, number: int) -> bool:
        """Whether the request of this number is refused."""
        return self.error_every > 0 and number % self.error_every == 0

    def strike(self, number: int) -> None:
        """Before the pass of this number."""
        if number == self.abort_at:
            os.abort()
        if number == self.hang_at:
            threading.Event().wait()
        if number == self.forward_error_at:
            raise ForwardFailure(thrown("CUDA error: an illegal memory access was encountered"))

    def delay(self, began: float) -> None:
        """After a pass that began then."""
        if self.pass_seconds:
            time.sleep(max(began + self.pass_seconds - time.monotonic(), 0))


def planted(name: str, rank: int) -> bool:
    """Whether something goes wrong on this rank."""
    return bool(_read(name)) and rank == _read("FAULTY_RANK")


def _read(name: str) -> float:
    return float(os.environ.get(f"{PREFIX}{name}") or 0)
