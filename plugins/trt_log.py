"""What TensorRT says: a call of its that fails gives nothing, and only its logger is told why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trtspec.errors import KernelError

_SAID = 3
"""Lines that are repeated. The first errors tell the cause; of warnings the last do."""
_KEPT = 50
"""Lines of each kind: a runtime lives long."""

Show = Callable[[Any, str], object]
"""Takes a severity and a line."""


def _hide(severity: Any, message: str) -> None:
    """Shows nothing."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a logger was told."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def why(self) -> str:
        """Why something failed. Of a GPU that cannot be used some versions only warn."""
        lines = self.errors[:_SAID] or [*dict.fromkeys(self.warnings)][-_SAID:]
        return "; ".join(lines) or "it did not say why"


def logger(trt: Any, show: Show = _hide) -> Any:
    """An `ILogger` for a module of TensorRT's; its attribute `heard` is what it was told."""
    levels, heard = trt.ILogger.Severity, Heard()
    kept = {levels.INTERNAL_ERROR: heard.errors, levels.ERROR: heard.errors, levels.WARNING: heard.warnings}

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.heard = heard

        def log(self, severity: Any, message: str) -> None:
            show(severity, message)
            if len(lines := kept.get(severity, [])) < _KEPT:
                lines.append(message)

    return Log()


def create(trt: Any, name: str, log: Any, way_out: str) -> Any:
    """A `Builder` or `Runtime`. Where no GPU can be used TensorRT makes none, and its bindings do not say so."""
    try:
        return getattr(trt, name)(log)
    except TypeError as error:
        raise KernelError(f"{trt.__name__} {trt.__version__} made no {name}: {log.heard.why()}; {way_out}") from error
