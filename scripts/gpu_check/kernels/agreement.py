"""Every kernel through its launcher against its eager twin, which runs on the CPU, over random inputs.

Ids, decisions and logits are equal. Log-probabilities and normalisers are near, as in the tests of `plugins`. Decisions
of rejection sampling are compared where rounding cannot turn them, which is nearly everywhere, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plugins import eager, eager_verification, launch, launch_verification
from plugins.contract import LOGITS_TYPES
from plugins.verification_specs import MOST_NODES
from scripts.gpu_check.checks import Check
from scripts.gpu_check.kernels.chains import Shape, clear, random_chains
from scripts.gpu_check.kernels.comparing import Tolerance, difference, largest
from scripts.gpu_check.kernels.rows import ATOL, RTOL, Rows, random_logits, rows
from scripts.gpu_check.kernels.trees import random_trees

NEAR = Tolerance(ATOL, RTOL)
_CLEAR = 0.9
"""So many chains must have decisions that rounding cannot turn, or too little was compared."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of logits."""

    rows: int
    """Five or more: some have no law."""
    vocabulary: int
    width: int


@dataclass(frozen=True, slots=True)
class Extent:
    """What is tried, each in all types of logits."""

    matrices: Sequence[Matrix]
    chains: Sequence[Shape]
    trees: int
    nodes: int


FULL = Extent(
    [Matrix(5, 7, 7), Matrix(64, 5003, 5011), Matrix(32, 32_000, 32_768), Matrix(6, 128_256, 128_256)],
    [Shape(256, 2, 7, 1), Shape(48, 5, 5003, 5), Shape(24, 8, 32_000, 768), Shape(4, 3, 128_256), Shape(8, 0, 30)],
    trees=512,
    nodes=MOST_NODES,
)
TINY = Extent([Matrix(5, 2100, 2112)], [Shape(30, 2, 7, 1)], trees=12, nodes=9)


def agreement(extent: Extent, device: torch.device, seed: int) -> list[Check]:
    return [
        _choose_token(extent, device, seed),
        _top_logits(extent, device, seed),
        _walk_tree(extent, device, seed),
        _chain_rejection(extent, device, seed),
    ]


def hard_logits(matrix: Matrix, dtype: str, seed: int) -> Tensor:
    """Some masked, some equal, and some rows without a law; what is beyond the vocabulary would win everywhere."""
    logits = random_logits(matrix.rows, matrix.width, seed=seed, dtype=getattr(torch, dtype))
    logits[1::4] = logits[1::4].round()
    logits[2, 0], logits[3, matrix.vocabulary - 1] = math.nan, math.inf
    logits[4] = -math.inf
    logits[:, matrix.vocabulary :] = 1e4
    return logits


def _cases(extent: Extent, seed: int) -> list[tuple[str, Matrix, Tensor]]:
    named = [(dtype, matrix) for matrix in extent.matrices for dtype in LOGITS_TYPES]
    return [
        (f"{dtype} [{matrix.rows}, {matrix.width}]", matrix, hard_logits(matrix, dtype, seed + number))
        for number, (dtype, matrix) in enumerate(named)
    ]


def _choose_token(extent: Extent, device: torch.device, seed: int) -> Check:
    wrong, farthest, count = [], 0.0, 0
    for name, matrix, logits in _cases(extent, seed):
        taken = rows(logits, vocabulary=matrix.vocabulary, seed=seed)
        ours = _chosen(taken.on(device), matrix.vocabulary)
        theirs = eager.choose_token(*taken, matrix.vocabulary)
        wrong += [
            difference(f"{name}: ids", ours.ids, theirs.ids),
            difference(f"{name}: logprobs", ours.logprobs, theirs.logprobs, NEAR),
            difference(f"{name}: wanted_logprobs", ours.wanted_logprobs, theirs.wanted_logprobs, NEAR),
        ]
        farthest, count = max(farthest, largest(ours.logprobs, theirs.logprobs)), count + matrix.rows
    return _check("choose_token chooses what its twin does", wrong, f"{count} rows; {_nearest(farthest)}")


def _chosen(taken: Rows, vocabulary: int) -> launch.ChosenTokens:
    return launch.ChosenTokens(*(item.cpu() for item in launch.choose_token(*taken, vocabulary)))


def _top_logits(extent: Extent, device: torch.device, seed: int) -> Check:
    wrong, farthest, count = [], 0.0, 0
    for name, matrix, logits in _cases(extent, seed + 1000):
        ours = launch.top_logits(logits.to(device), matrix.vocabulary).cpu()
        theirs = eager.top_logits(logits, matrix.vocabulary)
        wrong += [
            difference(f"{name}: best logits and ids", ours[:, :-1], theirs[:, :-1]),
            difference(f"{name}: normalisers", ours[:, -1], theirs[:, -1], NEAR),
        ]
        farthest, count = max(farthest, largest(ours[:, -1], theirs[:, -1])), count + matrix.rows
    return _check("top_logits finds what its twin does", wrong, f"{count} rows; {_nearest(farthest)}")


def _walk_tree(extent: Extent, device: torch.device, seed: int) -> Check:
    wrong = []
    passed = 0
    for most in sorted({1, 5, extent.nodes}):
        trees = random_trees(extent.trees, most, seed + most)
        ours, theirs = launch_verification.walk_tree(*trees.on(device)), eager_verification.walk_tree(*trees)
        wrong += [
            difference(f"up to {most} nodes: {name}", found.cpu(), wanted)
            for name, found, wanted in zip(ours._fields, ours, theirs, strict=True)
        ]
        passed += int(theirs.accepted.sum())
    name = "walk_tree walks as its twin does"
    return _check(name, wrong, f"chains and trees of up to {extent.nodes} nodes, {passed} nodes accepted")


def _chain_rejection(extent: Extent, device: torch.device, seed: int) -> Check:
    wrong: list[str | None] = []
    compared = count = 0
    for number, (shape, dtype) in enumerate((shape, dtype) for shape in extent.chains for dtype in LOGITS_TYPES):
        chains = random_chains(shape, seed + number, getattr(torch, dtype))
        ours, theirs, sure = chains.on(device).launched(), chains.eager(), clear(chains)
        wrong += [
            difference(f"{dtype} {list(chains.target.shape)}: {name}", found.cpu()[sure], wanted[sure])
            for name, found, wanted in zip(ours._fields, ours, theirs, strict=True)
        ]
        compared, count = compared + int(sure.sum()), count + shape.rows
    if compared < _CLEAR * count:
        wrong.append("too few chains are clear of rounding")
    detail = f"{compared} of {count} chains, the others too near a tie"
    return _check("chain_rejection decides as its twin does", wrong, detail)


def _nearest(farthest: float) -> str:
    return f"log-probabilities within {farthest:.1e}"


def _check(name: str, wrong: Sequence[str | None], detail: str) -> Check:
    told = [text for text in wrong if text is not None]
    return Check(name, not told, told[0] if told else detail)
