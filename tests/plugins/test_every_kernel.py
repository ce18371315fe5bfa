"""Every kernel that ships is compiled for every architecture, as plugins, launchers and the command ask for it.

What comes out was assembled, too: the worker gives nobody a text that its Triton's `ptxas` refuses for its target.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from plugins import aot, ptx, symbolic
from plugins.contract import KernelSpec
from plugins.known import known_sizes
from plugins.specs import KERNELS

WIDTH = 128_256
Multiples = Callable[[KernelSpec], Collection[str]]


def of_plugins(spec: KernelSpec) -> Collection[str]:
    """In an engine whose rows have that width."""
    known = {"width": WIDTH, "vocabulary": WIDTH}
    return symbolic.multiples_of_16(spec, known_sizes(spec, KERNELS.values(), known))


def of_launchers(spec: KernelSpec) -> Collection[str]:
    """What Triton sees in arrays of PyTorch and in rows of that width."""
    return [name for name in spec.arguments if name not in spec.scalars or name in ("width", "vocabulary")]


def of_nobody(spec: KernelSpec) -> Collection[str]:
    """Any sizes."""
    return ()


@dataclass(frozen=True)
class Kind:
    architecture: int
    logits: str = "bfloat16"
    multiples: Multiples = of_plugins

    def __str__(self) -> str:
        return f"{self.architecture}-{self.logits}-{self.multiples.__name__}"


KINDS = [
    *(Kind(architecture) for architecture in aot.ARCHITECTURES),
    *(Kind(90, "bfloat16", multiples) for multiples in (of_launchers, of_nobody)),
    Kind(90, "float32"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels that read no logits are the same ones in several kinds."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kernel_compiles(kind: Kind, triton: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two processes of the compiler."""
    monkeypatch.setenv("TRTSPEC_CACHE", str(cache))

    def compiled(spec: KernelSpec) -> aot.CompiledKernel:
        return aot.compile_kernel(spec, kind.logits, kind.architecture, multiples=sorted(kind.multiples(spec)))

    with ThreadPoolExecutor(2) as pool:
        for spec, found in zip(KERNELS.values(), pool.map(compiled, KERNELS.values()), strict=True):
            check(spec, kind, found)
            assert found.triton == triton


def check(spec: KernelSpec, kind: Kind, compiled: aot.CompiledKernel) -> None:
    """Its parameters, its chips, and that every assembler makes the same numbers of it."""
    bits = tuple(64 if word.startswith("*") else 32 for word in spec.signature(kind.logits).values())
    assert ptx.read_entry(compiled.ptx).bits == bits
    assert compiled.target.rstrip("af") == f"sm_{kind.architecture}"
    fused = re.search(r"\b(add|sub|mul)(\.ftz)?\.f(32|64)\b", compiled.ptx)
    assert not fused, "an assembler may fuse what is unrounded"
    written_out = re.search(r"\b(div|sqrt)\.(full|approx)\S*", compiled.ptx)
    assert not written_out, "an assembler writes an approximation out in its own way"
