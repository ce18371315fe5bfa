"""`scripts/gpu-check --kernels` without a GPU: what it needs, that its checks run and can fail, and its report."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from plugins import eager, eager_verification, launch, launch_verification
from plugins.eager_verification import ChainOutcome, law
from plugins.specs import KERNELS
from scripts.gpu_check.__main__ import main
from scripts.gpu_check.checks import FAILED, NO_GPU, WRONG, Check, Progress
from scripts.gpu_check.kernels import agreement, ahead, checking, tuning
from scripts.gpu_check.kernels import law as kept_law
from scripts.gpu_check.kernels.ahead import Seen
from scripts.gpu_check.kernels.chains import Shape
from scripts.gpu_check.kernels.comparing import Tolerance, difference, difference_in_bits
from scripts.gpu_check.kernels.driver import Function
from scripts.gpu_check.kernels.launches import Launch
from scripts.gpu_check.kernels.loads import FULL, Load
from scripts.gpu_check.kernels.operations import OPERATIONS
from scripts.gpu_check.kernels.report import Findings, render
from scripts.gpu_check.kernels.speeds import Skipped, Speed
from scripts.gpu_check.kernels.trees import random_trees
from tests.plugins.doubles import Clock, Doing, without_compiler

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
LOAD = Load(2, 2, 160)
ONLY = """
import importlib.abc, sys

class Forbid(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden}:
            raise ImportError(f"{{name}} is not to be had here")

