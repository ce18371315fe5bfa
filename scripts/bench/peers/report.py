"""From the lines of a run to a report for people: speeds, ratios ours / peer with their spread, machine, versions.

Pure: results go in, Markdown comes out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scripts.bench.peers.jobs import Mode
from scripts.bench.peers.records import Measurement, Results

ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Label:
    """How the report presents an engine."""

    weights: str
    ours: bool


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of the rounds, and their extremes."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Collection[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int) -> str:
        if self.least == self.most:
            return f"{self.middle:.{digits}f}"
        return f"{self.middle:.{digits}f} ({self.least:.{digits}f}..{self.most:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Column:
    """One setting that engines are compared in."""

    title: str
    belongs: Callable[[Measurement], bool]


@dataclass(frozen=True, slots=True)
class Section:
    """One mode of the report."""

    title: str
    note: str
    value: Callable[[Measurement], float]
    digits: int
    columns: Sequence[Column]
    more_is_better: bool = True


def render(results: Results, labels: Mapping[str, Label]) -> str:
    """The report as Markdown."""
    parts = ["# Ours and its peers on the same work", _about(results)]
    for mode, found in by_mode(results.measurements).items():
        parts += _section(_describe(mode, found), found, labels)
    parts += ["## Loading", _loading(results.measurements, labels)]
    parts += [_failures(results), "## Versions", _versions(results.measurements, labels)]
    return "\n\n".join(part for part in parts if part) + "\n"


def by_mode(measurements: Sequence[Measurement]) -> dict[Mode, list[Measurement]]:
    """The measurements of each mode that was measured: a setting of one is none of another's."""
    found = {mode: [item for item in measurements if item.mode == mode.value] for mode in Mode}
    return {mode: items for mode, items in found.items() if items}


def _describe(mode: Mode, found: Sequence[Measurement]) -> Section:
    in_flight = [_in_flight(number) for number in sorted({item.concurrency for item in found})]
    lengths = [_prompt_of(length) for length in sorted({item.prompt_tokens for item in found})]
    match mode:
        case Mode.PLAIN:
            note = "Tokens per second of all requests together, greedy, speculation off."
            return Section("Plain decoding", note, _speed, 1, in_flight)
        case Mode.SPECULATION:
            note = "Tokens per second with each engine's own prompt lookup; the texts are those of plain decoding."
            return Section("Speculation", note, _speed, 1, in_flight)
        case Mode.PREFILL:
            note = "Milliseconds from a request to its first token, one request at a time."
            return Section("First token of a long prompt", note, _milliseconds, 0, lengths, more_is_better=False)
        case Mode.CONTEXT:
            note = "Tokens per second of decoding alone, after a prompt of so many tokens, one request at a time."
            return Section("Decoding in a short and in a long context", note, _speed, 1, lengths)


def _in_flight(number: int) -> Column:
    return Column(f"{number} in flight", lambda item: item.concurrency == number)


def _prompt_of(length: int) -> Column:
    return Column(f"{length:,} tokens", lambda item: item.prompt_tokens == length)


def _speed(item: Measurement) -> float:
    return item.tokens_per_second


def _milliseconds(item: Measurement) -> float:
    return 1000 * item.seconds


def _section(section: Section, measurements: Sequence[Measurement], labels: Mapping[str, Label]) -> list[str]:
    """The figures, then for each of our variants its ratio to every peer."""
    present = {item.engine for item in measurements if any(column.belongs(item) for column in section.columns)}
    names = [name for name in labels if name in present]
    parts = [f"## {section.title}", section.note, _figures(section, measurements, names, labels)]
    peers = [name for name in names if not labels[name].ours]
    for own in (name for name in names if labels[name].ours):
        if peers:
            parts += [f"{own} / peer{'' if section.more_is_better else ' (less is better)'}:"]
            parts += [_ratios(section, measurements, own, peers, labels)]
    return parts


def _figures(
    section: Section, measurements: Sequence[Measurement], names: Sequence[str], labels: Mapping[str, Label]
) -> str:
    rows = []
    for name in names:
        cells = []
        for column in section.columns:
            values = by_round(measurements, name, column, section.value)
            cells.append(Spread.of(values.values()).text(section.digits) if values else ABSENT)
        rows.append([name, labels[name].weights, *cells])
    return table(["engine", "weights", *(column.title for column in section.columns)], rows)


def _ratios(
    section: Section,
    measurements: Sequence[Measurement],
    own: str,
    peers: Sequence[str],
    labels: Mapping[str, Label],
) -> str:
    rows = []
    for peer in peers:
        cells = []
        for column in section.columns:
            ours = by_round(measurements, own, column, section.value)
            theirs = by_round(measurements, peer, column, section.value)
            ratio = ratios(ours, theirs)
            cells.append(ratio.text(2) if ratio else ABSENT)
        rows.append([peer, labels[peer].weights, *cells])
    return table(["peer", "weights", *(column.title for column in section.columns)], rows)


def by_round(
    measurements: Iterable[Measurement], engine: str, column: Column, value: Callable[[Measurement], float]
) -> dict[int, float]:
    """An engine's values in one setting."""
    return {item.round: value(item) for item in measurements if item.engine == engine and column.belongs(item)}


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Spread | None:
    """Round by round, because the machine may differ between rounds; None where no round has both."""
    both = [ours[number] / theirs[number] for number in ours if number in theirs]
    return Spread.of(both) if both else None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _about(results: Results) -> str:
    run, machine = results.run, results.run.machine
    rows = [
        ["command", f"`{run.command}`"],
        ["commit", run.commit or "unknown"],
        ["started", run.started],
        ["processor", f"{machine['processor']}, {machine['cores']} cores, {run.threads} threads for every engine"],
        ["instructions", ", ".join(machine["flags"])],
        ["memory", f"{machine['memory_gib']} GiB"],
        [
            "memory copy",
            f"{machine['copy_gb_per_s']} GB/s (read and written); reading alone {machine['read_gb_per_s']}",
        ],
        ["system", machine["system"]],
    ]
    return (
        "Every figure is the median of the rounds, with the least and the most in brackets. In each round all engines "
        "run one after another in processes of their own. Where weights differ, so does the precision: such ratios do "
        "not compare like with like.\n\n" + table(["", ""], rows)
    )


def _loading(measurements: Sequence[Measurement], labels: Mapping[str, Label]) -> str:
    """How long each engine took to open, over all of its measurements."""
    rows = []
    for name in labels:
        if seconds := [item.load_seconds for item in measurements if item.engine == name]:
            rows.append([name, labels[name].weights, Spread.of(seconds).text(1)])
    return table(["engine", "weights", "seconds"], rows)


def _failures(results: Results) -> str:
    if not results.failures:
        return ""
    return "## Not measured\n\n" + "\n".join(f"- {failure}" for failure in results.failures)


def _versions(measurements: Iterable[Measurement], labels: Mapping[str, Label]) -> str:
    found = {item.engine: item.versions for item in measurements}
    rows = [
        [name, ", ".join(f"{package} {version}" for package, version in found[name].items())]
        for name in labels
        if name in found
    ]
    return table(["engine", "packages"], rows)
