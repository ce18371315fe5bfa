"""Which tests run which lines, and how long they take: one run of all of them under coverage, before any mutant."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import coverage
import pytest

from scripts.mutation.mutants import Source
from scripts.mutation.running import OPTIONS, be_quiet


@dataclass(frozen=True, slots=True)
class Reach:
    """What each test that passes took, and the lines of each file that it ran."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, Sequence[int]]]
    """By test and file."""

    def tests(self, source: Source, line: int, budget: float) -> list[str]:
        """Tests that can notice a change in a line, as many as take `budget` seconds.

        First the quickest case of each test function, quickest first, then the second ones, and so on. What runs when a
        module is imported, such as a default, belongs to all tests that run any of its functions.
        """
        wanted = _function_lines(source) if source.at_import(line) else _statement_lines(source.text, line)
        found = [test for test, files in self.lines.items() if not wanted.isdisjoint(files.get(source.name, ()))]
        cases: dict[str, int] = {}
        turns = []
        for test in sorted(found, key=lambda test: self.seconds[test]):
            function = test.partition("[")[0]
            turns.append((cases.setdefault(function, 0), self.seconds[test], test))
            cases[function] += 1
        chosen, spent = [], 0.0
        for _, seconds, test in sorted(turns):
            if spent + seconds <= budget:
                chosen.append(test)
                spent += seconds
        return chosen

    def total(self, tests: Sequence[str]) -> float:
        return sum(self.seconds[test] for test in tests)

    def joined(self, later: Reach) -> Reach:
        """With what was measured later in place of what is known of the same tests."""
        return Reach({**self.seconds, **later.seconds}, {**self.lines, **later.lines})


def load(file: Path) -> Reach:
    return Reach(**json.loads(file.read_text())) if file.exists() else Reach({}, {})


def measure(root: Path, package: str, chosen: Sequence[str], file: Path) -> None:
    """Run tests that arguments of pytest choose, where the package is not loaded yet, and add what they reach."""
    be_quiet(file.with_suffix(".log"))
    measured = coverage.Coverage(source=[str(root / package)], data_file=None, config_file=False)
    watch = _Watch(measured)
    measured.start()
    code = pytest.main([*OPTIONS, *chosen], plugins=[watch])
    measured.stop()
    if code == pytest.ExitCode.OK:
        data = measured.get_data()
        lines: dict[str, dict[str, list[int]]] = {}
        for name in data.measured_files():
            for line, tests in data.contexts_by_lineno(name).items():
                for test in filter(None, tests):
                    of_test = lines.setdefault(test, {}).setdefault(Path(name).relative_to(root).as_posix(), [])
                    of_test.append(line)
        reach = Reach({test: watch.seconds[test] for test in lines if test in watch.seconds}, lines)
        file.write_text(json.dumps(asdict(load(file).joined(reach))))
    sys.exit(code)


class _Watch:
    """Tells coverage which test runs, and measures what each takes."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(item.nodeid)
        result = yield
        self._measured.switch_context("")
        return result  # noqa: B901

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def _statement_lines(text: str, line: int) -> set[int]:
    """The lines of the innermost statement, without its body."""
    around = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt) and _covers(node, line))
    innermost = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    body = getattr(innermost, "body", None)
    return set(range(innermost.lineno, body[0].lineno if body else (innermost.end_lineno or 0) + 1))


def _function_lines(source: Source) -> set[int]:
    return {line for line in range(1, len(source.lines) + 1) if not source.at_import(line)}


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)