sys.meta_path.insert(0, Forbid())
from scripts.gpu_check.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def needed_by(*names: str) -> set[str]:
    """Distributions, with all that they need."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        left += [re.split(r"[^\w.-]", item)[0] for item in wanted if "extra ==" not in item]
    return found


def others() -> set[str]:
    """Packages that come neither with PyTorch, Triton and NumPy nor with the repository."""
    kept = needed_by("torch", "triton", "numpy") | {"trtspec"}
    homes = importlib.metadata.packages_distributions()
    return {name for name, owners in homes.items() if not {re.sub(r"[-_.]+", "-", o).lower() for o in owners} & kept}


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = ONLY.format(forbidden=sorted(others()))
    command = [sys.executable, "-c", code, "--kernels", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_a_gpu_it_says_so_and_needs_pytorch_and_triton_only() -> None:
    assert {"transformers", "grpc", "gguf", "rich", "safetensors", "scipy"} <= others()
    done = run_alone()
    assert (done.returncode, done.stdout) == (NO_GPU, ""), done.stderr
    assert "finds no GPU, so nothing was checked" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_that_needs_no_gpu_runs_interpreted(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    done = run_alone("--device", "cpu", "--seed", "11", "--output", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    text = report.read_text()
    assert text in done.stdout
    assert "all 7 checks passed; seed 11." in text and "The PTX was not launched: that takes a GPU." in text
    assert all(f"| {operation.name} | B 2, N 2, V 160 |" in text for operation in OPERATIONS)


def test_a_triton_that_was_not_tried_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.4.0")
    assert main(["--kernels", "--device", "cpu"]) == WRONG
    assert "Triton 3.4.0 is installed" in capsys.readouterr().err


class TestComparing:
    def test_numbers_are_near_and_integers_equal(self) -> None:
        ours, theirs = torch.tensor([1.0, torch.nan, torch.inf]), torch.tensor([1.001, torch.nan, torch.inf])
        assert difference("x", ours, theirs, Tolerance(0.002, 0)) is None
        assert (
            difference("x", ours, theirs) == "x differs in 1 of 3 places, first at [0]: 1.0, wanted 1.0010000467300415"
        )
        assert difference("x", ours, torch.tensor([1.0, 1.0, torch.inf]), Tolerance(9, 9)) is not None
        assert difference("x", torch.tensor([7]), torch.tensor([8]), Tolerance(9, 9)) is not None
        assert difference("x", ours, theirs[:2]) == "x is torch.float32 [3], wanted torch.float32 [2]"

    def test_bits_are_bits(self) -> None:
        zeros = torch.tensor([0.0, -0.0])
        assert difference("x", zeros, zeros.flip(0)) is None
        assert difference_in_bits("x", zeros, zeros.clone()) is None
        assert "2 of 2 places" in str(difference_in_bits("x", zeros, zeros.flip(0)))


def small(**changed: Any) -> agreement.Extent:
    nothing = agreement.Extent([], [Shape(1, 0, 2)], trees=2, nodes=5)
    return replace(nothing, **changed)


OF_TWINS = SimpleNamespace(
    choose_token=eager.choose_token,
    top_logits=eager.top_logits,
    walk_tree=eager_verification.walk_tree,
    chain_rejection=eager_verification.chain_rejection,
)


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The twins in the place of the launchers; puts another function there."""
    for module, names in (
        (launch, ("choose_token", "top_logits")),
        (launch_verification, ("walk_tree", "chain_rejection")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(OF_TWINS, name))

    def put(module: Any, name: str, function: Callable[..., Any]) -> None:
        monkeypatch.setattr(module, name, function)

    return put


@pytest.mark.parametrize(
    ("module", "name", "field", "add"),
    [
        *((launch, "choose_token", field, 1) for field in ("ids", "logprobs", "wanted_logprobs")),
        (launch, "choose_token", "logprobs", 1e-4),
        *((launch_verification, "walk_tree", field, 1) for field in ("path", "accepted", "emitted", "bonus")),
        *((launch_verification, "chain_rejection", field, 1) for field in ("accepted", "token")),
    ],
)
def test_a_kernel_that_says_something_else_in_one_place_fails(
    module: Any, name: str, field: str, add: float, twins: Callable[..., None]
) -> None:
    def wrong(*given: Any) -> Any:
        outcome = getattr(OF_TWINS, name)(*given)
        changed = getattr(outcome, field).clone()
        changed.view(-1)[-1] += add
        return outcome._replace(**{field: changed})

    twins(module, name, wrong)
    assert [field in check.detail for check in checked_small() if not check.passed] == [True]


@pytest.mark.parametrize(("column", "words"), [(0, "best logits"), (70, "best logits and ids"), (-1, "normalisers")])
def test_top_logits_are_compared_in_all_that_they_tell(column: int, words: str, twins: Callable[..., None]) -> None:
    def wrong(*given: Any) -> Tensor:
        found = OF_TWINS.top_logits(*given).clone()
        found[-1, column] += 1e-3
        return found

    twins(launch, "top_logits", wrong)
    assert [words in check.detail for check in checked_small() if not check.passed] == [True]


def checked_small() -> list[Check]:
    return agreement.agreement(small(matrices=[agreement.Matrix(7, 80, 81)], chains=[Shape(3, 2, 9)]), CPU, seed=2)


def test_twins_agree_with_themselves_and_hard_rows_are_hard(twins: Callable[..., None]) -> None:
    extent = small(matrices=[agreement.Matrix(64, 700, 705)], chains=[Shape(30, 2, 7, 1)], trees=40)
    assert [check.detail for check in agreement.agreement(extent, CPU, seed=3) if not check.passed] == []
    logits = agreement.hard_logits(agreement.Matrix(8, 30, 33), "float32", 1)
    assert (eager.choose_token(*agreement.rows(logits, vocabulary=30), 30).ids < 0).tolist() == [False] * 2 + [
        *[True] * 3,
        *[False] * 3,
    ]
    assert len(set(logits[5, :30].tolist())) < 25 and bool((logits[:, 30:] == 1e4).all())


def test_trees_of_all_kinds_are_walked_far() -> None:
    trees = random_trees(60, 20, seed=4)
    assert trees.counts[:2].tolist() == [20, 0] and len(set(trees.counts.tolist())) > 10
    chain = trees.parents[0].tolist()
    assert chain == list(range(-1, 19)) and trees.parents[4].tolist() != list(range(-1, 19))
    assert int(eager_verification.walk_tree(*trees).accepted.max()) > 4


class TestLaw:
    WANTED = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)

    def drawn(self, law: Tensor, count: int = 3000) -> Tensor:
        return torch.multinomial(law, count, replacement=True, generator=torch.Generator().manual_seed(1)).int()

    def test_draws_of_the_law_fit_and_others_do_not(self) -> None:
        assert kept_law.chance(self.drawn(self.WANTED), self.WANTED) > 0.01
        assert kept_law.chance(self.drawn(torch.tensor([0.4, 0.36, 0.24, 0.0])), self.WANTED) < 1e-6
        assert kept_law.chance(self.drawn(torch.tensor([0.5, 0.3, 0.19, 0.01])), self.WANTED) == 0.0

    @pytest.mark.parametrize("token", [-1, 3, 4])
    def test_what_cannot_be_drawn_does_not_fit(self, token: int) -> None:
        draws = self.drawn(self.WANTED)
        draws[7] = token
        assert kept_law.chance(draws, self.WANTED) == 0.0

    def test_the_chance_is_that_of_the_tables(self) -> None:
        """5.991 is the 95th percentile of two degrees of freedom: (40 - 50)^2 / 50 + ..."""
        scipy_stats = pytest.importorskip("scipy.stats")
        counts = torch.tensor([40, 33, 27])
        draws = torch.repeat_interleave(torch.arange(3), counts)
        expected = scipy_stats.chisquare(counts.numpy(), [50, 30, 20]).pvalue
        assert kept_law.chance(draws, self.WANTED) == pytest.approx(expected)

    @pytest.mark.parametrize("certain", [False, True])
    def test_the_twin_keeps_it_and_a_rule_that_redraws_from_the_target_does_not(
        self, certain: bool, twins: Callable[..., None]
    ) -> None:
        def redraws(target: Tensor, *given: Any) -> ChainOutcome:
            accepted, _ = OF_TWINS.chain_rejection(target, *given)
            places = law(target)[torch.arange(len(target)), accepted.long()]
            draw = torch.multinomial(places, 1, generator=torch.Generator().manual_seed(2))
            return ChainOutcome(accepted, draw.squeeze(1).int())

        assert kept_law.keeps_the_law(4000, CPU, certain).passed
        twins(launch_verification, "chain_rejection", redraws)
        assert not kept_law.keeps_the_law(4000, CPU, certain).passed


