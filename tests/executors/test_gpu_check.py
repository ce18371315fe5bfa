"""`scripts/gpu-check`: what it refuses, and that its checks run and can fail. No GPU is needed for any of it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from scripts.gpu_check import choices
from scripts.gpu_check.__main__ import main
from scripts.gpu_check.checks import NO_GPU, Check
from scripts.gpu_check.choices import BothWays
from scripts.gpu_check.equality import Schedule, all_equal, drafts_pass, equal_within_margin
from scripts.gpu_check.report import Section, render
from scripts.gpu_check.running import Text
from scripts.gpu_check.speed import Speed
from scripts.gpu_check.subject import TINY, make
from scripts.gpu_check.tensorrt_llm.signatures import TABLE
from tests.fakes.installed import tensorrt_llm_double
from tests.plans import plan_of
from trtspec.decoding.chooser import HOST
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.stats import SpeculationStats
from trtspec.decoding.verify import Outcome
from trtspec.executors.embedded.kernel_chooser import KernelChooser
from trtspec.types import PassRecord

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
PLAIN, DRAFTED = Schedule(0, 1), Schedule(8, 8)


def said(*ids: int, accepted: int = 0) -> list[Text]:
    return [Text(list(ids), [PassRecord(0, (1,) * accepted, accepted, accepted + 1)])]


def test_a_schedule_that_says_something_else_fails() -> None:
    assert all_equal("", [[1, 2]], {PLAIN: said(1, 2), DRAFTED: said(1, 2)}).passed
    check = all_equal("", [[1, 2]], {PLAIN: said(1, 2), DRAFTED: said(1, 3)})
    assert not check.passed and check.detail == "depth 8, 8 in flight: prompt 0 differs from token 1 on"
    assert not all_equal("", [[1, 2]], {PLAIN: said(1)}).passed


def test_drafts_must_have_been_accepted_where_there_were_any() -> None:
    shallow = Schedule(1, 1)
    assert drafts_pass("", {PLAIN: said(1), shallow: said(1, accepted=1), DRAFTED: said(1, accepted=2)}).passed
    assert not drafts_pass("", {PLAIN: said(1), shallow: said(1, accepted=1), DRAFTED: said(1)}).passed
    assert not drafts_pass("", {PLAIN: said(1, accepted=1), shallow: said(1, accepted=1), DRAFTED: said(1)}).passed


@pytest.mark.parametrize(("steps", "passed"), [(8.0, True), (8.5, False)])
def test_texts_may_part_at_a_near_tie_only(steps: float, passed: bool) -> None:
    with patch("scripts.gpu_check.equality.lead", return_value=steps) as lead:
        found = {PLAIN: said(1, 2, 3, 4), DRAFTED: said(1, 2, 9, 9)}
        assert equal_within_margin("", None, [(5, 6)], [[1, 2, 3, 4]], found).passed is passed
    lead.assert_called_once_with(None, [5, 6, 1, 2])


def test_texts_that_part_at_once_compare_nothing() -> None:
    with patch("scripts.gpu_check.equality.lead", return_value=0.0):
        assert not equal_within_margin("", None, [(5,)], [[1, 2, 3, 4]], {PLAIN: said(9, 9, 9, 9)}).passed


def test_the_report_counts_what_failed() -> None:
    stats = SpeculationStats.of(said(1, 2, 3, accepted=2)[0].passes)
    section = Section("a model", [Speed("ngram", 1, True, seconds=2.0, tokens=30, passes=10, stats=stats)])
    text = render("here", [Check("a", True, "x"), Check("b", False, "y")], [section], 7.0)
    assert "here. In 7 s, 1 of 2 checks failed." in text
    assert "| b | NO | y |" in text
    assert "| ngram | 1 | on | 15.0 | 200.00 | 3.00 | 1.00 |" in text


def test_choices_that_differ_in_any_row_are_counted() -> None:
    class Saying:
        def __init__(self, bonus: int) -> None:
            self.outcome = Outcome(
                *(torch.tensor(column) for column in ([[0], [-1]], [1, 0], [[4, bonus], [5, -1]], [bonus, 5]))
            )

        def exact(self, rows: PassRows, editor: Editor) -> Outcome:
            return self.outcome

        rejection = exact

    rows = PassRows(plan_of(), Draft.empty(0), torch.zeros(0, 8))
    for other, differing in ((6, 0), (7, 1)):
        both = BothWays(Saying(6), Saying(other))
        assert both.exact(rows, Editor()).bonus.tolist() == both.rejection(rows, Editor()).bonus.tolist() == [6, 5]
        assert (both.rows, both.accepted, both.differing) == (4, 2, 2 * differing)
        assert both.drawn == 0, "rows without a plan"


def test_choices_are_compared_by_both_rules_where_kernels_run_and_nowhere_else(tmp_path: Path) -> None:
    subject = make(TINY, tmp_path)

    def chosen() -> list[Check]:
        return choices.choices(subject, subject.prompts(1), 6, CPU)

    def off(rule: str) -> AbstractContextManager[object]:
        def wrong(chooser: KernelChooser, rows: PassRows, editor: Editor) -> Outcome:
            outcome: Outcome = getattr(HOST, rule)(rows, editor)
            return outcome._replace(bonus=outcome.bonus + 1)

        return patch.object(choices.KernelChooser, rule, wrong)

    found = chosen()
    assert [check.passed for check in found] == [True] * 3, found
    with off("rejection"):
        assert [check.passed for check in chosen()] == [True, True, False]
    with off("exact"):
        assert not chosen()[1].passed
    with patch.object(choices, "why_not", return_value="RuntimeError: Failed to find C compiler."):
        (told,) = chosen()
    assert not told.passed
    assert told.detail == "RuntimeError: Failed to find C compiler.; so their choices are not compared with PyTorch's"


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(torch.cuda, "is_available", return_value=False):
        assert main(["--embedded"]) == NO_GPU
    assert "finds no GPU, so nothing was checked" in capsys.readouterr().err


def test_what_a_mode_would_ignore_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--embedded", "--tune"])
    assert "--tune means nothing to --embedded; --kernels takes it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_runs_on_a_cpu(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    command = [sys.executable, "-m", "scripts.gpu_check", "--embedded", "--device", "cpu", "--quick"]
    done = subprocess.run([*command, "--output", str(report)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 12 checks passed" in report.read_text()
    assert report.read_text() in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_method_of_tensorrt_llm_runs_over_the_double(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    command = [sys.executable, "-m", "scripts.gpu_check", "--tensorrt-llm", "--quick", "--output", str(report)]
    with tensorrt_llm_double():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 29 checks passed" in report.read_text()
    assert json.loads((tmp_path / "report.signatures.json").read_text())


def imported(file: Path) -> Iterator[Path]:
    """Files of `scripts` that a module names in its imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scripts."):
            whole = Path(*str(node.module).split("."))
            names = [whole.with_suffix(".py"), *(whole / f"{item.name}.py" for item in node.names)]
            yield from (name for name in names if (ROOT / name).is_file())


def test_the_image_has_all_that_gpu_check_needs() -> None:
    lines = (ROOT / "scripts" / "deploy" / "Dockerfile").read_text().splitlines()
    copied = {Path(source) for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]}

    def in_image(file: Path) -> bool:
        return bool(copied & {file, *file.parents})

    needed = {Path("scripts/gpu-check"), Path("scripts/gpu_check/__main__.py"), TABLE.relative_to(ROOT)}
    left = [Path("scripts/gpu_check/__main__.py")]
    while left:
        found = set(imported(ROOT / left.pop())) - needed
        needed |= found
        left += found
    assert len(needed) > 12
    assert [str(file) for file in sorted(needed) if not in_image(file)] == []
