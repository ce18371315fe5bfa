"""Other constants and numbers of warps for the kernels that read logits, measured on a large and on a small load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plugins.contract import KernelSpec
from plugins.specs import KERNELS
from scripts.gpu_check.kernels.loads import Load, Pool
from scripts.gpu_check.kernels.operations import Operation
from scripts.gpu_check.kernels.speeds import Means, Skipped

FULL = [Load(64, 16, 128_256), Load(1, 4, 128_256)]


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel's specification with other constants."""

    kernel: str
    constants: Mapping[str, int]
    num_warps: int

    def spec(self) -> KernelSpec:
        known = KERNELS[self.kernel]
        return replace(known, constants={**known.constants, **self.constants}, num_warps=self.num_warps)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.constants.items())
        return f"{self.kernel}: {sizes}, {self.num_warps} warps"


@dataclass(frozen=True, slots=True)
class Tuned:
    operation: str
    load: Load
    choice: str
    seconds: float
    usual_seconds: float
    """With the specifications as they are."""


_WARPS = (4, 8, 2)
CHOICES: Mapping[str, Sequence[Choice]] = {
    "choose_token, with noise": [
        Choice("choose_token_parts", {"BLOCK": block, "SPLIT": split}, warps)
        for split in (4096, 8192, 2048, 16384)
        for block in (1024, 2048, 512)
        for warps in _WARPS[:2]
        if block <= split
    ],
    "top_logits": [
        Choice("top_logits_parts", {"BLOCK": block}, warps) for block in (2048, 1024, 4096) for warps in _WARPS
    ],
    "chain_rejection": [
        *(
            Choice("chain_statistics", {"BLOCK": block}, warps)
            for block in (2048, 4096, 8192, 1024)
            for warps in _WARPS
        ),
        *(Choice("chain_draw", {"BLOCK": block}, warps) for block in (1024, 2048, 512) for warps in _WARPS[:2]),
    ],
}
"""By operation. Those named first are the likelier ones: time may run out."""


def tune(
    loads: Sequence[Load],
    operations: Sequence[Operation],
    choices: Mapping[str, Sequence[Choice]],
    pool: Pool,
    means: Means,
) -> Iterator[Tuned | Skipped]:
    for operation in operations:
        for load in loads:
            if choices.get(operation.name):
                yield from _tuned(operation, load, choices[operation.name], pool, means)


def _tuned(
    operation: Operation, load: Load, choices: Sequence[Choice], pool: Pool, means: Means
) -> Iterator[Tuned | Skipped]:
    if operation.bytes_read(load) > pool.logits.nbytes or means.left() <= 0:
        yield Skipped(operation.name, load, "no memory or no time was left")
        return
    prepared = operation.prepare(load, pool)
    usual = means.timer(prepared.kernel_calls(), means.seconds)
    for choice in choices:
        if means.left() <= 0:
            yield Skipped(operation.name, load, f"no time was left for {choice} and those after it")
            return
        try:
            seconds = means.timer(prepared.kernel_calls({choice.kernel: choice.spec()}), means.seconds)
        except Exception as error:  # what does not compile or does not fit the chip says so in its own words
            yield Skipped(operation.name, load, f"{choice}: {str(error).splitlines()[0][:80]}")
        else:
            yield Tuned(operation.name, load, str(choice), seconds, usual)
