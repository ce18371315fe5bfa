"""The networks there are: what each takes and gives, and what writes it, imported when it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from builders.verification.layers import Layers, Tensor
from builders.verification.limits import Limits
from plugins.contract import LOGITS, Array, KernelSpec
from plugins.sampling_specs import CHOOSE_TOKEN_MERGE, CHOOSE_TOKEN_PARTS
from plugins.verification_specs import CHAIN_ACCEPTANCE, CHAIN_DRAW, CHAIN_FOLLOW, CHAIN_REJECTION, WALK_TREE

_PLACES = ("rows", "places")


@dataclass(frozen=True, slots=True)
class Network:
    """Of one engine."""

    name: str
    """Its file's, too."""
    summary: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    make: Callable[[Any, Mapping[str, Tensor], Limits], dict[str, Tensor]]
    """From layers and inputs by name to tensors by name, all outputs among them."""
    launches: tuple[KernelSpec, ...] = ()
    """The plugins that it has."""

    def write(self, layers: Layers, limits: Limits) -> None:
        """Add all of it to an empty network."""
        made = self.make(layers, {item.name: layers.input(item) for item in self.inputs}, limits)
        for item in self.outputs:
            layers.output(item, made[item.name])


def _greedy_trees(layers: Layers, inputs: Mapping[str, Tensor], limits: Limits) -> dict[str, Tensor]:
    from builders.verification.native import greedy_trees

    return greedy_trees(layers, inputs, limits)


def _sampled_trees(layers: Any, inputs: Mapping[str, Tensor], limits: Limits) -> dict[str, Tensor]:
    from builders.verification.launches import sampled_trees

    return sampled_trees(layers, inputs, limits)


def _rejection_chains(layers: Any, inputs: Mapping[str, Tensor], limits: Limits) -> dict[str, Tensor]:
    from builders.verification.launches import rejection_chains

    return rejection_chains(layers, inputs, limits)


_LOGITS = Array("logits", LOGITS, (*_PLACES, "width"))
_TREE = WALK_TREE.inputs[1:]
_IDS = WALK_TREE.inputs[0]

GREEDY_TREES = Network(
    name="trees",
    summary="the best token of each place, and the walk down each tree; no noise",
    inputs=(_LOGITS, *_TREE),
    outputs=(_IDS, *WALK_TREE.outputs),
    make=_greedy_trees,
)
SAMPLED_TREES = Network(
    name="trees",
    summary="the token of each place, with noise where a row has some, and the walk down each tree",
    inputs=(
        _LOGITS,
        *(Array(item.name, item.dtype, _PLACES) for item in CHOOSE_TOKEN_PARTS.inputs[1:]),
        *_TREE,
    ),
    outputs=(
        *(Array(item.name, item.dtype, _PLACES) for item in CHOOSE_TOKEN_MERGE.outputs),
        *WALK_TREE.outputs,
    ),
    make=_sampled_trees,
    launches=(CHOOSE_TOKEN_PARTS, CHOOSE_TOKEN_MERGE, WALK_TREE),
)
REJECTION_CHAINS = Network(
    name="chains",
    summary="rejection sampling along chains that were drawn",
    inputs=(*CHAIN_ACCEPTANCE.inputs[:6], *CHAIN_DRAW.inputs[5:8]),
    outputs=(CHAIN_ACCEPTANCE.outputs[0], *CHAIN_FOLLOW.outputs),
    make=_rejection_chains,
    launches=CHAIN_REJECTION,
)
