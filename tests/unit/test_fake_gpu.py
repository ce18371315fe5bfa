"""The GPU that is not there sees what a real one would refuse, and what one would be waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.fake_gpu import GPU, FakeGpu, OnGpu, on_gpu
from trtspec.decoding.sending import send, sent

ROWS = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    "work",
    [
        lambda there: there + ROWS,
        lambda there: torch.cat([there, ROWS]),
        lambda there: ROWS.index_copy_(0, on_gpu(torch.tensor([0])), there[:1]),
        lambda there: torch.where(ROWS > 0, there, 0.0),
    ],
)
def test_tensors_of_both_devices_do_not_mix(work: Callable[[Tensor], Tensor]) -> None:
    with FakeGpu(), pytest.raises(AssertionError, match="over tensors of both devices"):
        work(on_gpu(ROWS.clone()))


@pytest.mark.parametrize(
    ("work", "waits", "copies"),
    [
        (lambda there: there.cpu() + ROWS, ["cpu"], 0),
        (lambda there: there.sum().item(), ["item"], 0),
        (lambda there: there[[1, 0]], ["__getitem__"], 0),
        (lambda there: there[there > 1], ["__getitem__"], 0),
        (lambda there: there.nonzero(), ["nonzero"], 0),
        (lambda there: torch.tensor([1], device=there.device), ["tensor"], 0),
        (lambda there: ROWS.to(there.device), ["to"], 0),
        (lambda there: there + send(ROWS, there.device), [], 1),
        (lambda there: there[sent([1, 0], torch.int64, there.device)], [], 1),
        (lambda there: (there * 2).softmax(dim=1).argmax(dim=1), [], 0),
    ],
)
def test_waiting_is_written_down(work: Callable[[Tensor], object], waits: list[str], copies: int) -> None:
    gpu = FakeGpu()
    with gpu:
        there = on_gpu(ROWS.clone())
        assert there.device == GPU and ROWS.device.type == "cpu"
        work(there)
    assert (gpu.waits, gpu.sent) == (waits, copies)


def test_a_kernel_takes_what_lies_there_and_nobody_waits() -> None:
    gpu = FakeGpu()
    kernel = gpu.kernel(best)
    with gpu:
        values, _ = kernel(on_gpu(ROWS.clone()))
        assert isinstance(values, OnGpu) and gpu.waits == []
        for elsewhere in (ROWS, on_gpu(ROWS.clone())[:, :2]):
            with pytest.raises(AssertionError):
                kernel(elsewhere)


class Best(NamedTuple):
    values: Tensor
    columns: Tensor


def best(rows: Tensor) -> Best:
    found = rows.max(dim=1)
    return Best(torch.tensor(found.values.tolist()), found.indices)
