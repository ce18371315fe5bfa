"""Which chooser an engine gets, and what the log says where kernels cannot be had."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from plugins import launch
from tests.choosers import TWINS
from trtspec.decoding.chooser import HOST
from trtspec.executors.embedded import choosers
from trtspec.executors.embedded.choosers import Passes, choose_chooser, why_not
from trtspec.executors.embedded.kernel_chooser import KernelChooser, Kernels

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CHAINS = Passes(torch.float32, 300, nodes=16, acceptance="rejection")


def test_the_kernels_do_what_they_must() -> None:
    """Interpreted, as everywhere in tests."""
    assert why_not(CPU, Passes(torch.bfloat16, 300, nodes=2, acceptance="rejection")) is None


@pytest.mark.parametrize(
    ("passes", "walked", "rejected"),
    [
        (Passes(torch.bfloat16, 300), [], []),
        (Passes(torch.bfloat16, 300, nodes=1), [1], []),
        (Passes(torch.bfloat16, 300, nodes=15), [1, 2], []),
        (Passes(torch.bfloat16, 300, nodes=15, acceptance="rejection"), [1, 2], [1, 2]),
        (CHAINS, [1, 2, 16], [1, 2, 16]),
    ],
    ids=["no drafts", "one node", "trees", "rejection", "rejection, 16 nodes"],
)
def test_what_is_tried_is_what_passes_launch(passes: Passes, walked: list[int], rejected: list[int]) -> None:
    """By the widths of drafts that Triton tells apart."""
    seen: dict[str, list[Any]] = {"choose_token": [], "walk_tree": [], "chain_rejection": []}

    def tried(name: str, size: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: seen[name].append(size(*given)) or getattr(TWINS, name)(*given)

    kernels = Kernels(
        choose_token=tried("choose_token", lambda logits, *rest: (logits.dtype, logits.shape[1])),
        walk_tree=tried("walk_tree", lambda ids, tokens, *rest: tokens.shape[1]),
        chain_rejection=tried("chain_rejection", lambda target, draft, tokens, *rest: tokens.shape[1]),
    )
    assert why_not(CPU, passes, kernels) is None
    assert seen["choose_token"] == [(passes.dtype, 300), (torch.float32, 300)]
    assert (seen["walk_tree"], seen["chain_rejection"]) == (walked, rejected)


def test_on_a_cpu_nothing_is_tried() -> None:
    assert choose_chooser(CPU, CHAINS, TWINS) is HOST


def refuse(*arguments: object) -> Any:
    raise RuntimeError("Failed to find C compiler.\nPlease specify one.")


def test_without_triton_the_reason_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("plugins.kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    reason = why_not(CPU, CHAINS)
    assert reason is not None and reason.startswith("ModuleNotFoundError: import of triton halted")


def test_the_log_says_which_it_is_and_why(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger=choosers.__name__)
    on_cpu: Callable[..., str | None] = lambda device, *more: why_not(CPU, *more)  # noqa: E731
    monkeypatch.setattr(choosers, "why_not", on_cpu)
    assert isinstance(choose_chooser(GPU, CHAINS, TWINS), KernelChooser)
    assert choose_chooser(GPU, CHAINS, replace(TWINS, walk_tree=refuse)) is HOST
    before, told, again, warned = caplog.records
    compiling = (logging.INFO, "compiling kernels that choose tokens, for cuda")
    assert [(item.levelno, item.getMessage()) for item in (before, again)] == [compiling] * 2
    assert (told.levelno, told.getMessage()) == (logging.INFO, "Triton's kernels choose tokens on cuda")
    assert warned.levelno == logging.WARNING
    assert "PyTorch chooses tokens on cuda" in warned.getMessage()
    assert "(RuntimeError: Failed to find C compiler.)" in warned.getMessage()


def off_by_one(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*arguments: Any) -> Any:
        result = kernel(*arguments)
        return type(result)(*(item + 1 for item in result))

    return wrong


@pytest.mark.parametrize("name", ["choose_token", "walk_tree", "chain_rejection"])
def test_kernels_that_are_wrong_are_not_used(name: str) -> None:
    wrong: Kernels = replace(TWINS, **{name: off_by_one(getattr(TWINS, name))})
    reason = why_not(CPU, CHAINS, wrong)
    assert reason is not None and reason.startswith(f"ArithmeticError: {name} says")
    assert why_not(CPU, CHAINS, TWINS) is None


def test_a_kernel_is_launched_on_the_gpu_of_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    context = launch.on_gpu_of(torch.device("cuda", 1))
    assert isinstance(context, torch.cuda.device) and context.idx == 1
    asked = []
    really = launch.on_gpu_of
    monkeypatch.setattr(launch, "on_gpu_of", lambda device: asked.append(device) or really(device))
    row: Tensor = torch.zeros(1, dtype=torch.int32)
    launch.choose_token(torch.zeros(1, 8), row.long(), row, row, row, row, 8)
    assert asked == [CPU, CPU]
