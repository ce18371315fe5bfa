"""Kinds of verification engines, the compilers there are, and which builds which for what chips; all of it data."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from builders.verification import onnx_compiler, trt_compiler
from builders.verification.limits import Limits
from builders.verification.networks import GREEDY_TREES, REJECTION_CHAINS, SAMPLED_TREES, Network
from plugins.aot import ARCHITECTURES
from plugins.verifier_folder import import_first
from trtspec.errors import ConfigError, MissingDependency


@dataclass(frozen=True, slots=True)
class Compiler:
    """What makes files of networks."""

    name: str
    summary: str
    load: Callable[[], Any]
    """Its Python module, or an error that says what to install."""
    compile: Callable[[Any, Network, Limits, Sequence[int]], bytes]
    suffix: str


@dataclass(frozen=True, slots=True)
class Route:
    """How a compiler builds a kind."""

    compiler: Compiler
    architectures: tuple[int, ...] = ()
    """Those it can build for; none where there is no choice."""
    default: tuple[int, ...] = ()
    most: int = 0
    """How many at once."""

    def resolve(self, asked: Sequence[int]) -> tuple[int, ...]:
        """What to build for, of what `--architecture` said."""
        if not asked:
            return self.default
        unknown = [item for item in asked if item not in self.architectures]
        if unknown:
            known = ", ".join(map(str, self.architectures)) or "none: it builds for the GPU that is there, or for all"
            raise ConfigError(f"--architecture {unknown[0]} with --compiler {self.compiler.name}: possible is {known}")
        if len(asked) > self.most or len(set(asked)) < len(asked):
            raise ConfigError(
                f"--architecture was given {len(asked)} times, as {', '.join(map(str, asked))}; "
                f"this engine is for {self.most}, each once"
            )
        return tuple(asked)


@dataclass(frozen=True, slots=True)
class Kind:
    """A set of engines."""

    name: str
    summary: str
    networks: tuple[Network, ...]
    routes: tuple[Route, ...]
    """The first one is taken where no compiler is named."""

    def route(self, compiler: str | None) -> Route:
        known = {route.compiler.name: route for route in self.routes}
        if compiler is None:
            return self.routes[0]
        if compiler not in known:
            raise ConfigError(f"--compiler {compiler} builds no --kind {self.name}; {', '.join(known)} does")
        return known[compiler]


def _tensorrt() -> Any:
    return import_first("tensorrt")


def _tensorrt_rtx() -> Any:
    return import_first("tensorrt_rtx")


def _onnx() -> Any:
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise MissingDependency(
            f"--compiler onnx needs onnx, which cannot be imported ({error}); pip install onnx"
        ) from None


_WITHOUT_GPU = "it needs a GPU and its driver; for --kind native, --compiler tensorrt_rtx or onnx need none"
_TENSORRT = Compiler(
    "tensorrt",
    "needs the GPU that the engine is for",
    _tensorrt,
    partial(trt_compiler.compile_network, otherwise=_WITHOUT_GPU),
    "engine",
)
_RTX = Compiler(
    "tensorrt_rtx", "needs no GPU, one engine for many", _tensorrt_rtx, trt_compiler.compile_network, "engine"
)
_ONNX = Compiler("onnx", "writes files that others compile", _onnx, onnx_compiler.compile_network, "onnx")
RTX_ARCHITECTURES = (75, 80, 86, 89, 120, 121)
"""Its own list of compute capabilities."""
RTX_DEFAULT = (80, 86, 89, 120)
"""What it builds for by itself, and what its documentation promises to run."""

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "plugins",
            "our kernels as TensorRT plugins: sampled and greedy trees, rejection sampling along chains",
            (SAMPLED_TREES, REJECTION_CHAINS),
            (Route(_TENSORRT, ARCHITECTURES, ARCHITECTURES[:1], 1),),
        ),
        Kind(
            "native",
            "TensorRT's own layers: greedy trees only",
            (GREEDY_TREES,),
            (Route(_TENSORRT), Route(_RTX, RTX_ARCHITECTURES, RTX_DEFAULT, len(RTX_ARCHITECTURES)), Route(_ONNX)),
        ),
    )
}
COMPILERS: Mapping[str, Compiler] = {
    route.compiler.name: route.compiler for kind in KINDS.values() for route in kind.routes
}