def findings() -> Findings:
    fast = Speed("top_logits", FULL[0], 200_000_000, 5e-5, 4.5e-5, "torch.sum", 1e-3)
    slow = replace(fast, operation="chain_rejection", sweep_seconds=2e-5, torch_seconds=None, torch_trouble="no memory")
    few = replace(slow, load=FULL[-1], reads=1000)
    return Findings(
        checks=[Check("a", True, "x"), Check("b", False, "y")],
        seen=[Seen("walk_tree", "float32", "as it is", Function("walk_tree", 1, (8, 4), 33, 0), 64)],
        speeds=[fast, slow, few, Skipped("top_logits", FULL[1], "no time was left")],
        tuned=[
            tuning.Tuned("top_logits", FULL[0], "BLOCK 64", 4e-5, 3e-5),
            tuning.Tuned("top_logits", FULL[0], "BLOCK 32", 2e-5, 3e-5),
        ],
        notes=["a note"],
    )


def test_the_report_says_what_holds_and_what_is_met() -> None:
    text = render("here", 5, findings(), 7.0)
    assert "here. In 7 s, 1 of 2 checks failed; seed 5." in text
    assert "| b | NO | y |" in text and "\na note\n" in text
    assert "| walk_tree | float32 | as it is | 33 | 0 B | 64 B | 8 4 |" in text
    assert "The aim is not met by 1 of 2 large loads; the farthest from it is chain_rejection at B 64" in text
    fast = (
        "| top_logits | B 64, N 64, V 128,256 | 200.0 | 50.0 | 4000 | 4444 | 90% | met | 1000.0 (20.0 x) | torch.sum |"
    )
    assert fast in text
    assert "| 10000 | 40% | NOT met | no memory | torch.sum |" in text
    assert "| 40% | – | no memory |" in text
    assert "| top_logits | B 64, N 16, V 128,256 | – | – | – | – | – | – | – | not measured: no time was left |" in text
    assert text.index("BLOCK 32 | 20.0 | 30.0 | 1.50 x") < text.index("BLOCK 64 | 40.0 | 30.0 | 0.75 x")


