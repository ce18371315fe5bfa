"""Launches the kernels that verify drafts on PyTorch's tensors; names and arguments are those of the eager twins."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from plugins.eager_verification import ChainOutcome
from plugins.specs import LOGITS, LOGITS_TYPES, Array, KernelSpec
from plugins.verification_specs import CHAIN_REJECTION, MOST_NODES, WALK_TREE
from trtspec.decoding.verify import Outcome


def walk_tree(ids: Tensor, tokens: Tensor, parents: Tensor, counts: Tensor) -> Outcome:
    """One launch; see the twin for shapes."""
    _check_places("ids", ids, tokens)
    return Outcome(*launch(WALK_TREE, ids, tokens, parents, counts))


def chain_rejection(
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    counts: Tensor,
    certain: Tensor,
    uniforms: Tensor,
    seeds: Tensor,
    positions: Tensor,
    choices: Tensor,
    vocabulary: int,
) -> ChainOutcome:
    """Four launches; see the twin for shapes. Scores are of one type."""
    _check_places("target", target, tokens)
    if draft.dtype != target.dtype:
        raise ValueError(f"draft: scores are {draft.dtype}, the target's {target.dtype}; cast one of them")
    if vocabulary > target.shape[2]:
        raise ValueError(f"vocabulary: {vocabulary} tokens, and scores of {target.shape[2]}")
    arrays = {"target": target, "draft": draft, "tokens": tokens, "counts": counts, "certain": certain}
    arrays |= {"uniforms": uniforms, "seeds": seeds, "positions": positions, "choices": choices}
    for spec in CHAIN_REJECTION:
        numbers = {"vocabulary": vocabulary} if "vocabulary" in spec.scalars else {}
        outputs = launch(spec, *(arrays[item.name] for item in spec.inputs), **numbers)
        arrays |= {item.name: output for item, output in zip(spec.outputs, outputs, strict=True)}
    return ChainOutcome(arrays["accepted"], arrays["token"])


def launch(spec: KernelSpec, *inputs: Tensor, **numbers: int) -> tuple[Tensor, ...]:
    """The outputs of one kernel; `numbers` are the scalars that are no dimension of an input."""
    sizes = {**spec.constants, **numbers}
    for item, tensor in zip(spec.inputs, inputs, strict=True):
        shape = [sizes.setdefault(str(name), size) for name, size in zip(item.shape, tensor.shape, strict=True)]
        if list(tensor.shape) != shape or not _has_type(item, tensor) or not tensor.is_contiguous():
            raise ValueError(f"{item.name}: {tensor.dtype} {[*tensor.shape]}; not contiguous {item.dtype} {shape}")
    sizes |= {name: -(-sizes[size] // sizes[block]) for name, (size, block) in spec.derived.items()}
    outputs = tuple(_empty(item, sizes, inputs[0].device) for item in spec.outputs)
    grid = tuple(sizes[axis] for axis in spec.grid)
    if prod(grid):
        kernel = getattr(importlib.import_module(f"plugins.kernels.{spec.module}"), spec.name)
        scalars = [sizes[name] for name in spec.scalars]
        kernel[grid](*inputs, *scalars, *outputs, **spec.constants, num_warps=spec.num_warps)
    return outputs


def _check_places(name: str, over_places: Tensor, tokens: Tensor) -> None:
    """What a kernel cannot see: it would read and write elsewhere."""
    nodes = tokens.shape[1]
    if nodes > MOST_NODES:
        raise ValueError(f"tokens: {nodes} nodes a row; at most {MOST_NODES}")
    if over_places.shape[1] != nodes + 1:
        raise ValueError(f"{name}: {over_places.shape[1]} places a row for {nodes} nodes; wanted is one more")


def _has_type(item: Array, tensor: Tensor) -> bool:
    name = str(tensor.dtype).removeprefix("torch.")
    return name in LOGITS_TYPES if item.dtype == LOGITS else name == item.dtype


def _empty(item: Array, sizes: Mapping[str, int], device: torch.device) -> Tensor:
    shape = [sizes[str(name)] for name in item.shape]
    return torch.empty(shape, dtype=getattr(torch, item.dtype), device=device)
