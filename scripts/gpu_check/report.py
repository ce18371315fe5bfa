"""The report of a run as Markdown: machine, checks, speeds. Pure but for `machine`."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import transformers

from scripts.bench.peers.report import ABSENT, table
from scripts.gpu_check.checks import Check, checks_table, verdict
from scripts.gpu_check.speed import Speed
from trtspec import __version__

NOTE = (
    "Weights are random, so the acceptance rate says what text they fell into, not what drafts are worth; "
    "what a pass costs is real."
)


@dataclass(frozen=True, slots=True)
class Section:
    """The speeds of one model."""

    title: str
    speeds: Sequence[Speed]


def machine(device: torch.device) -> str:
    """What ran where."""
    where = f"{platform.machine()} CPU"
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        where = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    versions = (
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}"
    )
    return f"{where}; trtspec {__version__}, {versions}"


def render(
    where: str,
    checks: Sequence[Check],
    sections: Sequence[Section],
    seconds: float,
    title: str = "The embedded engine on this device",
) -> str:
    """The whole report."""
    parts = [f"# {title}", f"{where}. In {seconds:.0f} s, {verdict(checks)}."]
    parts += ["## Checks", checks_table(checks), *(["## Speed", NOTE] if sections else [])]
    for section in sections:
        parts += [f"### {section.title}", _speeds(section.speeds)]
    return "\n\n".join(parts) + "\n"


def _speeds(speeds: Sequence[Speed]) -> str:
    header = ["method", "in flight", "graphs", "tokens/s", "ms a pass", "tokens a pass", "acceptance rate"]
    return table(header, [_row(speed) for speed in speeds])


def _row(speed: Speed) -> list[str]:
    stats = speed.stats
    return [
        speed.method,
        str(speed.concurrency),
        "on" if speed.graphs else "off",
        f"{speed.tokens_per_second:.1f}",
        f"{speed.pass_ms:.2f}",
        ABSENT if stats.tokens_per_pass is None else f"{stats.tokens_per_pass:.2f}",
        ABSENT if stats.acceptance_rate is None else f"{stats.acceptance_rate:.2f}",
    ]