def test_the_report_of_an_aim_that_is_met() -> None:
    found = findings()
    found.speeds = found.speeds[:1]
    assert "The aim is met by all 1 large loads." in render("here", 5, found, 7.0)
    found.speeds = []
    assert "## Speed" not in render("here", 5, found, 7.0)


def test_a_part_that_breaks_fails_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*given: Any) -> Any:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(agreement, "agreement", breaks)
    monkeypatch.setattr(checking, "OPERATIONS", OPERATIONS[:1])
    place = replace(checking.place_of(CPU), timer=Clock(*[1.0] * 9))
    found, kept = Findings(), list[tuple[int, int]]()
    keep = lambda: kept.append((len(found.checks), len(found.speeds)))  # noqa: E731
    checking.check_all(place, checking.TINY, 1, False, Progress(), found, keep)
    assert [check.passed for check in found.checks] == [False, True]
    assert "an illegal memory access" in found.checks[0].detail
    assert len(found.speeds) == 1 and len(found.notes) == 1
    assert kept == [(1, 0), (1, 0), (1, 1), (2, 1)], "after each part, and after a measurement"


@pytest.mark.parametrize(("chip", "architecture"), [((9, 0), 90), ((8, 7), 86), ((10, 3), 100), ((12, 1), 120)])
def test_ptx_is_for_the_newest_architecture_that_the_chip_runs(
    chip: tuple[int, int], architecture: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: chip)
    assert checking.place_of(torch.device("cuda")).architecture == architecture


@pytest.mark.slow
def test_the_ptx_of_all_shapes_and_two_types_is_launched_where_there_is_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a driver that repeats what the launcher left; nothing is compiled."""
    asked: list[tuple[str, int]] = []

    def compile_all(launches: Sequence[Launch], architecture: int) -> list[ahead.Loaded]:
        asked.extend((item.spec.name, architecture) for item in launches)
        doing.launches = list(launches)
        return without_compiler(launches, ahead.AS_THE_PLUGIN)

    doing = Doing([])
    monkeypatch.setattr(ahead, "compile_all", compile_all)
    place = replace(checking.place_of(CPU), open_driver=lambda: doing)
    found = Findings()
    extent = replace(checking.TINY, launched=[Shape(2, 2, 20, 12), Shape(2, 2, 9)])
    checking._ahead(place, extent, 1, Progress(), found)  # type: ignore[arg-type]
    assert sorted(asked) == sorted((name, 80) for name in KERNELS for _ in range(4))
    assert len(found.checks) == len(KERNELS) + 1 and all(check.passed for check in found.checks)
    assert [item.logits for item in found.seen[::9]] == ["bfloat16", "float32"] * 2


def test_the_exit_code_is_that_of_the_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = tmp_path / "report.md"

    def fails(place: Any, extent: Any, seed: int, tuned: bool, progress: Any, found: Findings, keep: Any) -> None:
        assert (seed, tuned, extent) == (3, True, checking.TINY)
        assert "so far all 0 checks passed, and the run went on; seed 3." in report.read_text()
        found.checks += [Check("a", True, ""), Check("a", False, "b")]

    monkeypatch.setattr(checking, "check_all", fails)
    assert main(["--kernels", "--device", "cpu", "--seed", "3", "--tune", "--output", str(report)]) == FAILED
    assert ", 1 of 2 checks failed; seed 3." in report.read_text()


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checking, "check_all", None)
    assert main(["--kernels", "--device", "cpu", "--output", str(tmp_path / "nowhere" / "report.md")]) == WRONG
    assert "error: --output cannot be written" in capsys.readouterr().err


def test_a_report_that_can_no_longer_be_written_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"

    def gone(*given: Any) -> None:
        report.unlink()
        report.mkdir()
        given[-1]()

    monkeypatch.setattr(checking, "check_all", gone)
    assert main(["--kernels", "--device", "cpu", "--output", str(report)]) == WRONG
    assert "# The kernels on this device" in capsys.readouterr().out


def test_the_time_of_imports_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = chain([100.0], repeat(107.0)), list[float]()
    monkeypatch.setattr(checking, "check_all", lambda *given: seen.append(given[4].seconds))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    main(["--kernels", "--device", "cpu"])
    assert seen == [7.0]
