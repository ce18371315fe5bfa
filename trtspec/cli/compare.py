"""`trtspec generate --compare`: the same prompt with speculation off and on.

Speed-up is always shown with its two factors: tokens per pass x (baseline pass time / speculative pass time).
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from trtspec.cli.render import milliseconds, number, tokens_per_second
from trtspec.client import Client, Completion, Prompt
from trtspec.errors import ConfigError

EXACT_DTYPE = "float32"
"""In half precision, near-ties of the two top logits may fall differently in passes of different size."""


@dataclass(frozen=True, slots=True)
class Side:
    """The run of one side whose speed is the median, so that its factors multiply exactly."""

    tokens_per_second: float
    time_to_first_token: float
    tokens_per_pass: float
    pass_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides, and whether they said the same."""

    baseline: Side
    speculation: Side
    equal_text: bool

    @property
    def speed_up(self) -> float:
        return self.speculation.tokens_per_second / self.baseline.tokens_per_second

    @property
    def pass_factor(self) -> float:
        return self.speculation.tokens_per_pass / self.baseline.tokens_per_pass

    @property
    def time_factor(self) -> float:
        return self.baseline.pass_seconds / self.speculation.pass_seconds


async def run(
    client: Client, prompt: Prompt, arguments: dict[str, Any], repeat: int, dtype: str, *, as_json: bool
) -> int:
    """Measure, print, and return 1 where texts differ that must not."""
    if repeat < 1:
        raise ConfigError(f"--repeat is {repeat}; allowed is 1 or more")
    comparison = await measure(client, prompt, arguments, repeat)
    if as_json:
        print(json.dumps(as_dict(comparison)))
    else:
        console = Console(highlight=False)
        console.print(table(comparison))
        console.print(verdict(comparison, dtype))
    return 0 if comparison.equal_text or dtype != EXACT_DTYPE else 1


async def measure(client: Client, prompt: Prompt, arguments: dict[str, Any], repeat: int) -> Comparison:
    """Run both sides by turns, so that a machine that slows down slows both."""
    shared = {**arguments, "seed": secrets.randbits(63) if arguments["seed"] is None else arguments["seed"]}
    runs: dict[str, list[Completion]] = {"off": [], "on": []}
    for turn in range(repeat):
        for mode in ("off", "on") if turn % 2 == 0 else ("on", "off"):
            depth = shared["max_draft_tokens"] if mode == "on" else None
            options = {**shared, "speculation": mode, "max_draft_tokens": depth}
            runs[mode].append(await client.complete(prompt, **options))
    texts = {answer.token_ids for side in runs.values() for answer in side}
    return Comparison(middle(runs["off"]), middle(runs["on"]), equal_text=len(texts) == 1)


def middle(runs: list[Completion]) -> Side:
    """The median run of a side."""
    sides = sorted((side for run in runs if (side := _side(run))), key=lambda side: side.tokens_per_second)
    if not sides:
        raise ConfigError("the answer is too short to measure; ask for more tokens with --max-tokens or --ignore-eos")
    return sides[(len(sides) - 1) // 2]


def _side(run: Completion) -> Side | None:
    finished, stats = run.finished, run.finished.stats
    rate = tokens_per_second(finished)
    if not rate or not stats or not stats.tokens_per_pass or not finished.time_to_first_token:
        return None
    return Side(rate, finished.time_to_first_token, stats.tokens_per_pass, stats.tokens_per_pass / rate)


def table(comparison: Comparison) -> Table:
    """Baseline against speculation."""
    result = Table("", title="one request at a time, median run", title_justify="left")
    for name in ("baseline", "speculation", "ratio"):
        result.add_column(name, justify="right")
    off, on = comparison.baseline, comparison.speculation
    result.add_row(
        "tokens per second",
        number(off.tokens_per_second, 1),
        number(on.tokens_per_second, 1),
        number(comparison.speed_up, 2),
    )
    result.add_row(
        "time to first token",
        milliseconds(off.time_to_first_token),
        milliseconds(on.time_to_first_token),
        number(on.time_to_first_token / off.time_to_first_token, 2),
    )
    result.add_row(
        "tokens per pass",
        number(off.tokens_per_pass, 2),
        number(on.tokens_per_pass, 2),
        number(comparison.pass_factor, 2),
    )
    result.add_row(
        "time per pass",
        milliseconds(off.pass_seconds),
        milliseconds(on.pass_seconds),
        number(1 / comparison.time_factor, 2),
    )
    return result


def verdict(comparison: Comparison, dtype: str) -> str:
    """The speed-up with its factors, and whether the texts are the same."""
    factors = f"{comparison.pass_factor:.2f} (tokens per pass) x {comparison.time_factor:.2f} (pass time)"
    if comparison.equal_text:
        same = "the texts are equal"
    elif dtype == EXACT_DTYPE:
        same = "THE TEXTS DIFFER, which float32 does not allow: please report it"
    else:
        same = f"the texts differ: in {dtype}, near-ties of the two top logits may fall differently"
    return f"speed-up {comparison.speed_up:.2f} = {factors}; {same}"


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison for programs."""
    off, on = comparison.baseline, comparison.speculation
    return {
        "event": "comparison",
        "baseline": asdict(off),
        "speculation": asdict(on),
        "speed_up": comparison.speed_up,
        "tokens_per_pass_factor": comparison.pass_factor,
        "pass_time_factor": comparison.time_factor,
        "equal_text": comparison.equal_text,
    }
