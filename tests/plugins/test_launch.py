"""Launches: specs say what functions take, inputs that are something else are refused, and Triton stays unloaded."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from plugins import eager, launch
from plugins.contract import KernelSpec
from plugins.sampling_specs import CHOOSE_TOKEN_PARTS, top_logits
from plugins.specs import KERNELS
from scripts.gpu_check.kernels.rows import random_logits, rows


@pytest.mark.parametrize("spec", KERNELS.values(), ids=list(KERNELS))
def test_a_kernel_takes_what_its_spec_says(spec: KernelSpec) -> None:
    function = getattr(importlib.import_module(f"plugins.kernels.{spec.module}"), spec.name)
    assert tuple(inspect.signature(function.fn).parameters) == (*spec.arguments, *spec.constants)


@pytest.mark.parametrize("name", ["choose_token", "top_logits"])
def test_a_launcher_and_its_twin_have_one_signature(name: str) -> None:
    ours, twin = (inspect.signature(getattr(module, name)) for module in (launch, eager))
    assert ours == twin


def test_specs_launchers_and_twins_load_without_triton() -> None:
    """Where it is missing, a folder of engines can be planned and read all the same."""
    code = "import sys; sys.modules['triton'] = None; import plugins.specs, plugins.launch, plugins.eager"
    code += ", plugins.launch_verification, plugins.eager_verification"
    subprocess.run([sys.executable, "-c", code], check=True)


WRONG = {
    "a seed is int64": ("seeds", lambda t: t.int(), "seeds must be int64"),
    "a position is int32": ("positions", lambda t: t.long(), "positions must be int32"),
    "one row each": ("choices", lambda t: t[:2], r"choices must be int32 \[3\]"),
    "logits are floats": ("logits", lambda t: t.double(), "logits must be logits"),
    "row by row": ("logits", lambda t: t.t().contiguous().t(), "strided"),
    "two dimensions": ("logits", lambda t: t.unsqueeze(0), "logits must be logits"),
}


@pytest.mark.parametrize(("name", "change", "words"), WRONG.values(), ids=list(WRONG))
def test_inputs_that_a_kernel_would_misread_are_refused(name: str, change, words: str) -> None:
    taken = rows(random_logits(3, 9))
    with pytest.raises(ValueError, match=words):
        launch.choose_token(*taken._replace(**{name: change(getattr(taken, name))}), 9)


@pytest.mark.parametrize("vocabulary", [0, 10, 2**24 + 1])
def test_the_vocabulary_is_within_the_row(vocabulary: int) -> None:
    with pytest.raises(ValueError, match=f"a vocabulary of {vocabulary}"):
        launch.top_logits(random_logits(3, 9), vocabulary)


def test_parts_of_another_length_are_refused() -> None:
    find, merge = top_logits(8)[0], top_logits(16)[1]
    with pytest.raises(ValueError, match="part_keys must be int64"):
        launch.launch(merge, *launch.launch(find, random_logits(1, 30), vocabulary=30), vocabulary=30)


def test_numbers_are_named_and_inputs_counted() -> None:
    taken = rows(random_logits(3, 9))
    with pytest.raises(TypeError, match=r"takes the numbers \['lane', 'vocabulary'\], not \['lane'\]"):
        launch.launch(CHOOSE_TOKEN_PARTS, *taken, lane=0)
    with pytest.raises(ValueError, match="takes 6 inputs, not 5"):
        launch.launch(CHOOSE_TOKEN_PARTS, *taken[:5], vocabulary=9, lane=0)


def test_no_rows_give_no_rows() -> None:
    nothing: Tensor = torch.empty(0, 9)
    assert [len(item) for item in launch.choose_token(*rows(nothing), 9)] == [0, 0, 0]
    assert launch.top_logits(nothing, 9).shape[0] == 0
