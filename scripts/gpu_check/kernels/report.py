"""The report of a run as Markdown. Pure but for `machine`."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from plugins.aot import triton_version
from scripts.bench.peers.report import ABSENT, table
from scripts.gpu_check.checks import Check, checks_table, verdict
from scripts.gpu_check.kernels.ahead import Seen
from scripts.gpu_check.kernels.speeds import LARGE_BYTES, WANTED_SHARE, Skipped, Speed
from scripts.gpu_check.kernels.tuning import Tuned
from trtspec import __version__

_SPEED = f"""\
Bytes are those of bfloat16 logits that the kernels read, also where they read some twice; what else they read and write
is not counted. Reading alone is the fastest of the kernels named, over as many bytes. Calls take turns on different
logits, twice as many bytes as the last cache holds or one call's where that is more, so that small loads, too, read
memory for the most part. A turn is one CUDA graph, queued while the device is kept waiting: the host's share is not in
these times. PyTorch keeps log-probabilities, or probabilities, in memory. From {LARGE_BYTES / 1e6:.0f} MB on a kernel
is to reach {WANTED_SHARE:.0%} of reading alone."""


@dataclass
class Findings:
    """All that a run found, so far."""

    checks: list[Check] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    speeds: list[Speed | Skipped] = field(default_factory=list)
    tuned: list[Tuned | Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def machine(device: torch.device) -> str:
    """What ran where."""
    where = f"{platform.machine()} CPU, kernels interpreted"
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        memory, cache = facts.total_memory / 2**30, facts.L2_cache_size / 2**20
        where = f"{facts.name}, sm_{facts.major}{facts.minor}, {memory:.0f} GiB, L2 {cache:.0f} MiB"
        where += f", {facts.multi_processor_count} multiprocessors, CUDA {torch.version.cuda}"
    versions = f"PyTorch {torch.__version__}, Triton {triton_version()}, Python {platform.python_version()}"
    return f"{where}; trtspec {__version__}, {versions}"


def render(where: str, seed: int, findings: Findings, seconds: float, finished: bool = True) -> str:
    """The whole report, or what there is of it."""
    told = verdict(findings.checks) if finished else f"so far {verdict(findings.checks)}, and the run went on"
    parts = ["# The kernels on this device", f"{where}. In {seconds:.0f} s, {told}; seed {seed}."]
    parts += [*findings.notes, "## Checks", checks_table(findings.checks)]
    if findings.seen:
        parts += ["## As the driver has them", _seen(findings.seen)]
    if findings.speeds:
        parts += ["## Speed", _SPEED, verdict_on_speed(findings.speeds), _speeds(findings.speeds)]
    if findings.tuned:
        parts += ["## Other constants", _tuned(findings.tuned)]
    return "\n\n".join(parts) + "\n"


def verdict_on_speed(speeds: Sequence[Speed | Skipped]) -> str:
    large = [item for item in speeds if isinstance(item, Speed) and item.large]
    missed = [item for item in large if not item.met]
    if not large:
        return "Nothing large was measured, so nothing is said of the aim."
    if not missed:
        return f"The aim is met by all {len(large)} large loads."
    worst = min(missed, key=lambda item: item.share)
    told = f"the farthest from it is {worst.operation} at {worst.load} with {worst.share:.0%}"
    return f"The aim is not met by {len(missed)} of {len(large)} large loads; {told}."


def _seen(seen: Sequence[Seen]) -> str:
    header = ["kernel", "logits", "compiled", "registers", "spilled", "shared", "parameters"]
    return table(header, [_seen_row(item) for item in seen])


def _seen_row(item: Seen) -> list[str]:
    function = item.function
    told = (f"{function.registers}", f"{function.spilled_bytes} B", f"{item.shared_bytes} B")
    return [item.kernel, item.logits, item.variant, *told, " ".join(map(str, function.parameter_bytes))]


def _speeds(speeds: Sequence[Speed | Skipped]) -> str:
    header = [
        "operation",
        "load",
        "MB read",
        "µs",
        "GB/s",
        "reading alone, GB/s",
        "share",
        "aim",
        "PyTorch, µs",
        "read by",
    ]
    return table(header, [_speed_row(item) for item in speeds])


def _speed_row(item: Speed | Skipped) -> list[str]:
    if isinstance(item, Skipped):
        return [item.operation, str(item.load), *[ABSENT] * 7, f"not measured: {item.reason}"]
    aim = ("met" if item.met else "NOT met") if item.large else ABSENT
    torch_way = f"{item.torch_trouble}" if item.torch_seconds is None else _micro(item.torch_seconds, item.seconds)
    rates = [f"{item.reads / seconds / 1e9:.0f}" for seconds in (item.seconds, item.sweep_seconds)]
    numbers = [f"{item.reads / 1e6:.1f}", f"{item.seconds * 1e6:.1f}", *rates, f"{item.share:.0%}"]
    return [item.operation, str(item.load), *numbers, aim, torch_way, item.swept_by]


def _micro(seconds: float, ours: float) -> str:
    return f"{seconds * 1e6:.1f} ({seconds / ours:.1f} x)"


def _tuned(tuned: Sequence[Tuned | Skipped]) -> str:
    header = ["operation", "load", "constants", "µs", "as they are, µs", "faster"]
    return table(header, [_tuned_row(item) for item in _fastest_first(tuned)])


def _fastest_first(tuned: Sequence[Tuned | Skipped]) -> list[Tuned | Skipped]:
    """Within each operation and load, which stay in their order; what was skipped comes last."""
    groups = list(dict.fromkeys((item.operation, item.load) for item in tuned))

    def place(item: Tuned | Skipped) -> tuple[int, float]:
        return groups.index((item.operation, item.load)), item.seconds if isinstance(item, Tuned) else float("inf")

    return sorted(tuned, key=place)


def _tuned_row(item: Tuned | Skipped) -> list[str]:
    if isinstance(item, Skipped):
        return [item.operation, str(item.load), item.reason, *[ABSENT] * 3]
    faster = f"{item.usual_seconds / item.seconds:.2f} x"
    times = (f"{item.seconds * 1e6:.1f}", f"{item.usual_seconds * 1e6:.1f}")
    return [item.operation, str(item.load), item.choice, *times, faster]
