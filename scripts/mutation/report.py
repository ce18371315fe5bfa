"""The report of a run: how many mutants of each module tests noticed, and what is known of those that they did not."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from scripts.mutation.mutants import ASSERTIONS, Mutant
from scripts.mutation.running import Outcome, Trial

EXPLAINED = Path(__file__).parent / "explained.json"


class Kind(Enum):
    """Why a mutant may survive."""

    EQUIVALENT = "equivalent"
    """It decides the same for every input that can occur."""
    SPEED = "speed"
    """It decides the same, with other time or memory."""
    MARGIN = "margin"
    """It moves a constant or a bound that is a matter of taste, or by less than any input shows."""
    OPEN = "open"
    """A test could notice it, and none does."""


SAME = (Kind.EQUIVALENT, Kind.SPEED)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a person found out about a survivor."""

    file: str
    after: str
    """The changed lines."""
    kind: Kind
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A mutant and what became of it."""

    mutant: Mutant
    first: Trial
    last: Trial

    @property
    def survived(self) -> bool:
        return self.last.survived


def explanations(file: Path = EXPLAINED) -> dict[tuple[str, str], Explanation]:
    """By file and changed lines."""
    rows = (Explanation(**{**row, "kind": Kind(row["kind"])}) for row in json.loads(file.read_text()))
    return {(row.file, row.after): row for row in rows}


def written(findings: Sequence[Finding], command: str, about: str, known: Mapping[tuple[str, str], Explanation]) -> str:
    """The report as Markdown."""
    from scripts.bench.peers.machine import cpu_name  # loads torch, which tests must not find loaded

    survivors = [finding for finding in findings if finding.survived]
    late = [finding for finding in findings if finding.first.survived and not finding.survived]
    parts = [
        "# Mutation testing of `trtspec/decoding`",
        f"`{command}`, Python {platform.python_version()}, {os.cpu_count()} threads of {cpu_name()}.",
        about,
        *_method(),
        "## Result",
        *_totals(findings, late, [known.get((item.mutant.file, item.mutant.after)) for item in survivors]),
        "\n".join(_table(findings)),
        "## Survivors",
        *(_survivor(item, known.get((item.mutant.file, item.mutant.after))) for item in survivors),
    ]
    if late:
        parts += ["## Noticed since the first run", "\n".join(_noticed(late))]
    return "\n\n".join(parts) + "\n"


def _method() -> Iterator[str]:
    yield (
        "A mutant is the code with one small change: cosmic-ray's operators (signs, comparisons, numbers, `and`, `or`, "
        "`not`, `True`, loops, decorators, exceptions), and one of ours that leaves out a statement. Each place in the "
        "code gives at most one. Annotations and protocols give none, and neither do the keywords "
        + ", ".join(f"`{name}`" for name in ASSERTIONS)
        + ", which only assert. A mutant is killed where a test fails, where its module or a test cannot be imported "
        "any more, and where tests take many times as long as they do."
    )


def _totals(findings: Sequence[Finding], late: Sequence[Finding], known: Sequence[Explanation | None]) -> Iterator[str]:
    killed = len(findings) - len(known)
    same = sum(1 for item in known if item is not None and item.kind in SAME)
    yield (
        f"**{killed} of {len(findings)} killed: {_share(killed, len(findings))}**, with every survivor counted against "
        f"the tests. Of the {len(known)} survivors {same} decide the same as the code does; without these it is "
        f"{_share(killed, len(findings) - same)}."
    )
    if late:
        before = killed - len(late)
        yield (
            f"With the tests before, it was {before} of {len(findings)}, {_share(before, len(findings))}. Only the "
            f"survivors were tried again with the new tests, {len(late)} of which notice one; what was killed before "
            "counts as killed."
        )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "nothing"


def _table(findings: Iterable[Finding]) -> Iterator[str]:
    yield "| module | mutants | killed by a test | not importable | timeout | survived | not reached |"
    yield "|---|---|---|---|---|---|---|"
    by_file: dict[str, Counter[Outcome]] = {}
    for finding in findings:
        by_file.setdefault(finding.mutant.file, Counter())[finding.last.outcome] += 1
    total = sum(by_file.values(), Counter[Outcome]())
    for name, counts in [*sorted(by_file.items()), ("all", total)]:
        columns = (Outcome.KILLED, Outcome.BROKEN, Outcome.TIMEOUT, Outcome.SURVIVED, Outcome.UNREACHED)
        cells = [f"`{name}`" if name != "all" else "**all**", counts.total(), *(counts[column] for column in columns)]
        yield "| " + " | ".join(map(str, cells)) + " |"


def _survivor(finding: Finding, known: Explanation | None) -> str:
    mutant = finding.mutant
    why = f"*{known.kind.value}*: {known.why}" if known else "*not looked at*"
    place = f"`{mutant.file}` line {mutant.line}" + (f", `{mutant.definition}`" if mutant.definition else "")
    return f"{place}; {why}\n\n```diff\n{_diff(mutant)}\n```"


def _diff(mutant: Mutant) -> str:
    return f"- {mutant.before}\n+ {mutant.after}"


def _noticed(late: Sequence[Finding]) -> Iterator[str]:
    yield "| line | becomes | test |"
    yield "|---|---|---|"
    for finding in late:
        mutant = finding.mutant
        after = f"`{mutant.after}`" if mutant.after else f"nothing instead of `{mutant.before}`"
        cells = [f"`{mutant.file}` {mutant.line}", after, f"`{finding.last.killer or finding.last.outcome.value}`"]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
