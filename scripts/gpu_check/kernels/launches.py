"""Single launches: each kernel with the inputs that it has in a chain of them, and what its launcher made of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plugins.contract import KernelSpec
from plugins.launch import dimensions, launch
from plugins.sampling_specs import CHOOSE_TOKEN_MERGE, CHOOSE_TOKEN_PARTS, MOST, top_logits
from plugins.symbolic import numbers_of
from plugins.verification_specs import CHAIN_REJECTION, WALK_TREE
from scripts.gpu_check.kernels.chains import Shape, random_chains
from scripts.gpu_check.kernels.rows import random_logits, rows
from scripts.gpu_check.kernels.trees import random_trees
from trtspec.decoding.rng import Lane

CHOOSE_TOKEN = (CHOOSE_TOKEN_PARTS, CHOOSE_TOKEN_MERGE)
TOP_LOGITS = top_logits(MOST)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch that is over."""

    spec: KernelSpec
    inputs: tuple[Tensor, ...]
    numbers: Mapping[str, int]
    outputs: tuple[Tensor, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """All names of the specification."""
        return {**dimensions(self.spec, self.inputs), **self.numbers}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a chain of kernels takes."""

    specs: Sequence[KernelSpec]
    arrays: Mapping[str, Tensor]
    numbers: Mapping[str, int]

    def launches(self) -> Iterator[Launch]:
        """One after the other; what one leaves, the next ones find by name."""
        known = dict(self.arrays)
        for spec in self.specs:
            inputs = tuple(known[item.name] for item in spec.inputs)
            numbers = {name: self.numbers[name] for name in numbers_of(spec)}
            outputs = launch(spec, *inputs, **numbers)
            known |= {item.name: output for item, output in zip(spec.outputs, outputs, strict=True)}
            yield Launch(spec, inputs, numbers, outputs)

    def run(self) -> tuple[Tensor, ...]:
        """What the last one leaves."""
        return list(self.launches())[-1].outputs


def every_kernel(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int) -> list[Arguments]:
    """Arguments of all kernels that there are, of rows, nodes and tokens as many as the shape has."""
    numbers = {"vocabulary": shape.vocabulary, "lane": int(Lane.TARGET)}
    logits = random_logits(shape.rows, shape.vocabulary + shape.padding, seed=seed, dtype=dtype)
    chosen = rows(logits, vocabulary=shape.vocabulary, seed=seed).on(device)._asdict()
    trees = random_trees(shape.rows, shape.nodes, seed).on(device)._asdict()
    chains = random_chains(shape, seed, dtype).on(device)._asdict()
    del chains["vocabulary"]
    return [
        Arguments(CHOOSE_TOKEN, chosen, numbers),
        Arguments(TOP_LOGITS, {"logits": logits.to(device)}, numbers),
        Arguments([WALK_TREE], trees, {}),
        Arguments(CHAIN_REJECTION, chains, numbers),
    ]
