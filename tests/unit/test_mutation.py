"""The script that mutates decoding: which mutants it makes, how one gets into a process, and which tests see it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cosmic_ray.mutating import mutate_code

from scripts.mutation import __main__ as command
from scripts.mutation import planting
from scripts.mutation.mutants import Mutant, Source, sample, sites, sources
from scripts.mutation.reach import Reach
from scripts.mutation.report import Finding, Kind, explanations, written
from scripts.mutation.running import Outcome, Trial
from scripts.mutation.session import Session
from scripts.mutation.statements import RemoveStatement

CODE = '''"""A module."""
from __future__ import annotations
from dataclasses import dataclass
from typing import Protocol

LIMIT = 3


@dataclass(frozen=True, slots=True)
class Pair:
    a: int | None = None

    @property
    def doubled(self) -> int | None:
        return 2 * self.a


class Shape(Protocol):
    @property
    def sides(self) -> int: ...


def smaller(x: int, *, y: int | float) -> bool:
    seen = []
    for a, b in zip([x], [y], strict=True):
        seen.append(a < b)
    return seen[0]
'''


def source_of(folder: Path, code: str) -> Source:
    path = folder / "package" / "module.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    return Source(path, folder)


def everything(folder: Path, code: str = CODE) -> list[Mutant]:
    return sample(source_of(folder, code), 1.0, 0, 1)


def test_mutants_are_in_expressions_and_statements_and_never_in_what_nobody_evaluates(tmp_path: Path) -> None:
    lines = {(mutant.line, mutant.definition) for mutant in everything(tmp_path)}
    assert lines == {
        (6, ""),
        (9, ""),
        (13, "Pair"),
        (15, "Pair.doubled"),
        (25, "smaller"),
        (26, "smaller"),
        (27, "smaller"),
    }


def test_a_sample_is_a_share_that_depends_on_the_seed_and_on_the_text_around_alone(tmp_path: Path) -> None:
    code = CODE + "".join(f"\n\ndef f{i}(x: int) -> int:\n    return x + {i} * x\n" for i in range(10))
    source = source_of(tmp_path, code)
    first = sample(source, 0.5, 0, 1)
    assert first == sample(Source(source.path, tmp_path), 0.5, 0, 1)
    assert len(first) == round(0.5 * len(sites(source, 1)))
    assert [mutant.line for mutant in first] == sorted(mutant.line for mutant in first)
    assert {mutant.after for mutant in first} != {mutant.after for mutant in sample(source, 0.5, 0, 2)}
    edited = sample(source_of(tmp_path, code.replace("return x + 4 * x", "return x")), 0.5, 0, 1)
    same = {(mutant.definition, mutant.after) for mutant in first} & {(m.definition, m.after) for m in edited}
    assert len(same) >= len(first) - 4  # the share is of fewer sites, so that the last in rank fall out
    assert len(sample(source, 0.0, 3, 1)) == 3


@pytest.mark.parametrize("example", RemoveStatement.examples(), ids=lambda example: example.pre_mutation_code.strip())
def test_statements_that_act_are_left_out(example: object) -> None:
    before, after = example.pre_mutation_code, example.post_mutation_code  # type: ignore[attr-defined]
    assert mutate_code(before, RemoveStatement(), 0) == after


@pytest.mark.parametrize("code", ["x = 1\n", '"""Text."""\n', "x: int = 1\n", "return x\n", "x.y\n", "x[0]\n"])
def test_statements_that_only_name_or_tell_stay(code: str) -> None:
    assert mutate_code(code, RemoveStatement(), 0) is None


def test_a_patched_function_does_what_the_mutant_does(tmp_path: Path) -> None:
    mutants = [mutant for mutant in everything(tmp_path) if not mutant.at_import]
    assert {mutant.definition for mutant in mutants} == {"Pair.doubled", "smaller"}
    spec = importlib.util.spec_from_file_location("package.module", tmp_path / "package/module.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    pair = module.Pair(4)
    assert pair.doubled == 8
    planting.patch(next(mutant for mutant in mutants if mutant.after in ("return 3 * self.a", "return 1 * self.a")))
    assert pair.doubled in (4, 12)
    del sys.modules[spec.name]


def test_a_planted_module_is_imported_in_place_of_the_file(tmp_path: Path) -> None:
    mutant = next(mutant for mutant in everything(tmp_path) if mutant.line == 6)
    assert mutant.at_import
    planter = planting.Planter(mutant)
    assert planter.find_spec("package.other", None) is None
    spec = planter.find_spec("package.module", None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["dataclass"] = None
    sys.modules[spec.name] = module
    planter.exec_module(module)
    assert module.LIMIT in (2, 4)
    del sys.modules[spec.name]


def test_tests_that_run_the_line_come_one_case_of_each_first_and_within_a_budget(tmp_path: Path) -> None:
    source = source_of(tmp_path, CODE)
    seconds = {"t::a[1]": 0.1, "t::a[2]": 0.2, "t::b": 1.0, "t::c": 0.3, "t::d": 0.4}
    lines = {test: {source.name: [27]} for test in seconds} | {"t::c": {source.name: [15]}, "t::d": {"other.py": [27]}}
    reach = Reach(seconds, lines)
    assert reach.tests(source, 27, 10.0) == ["t::a[1]", "t::b", "t::a[2]"]
    assert reach.tests(source, 27, 0.35) == ["t::a[1]", "t::a[2]"]
    assert reach.tests(source, 6, 10.0) == ["t::a[1]", "t::c", "t::b", "t::a[2]"]


def test_a_session_goes_on_where_it_ended_and_tries_survivors_again(tmp_path: Path) -> None:
    mutants = everything(tmp_path)
    session = Session(tmp_path / "session")
    session.keep(mutants[0], Trial(Outcome.SURVIVED))
    session.keep(mutants[1], Trial(Outcome.KILLED, "t::a", 1.0))
    session = Session(tmp_path / "session")
    assert [session.is_settled(mutant, again=False) for mutant in mutants[:3]] == [True, True, False]
    assert [session.is_settled(mutant, again=True) for mutant in mutants[:3]] == [False, True, False]
    session.keep(mutants[0], Trial(Outcome.KILLED, "t::b", 1.0))
    assert session.first[mutants[0].key].survived and not session.last[mutants[0].key].survived


def test_the_report_counts_survivors_against_the_tests_and_tells_what_is_known(tmp_path: Path) -> None:
    mutants = everything(tmp_path)
    killed, survived = Trial(Outcome.KILLED, "t::a"), Trial(Outcome.SURVIVED)
    findings = [Finding(mutants[0], killed, killed), Finding(mutants[1], survived, killed)]
    findings += [Finding(mutant, survived, survived) for mutant in mutants[2:4]]
    file = tmp_path / "explained.json"
    same = {"file": mutants[2].file, "after": mutants[2].after, "kind": "equivalent", "why": "it rains"}
    file.write_text(json.dumps([same]))
    text = written(findings, "command", "about", explanations(file))
    assert "**2 of 4 killed: 50.0 %**" in text and "without these it is 66.7 %" in text
    assert "it was 1 of 4, 25.0 %" in text
    assert "| **all** | 4 | 2 | 0 | 0 | 2 | 0 |" in text
    assert text.count("*equivalent*: it rains") == 1 and text.count("*not looked at*") == 1


def test_what_is_mutated_run_and_explained_is_there() -> None:
    found = sources(command.ROOT, command.PACKAGE)
    assert {"verify", "scheduler", "stateful"} <= {source.path.stem for source in found}
    for argument in command.TESTS:
        pattern = argument.removeprefix("--ignore-glob=")
        assert list(command.ROOT.glob(pattern)), f"{argument} names nothing"
    names = {source.name for source in found}
    known = explanations()
    assert known and {row.file for row in known.values()} <= names
    assert all(row.why for row in known.values()) and Kind.OPEN.value == "open"


@pytest.mark.slow
def test_the_command_finds_what_the_tests_of_a_module_notice(tmp_path: Path) -> None:
    options = {"modules": "queues", "share": 0, "least": 3, "budget": 2, "jobs": 1}
    options |= {"tests": "tests/unit/test_queues.py", "session": tmp_path / "session", "output": tmp_path / "report.md"}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    run = [sys.executable, "-m", "scripts.mutation", *arguments]
    done = subprocess.run(run, cwd=command.ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "| **all** | 3 | 3 |" in (tmp_path / "report.md").read_text()
