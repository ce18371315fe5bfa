"""The order in which the kernels are checked and measured, the time that it takes, and where it runs."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from plugins.aot import ARCHITECTURES, nearest_architecture, triton_version
from scripts.gpu_check.checks import NO_GPU, WRONG, Check, Progress, exit_code, no_gpu
from scripts.gpu_check.kernels import agreement, ahead, law, loads, speeds, tuning
from scripts.gpu_check.kernels.chains import Shape
from scripts.gpu_check.kernels.driver import Driver
from scripts.gpu_check.kernels.launches import every_kernel
from scripts.gpu_check.kernels.loads import Load, Pool, last_cache
from scripts.gpu_check.kernels.operations import OPERATIONS
from scripts.gpu_check.kernels.report import Findings, machine, render
from scripts.gpu_check.kernels.timing import GraphTimer, HostTimer, Timer
from trtspec.errors import TrtspecError

MEASURED_UNTIL, TUNED_UNTIL = 270.0, 480.0
"""Seconds after the command began, imports included, at which nothing more is measured. What came before is not cut
short: a compiler that takes minutes makes a run longer."""
_POOL_SHARE = 0.3
"""Of the device's free memory; PyTorch's way needs several times what the kernels read."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where all is run, and by what means."""

    device: torch.device
    timer: Timer
    open_driver: Callable[[], Driver] | None
    """None where there is none to ask."""
    architecture: int


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run."""

    agreement: agreement.Extent
    law_rows: int
    launched: Sequence[Shape]
    """Shapes in which each kernel is launched from its PTX: rows of aligned lengths, and of others."""
    loads: Sequence[Load]
    tuned: Sequence[Load]
    seconds: float
    """Of one measurement."""


FULL = Extent(
    agreement.FULL, 50_000, [Shape(24, 5, 32_000, 768), Shape(17, 3, 5003)], loads.FULL, tuning.FULL, seconds=0.12
)
TINY = Extent(agreement.TINY, 60, [Shape(5, 3, 70, 10), Shape(4, 2, 37)], loads.TINY, loads.TINY, seconds=0.0)


def run(options: argparse.Namespace) -> int:
    """All of it; the exit code."""
    if options.device == "cuda" and not torch.cuda.is_available():
        print(no_gpu(torch.__version__), file=sys.stderr)
        return NO_GPU
    try:
        triton_version()
        place = place_of(torch.device(options.device))
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    small = options.quick or options.device == "cpu"
    progress, findings = Progress(options.started), Findings()
    report = Report(options.output, machine(place.device), seed, progress, findings)
    if not report.keep():
        return WRONG
    progress.say(f"{machine(place.device)}; seed {seed}")
    check_all(place, TINY if small else FULL, seed, options.tune, progress, findings, report.keep)
    print("\n" + report.text(finished=True))
    return exit_code(findings.checks) if report.keep(finished=True) else WRONG


@dataclass(frozen=True, slots=True)
class Report:
    """What was found so far, in a file: whoever stops the run has that much."""

    path: Path | None
    where: str
    seed: int
    progress: Progress
    findings: Findings

    def text(self, finished: bool) -> str:
        return render(self.where, self.seed, self.findings, self.progress.seconds, finished)

    def keep(self, finished: bool = False) -> bool:
        """Write it; false where that fails, which is said."""
        if self.path is not None:
            try:
                self.path.write_text(self.text(finished), encoding="utf-8")
            except OSError as error:
                print(f"error: --output cannot be written: {error}", file=sys.stderr)
                return False
        return True


def place_of(device: torch.device) -> Place:
    if device.type == "cpu":
        return Place(device, HostTimer(), None, ARCHITECTURES[0])
    architecture = nearest_architecture(*torch.cuda.get_device_capability(device))
    return Place(device, GraphTimer(), Driver, architecture)


def check_all(
    place: Place,
    extent: Extent,
    seed: int,
    tuned: bool,
    progress: Progress,
    findings: Findings,
    keep: Callable[[], object],
) -> None:
    """Whatever a part comes to, the next ones run; what was found is kept after each, and after each measurement."""
    parts: list[tuple[str, Callable[[], None]]] = [
        ("kernels against their twins", partial(_agree, place, extent, seed, progress, findings)),
        ("the PTX as TensorRT launches it", partial(_ahead, place, extent, seed, progress, findings)),
        ("speed", partial(_speed, place, extent, seed, tuned, progress, findings, keep)),
    ]
    for name, part in parts:
        progress.say(name)
        try:
            part()
        except Exception as error:  # a report without the rest tells more than a traceback without the report
            findings.checks += progress.tell([Check(f"{name}: runs to its end", False, f"{error!r:.300}")])
        keep()


def _agree(place: Place, extent: Extent, seed: int, progress: Progress, findings: Findings) -> None:
    findings.checks += progress.tell(agreement.agreement(extent.agreement, place.device, seed))
    kept = [law.keeps_the_law(extent.law_rows, place.device, certain) for certain in (False, True)]
    findings.checks += progress.tell(kept)


def _ahead(place: Place, extent: Extent, seed: int, progress: Progress, findings: Findings) -> None:
    if place.open_driver is None:
        findings.notes.append("The PTX was not launched: that takes a GPU.")
        return
    driver = place.open_driver()
    kinds = (torch.bfloat16, torch.float32)
    arguments = [
        item for shape in extent.launched for kind in kinds for item in every_kernel(shape, kind, place.device, seed)
    ]
    launches = [launch for item in arguments for launch in item.launches()]
    progress.say(f"compiling {len(launches)} launches for sm_{place.architecture}")
    checks, findings.seen = ahead.check(ahead.compile_all(launches, place.architecture), driver)
    findings.checks += progress.tell(checks)


def _speed(
    place: Place,
    extent: Extent,
    seed: int,
    tuned: bool,
    progress: Progress,
    findings: Findings,
    keep: Callable[[], object],
) -> None:
    pool = _pool(place.device, extent, seed)
    means = speeds.Means(place.timer, extent.seconds, lambda: MEASURED_UNTIL - progress.seconds)
    for item in speeds.measure(extent.loads, OPERATIONS, pool, means):
        findings.speeds.append(item)
        progress.say(_told(item))
        keep()
    findings.checks += progress.tell([speeds.run_everywhere(findings.speeds)])
    if tuned:
        means = speeds.Means(place.timer, extent.seconds, lambda: TUNED_UNTIL - progress.seconds)
        for other in tuning.tune(extent.tuned, OPERATIONS, tuning.CHOICES, pool, means):
            findings.tuned.append(other)
            progress.say(str(other))
            keep()


def _pool(device: torch.device, extent: Extent, seed: int) -> Pool:
    most = max(operation.bytes_read(load) for load in extent.loads for operation in OPERATIONS)
    if device.type == "cuda":
        most = min(most, int(torch.cuda.mem_get_info(device)[0] * _POOL_SHARE))
    return Pool.on(device, most, 2 * last_cache(device), seed)


def _told(item: speeds.Speed | speeds.Skipped) -> str:
    if isinstance(item, speeds.Skipped):
        return f"{item.operation}, {item.load}: not measured, {item.reason}"
    return f"{item.operation}, {item.load}: {item.seconds * 1e6:.1f} µs, {item.share:.0%} of reading alone"
