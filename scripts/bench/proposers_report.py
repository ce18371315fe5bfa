"""What `proposers.py` measured, as tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trtspec.decoding.stats import SpeculationStats
from trtspec.types import PassRecord


@dataclass
class Answered:
    """What one prompt came to."""

    ids: list[int] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    seconds: float = 0.0
    """Of passes that decode, proposing included."""
    proposing: float = 0.0

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats.of(self.passes)


class Total(NamedTuple):
    """Answers together."""

    stats: SpeculationStats
    seconds: float
    proposing: float

    @classmethod
    def of(cls, answers: Iterable[Answered]) -> Total:
        items = list(answers)
        stats = sum((item.stats for item in items), SpeculationStats())
        return cls(stats, sum(item.seconds for item in items), sum(item.proposing for item in items))

    @property
    def tokens_per_pass(self) -> float:
        return self.stats.emitted / self.stats.decode_passes

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.stats.emitted / self.seconds

    @property
    def pass_ms(self) -> float:
        """Of the target and all else but proposing."""
        return 1e3 * (self.seconds - self.proposing) / self.stats.decode_passes

    @property
    def proposing_ms(self) -> float:
        """Of a pass."""
        return 1e3 * self.proposing / self.stats.decode_passes


@dataclass(frozen=True)
class Measured:
    """What a configuration answered, and the engine of `none` beside it, by prompt."""

    name: str
    answers: Mapping[str, Answered]
    plain: Mapping[str, Answered]

    def totals(self, names: Iterable[str] | None = None) -> tuple[Total, Total]:
        """Of the configuration, and of `none`: over these prompts, or over all."""
        chosen = list(self.answers if names is None else names)
        return Total.of(self.answers[name] for name in chosen), Total.of(self.plain[name] for name in chosen)

    @property
    def is_drafted_chain(self) -> bool:
        """A drafter's own tokens one behind the other, in all passes."""
        stats = self.totals()[0].stats
        return "chain" in self.name and 0 < stats.drafted == stats.verified_nodes


def report(results: Sequence[Measured], slices: Mapping[str, Sequence[str]], conditions: str) -> str:
    """`conditions` are machine, runner, precision and length, in words."""
    groups = " | ".join(f"{group} ({len(names)})" for group, names in slices.items())
    prompts = sum(map(len, slices.values()))
    command = shlex.join(["python", "-m", "scripts.bench.proposers", *sys.argv[1:]])
    lines = [
        "# What each proposer brings",
        "",
        f"Command: `{command}`. {conditions}, {prompts} prompts,",
        "one request at a time. No GPU.",
        "",
        "## Tokens per pass",
        "",
        f"| configuration | all | {groups} |",
        f"|---|{'---:|' * (1 + len(slices))}",
        *(tokens_row(item, slices) for item in results),
        "",
        "## Speed",
        "",
        "Of passes that decode, with the speed-up over `none` for all prompts and in each slice. Equal: answers that "
        "are `none`'s token by token; in half precision near-ties may fall either way.",
        "",
        f"| configuration | tokens/s | target pass, ms | proposing, ms a pass | equal | speed-up | {groups} |",
        f"|---|{'---:|' * (5 + len(slices))}",
        *(speed_row(item, slices) for item in results),
        "",
        "## Beside the formula",
        "",
        "Leviathan et al. (2023): with acceptance a of every drafted token, depth k and a draft step that costs c of a "
        "plain pass, tokens per pass are (1 - a^(k+1)) / (1 - a), and the speed-up is these / (1 + k c). It takes "
        "acceptance as the same at every depth, and a pass over k + 1 rows as one over a single row; what such a pass "
        "really costs, in plain passes, is in the last column but one.",
        "",
        "| chain | a | c | tokens per pass, formula | measured | speed-up, formula | cost of a pass | measured |",
        f"|---|{'---:|' * 7}",
        *(predicted_row(item) for item in results if item.is_drafted_chain),
        "",
    ]
    return "\n".join(lines)


def tokens_row(measured: Measured, slices: Mapping[str, Sequence[str]]) -> str:
    """Tokens per pass over all prompts and in each slice."""
    parts = [measured.totals(names)[0] for names in (None, *slices.values())]
    return f"| {measured.name} | {' | '.join(f'{part.tokens_per_pass:.2f}' for part in parts)} |"


def speed_row(measured: Measured, slices: Mapping[str, Sequence[str]]) -> str:
    """Speed, its parts, and speed-ups over all prompts and in each slice."""
    total, _ = measured.totals()
    equal = sum(measured.answers[name].ids == measured.plain[name].ids for name in measured.plain)
    pairs = [measured.totals(names) for names in (None, *slices.values())]
    ups = " | ".join(f"{mine.rate / plain.rate:.2f}" for mine, plain in pairs)
    times = f"{total.pass_ms:.1f} | {total.proposing_ms:.1f}"
    return f"| {measured.name} | {total.rate:.1f} | {times} | {equal} of {len(measured.plain)} | {ups} |"


def predicted_row(measured: Measured) -> str:
    """A chain beside the formula of Leviathan et al. (2023, theorem 3.8)."""
    total, plain = measured.totals()
    stats, depth = total.stats, len(total.stats.drafted_at)
    rate = stats.accepted / (stats.accepted + stats.rejected_steps)
    cost = total.proposing_ms / depth / plain.pass_ms
    tokens = sum(rate**drafted for drafted in range(depth + 1))
    formula, real = tokens / (1 + depth * cost), total.rate / plain.rate
    width = total.pass_ms / plain.pass_ms
    cells = f"{rate:.2f} | {cost:.3f} | {tokens:.2f} | {total.tokens_per_pass:.2f} | {formula:.2f} | {width:.2f}"
    return f"| {measured.name} | {cells} | {real:.2f} |"
