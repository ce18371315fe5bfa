"""Launches kernels on tensors: allocates what they write and lays out their grid, all from their specs.

Triton is imported at the first launch. Each launcher has an eager twin of its name in `plugins.eager`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plugins import sampling_specs
from plugins.contract import LOGITS, LOGITS_TYPES, Array, KernelSpec
from plugins.sampling_specs import MOST, MOST_IDS
from trtspec.decoding.rng import Lane

EXACT_IDS = 2**24
"""Up to here float32 holds every id."""


class ChosenTokens(NamedTuple):
    """What the target chose in each of T rows."""

    ids: Tensor  # [T] int32; NO_TOKEN where the best logit is NaN or infinite
    logprobs: Tensor  # [T] float32, of the token under the processed logits; NaN where there is none
    wanted_logprobs: Tensor  # [T] float32, of the token that was asked for; NaN where none was, or the row is faulty


def choose_token(
    logits: Tensor,
    seeds: Tensor,
    positions: Tensor,
    choices: Tensor,
    noisy: Tensor,
    wanted: Tensor,
    vocabulary: int,
    lane: Lane = Lane.TARGET,
) -> ChosenTokens:
    """`choose` over processed logits [T, W], of which the first `vocabulary` columns count.

    Of each row: the seed's 64 bits as int64, the position and the choice of its noise, whether it has noise or takes
    the best, and the token whose log-probability is wanted, or -1.
    """
    _check_vocabulary(logits, vocabulary, MOST_IDS)
    inputs = (logits, seeds, positions, choices, noisy, wanted)
    parts = launch(sampling_specs.CHOOSE_TOKEN_PARTS, *inputs, vocabulary=vocabulary, lane=int(lane))
    return ChosenTokens(*launch(sampling_specs.CHOOSE_TOKEN_MERGE, *parts))


def top_logits(logits: Tensor, vocabulary: int, most: int = MOST) -> Tensor:
    """The best M logits of each row, their ids, and the log of the sum of all exponentials, [T, 2M + 1] float32.

    Best first, of equals the lowest id first; with fewer tokens than M the last one is repeated, so that who spreads
    them over the vocabulary again writes what is there already. Rows with NaN are NaN. M is a power of two.
    """
    _check_vocabulary(logits, vocabulary, EXACT_IDS)
    find, merge = sampling_specs.top_logits(most)
    return launch(merge, *launch(find, logits, vocabulary=vocabulary), vocabulary=vocabulary)[0]


def _check_vocabulary(logits: Tensor, vocabulary: int, most: int) -> None:
    if not 0 < vocabulary <= min(logits.shape[-1], most):
        raise ValueError(f"a vocabulary of {vocabulary} in logits {list(logits.shape)}; at most {most} tokens")


def launch(spec: KernelSpec, *inputs: Tensor, **numbers: int) -> tuple[Tensor, ...]:
    """The outputs of one kernel. `numbers` are the scalars that are no dimension of an input."""
    sizes = dimensions(spec, inputs)
    missing = set(spec.scalars) - set(sizes)
    if set(numbers) != missing:
        raise TypeError(f"{spec.name} takes the numbers {sorted(missing)}, not {sorted(numbers)}")
    outputs = tuple(_empty(item, sizes, inputs[0].device) for item in spec.outputs)
    grid = tuple(sizes[axis] for axis in spec.grid)
    scalars = [{**sizes, **numbers}[name] for name in spec.scalars]
    options = {"num_warps": spec.num_warps, "enable_fp_fusion": False}  # rounded as what is compiled ahead of time is
    with on_gpu_of(inputs[0].device):
        _function(spec)[grid](*inputs, *scalars, *outputs, **spec.constants, **options)
    return outputs


def dimensions(spec: KernelSpec, inputs: tuple[Tensor, ...]) -> dict[str, int]:
    """All sizes by name. Raises `ValueError` where an input is not what the spec says, which a kernel cannot see."""
    if len(inputs) != len(spec.inputs):
        raise ValueError(f"{spec.name} takes {len(spec.inputs)} inputs, not {len(inputs)}")
    sizes = dict(spec.constants)
    for item, tensor in zip(spec.inputs, inputs, strict=True):
        names = [size if isinstance(size, int) else sizes.setdefault(size, have) for size, have in _pairs(item, tensor)]
        if tuple(tensor.shape) != tuple(names) or not _has_type(item, tensor) or not tensor.is_contiguous():
            raise ValueError(f"{spec.name}: {item.name} must be {item.dtype} {names} row by row, not {_told(tensor)}")
    for name, (dividend, divisor) in spec.derived.items():
        sizes[name] = -(-sizes[dividend] // sizes[divisor])
    return sizes


def _pairs(item: Array, tensor: Tensor) -> list[tuple[str | int, int]]:
    return list(zip(item.shape, tensor.shape, strict=False))


def _has_type(item: Array, tensor: Tensor) -> bool:
    name = str(tensor.dtype).removeprefix("torch.")
    return name in LOGITS_TYPES if item.dtype == LOGITS else name == item.dtype


def _told(tensor: Tensor) -> str:
    order = "" if tensor.is_contiguous() else ", strided"
    return f"{tensor.dtype} {list(tensor.shape)}{order}"


def _empty(item: Array, sizes: Mapping[str, int], device: torch.device) -> Tensor:
    shape = [size if isinstance(size, int) else sizes[size] for size in item.shape]
    return torch.empty(shape, dtype=getattr(torch, item.dtype), device=device)


def on_gpu_of(device: torch.device) -> AbstractContextManager[object]:
    """Triton and TensorRT use the process's current GPU, whichever their arguments lie on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _function(spec: KernelSpec) -> Any:
    return getattr(importlib.import_module(f"plugins.kernels.{spec.module}"), spec.name)
