"""Networks of plugins: kernels' launches, joined by the names of what they write and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from builders.verification.layers import Layers, Tensor
from builders.verification.limits import Limits
from plugins.contract import KernelSpec
from plugins.sampling_specs import CHOOSE_TOKEN_MERGE, CHOOSE_TOKEN_PARTS
from plugins.symbolic import numbers_of
from plugins.verification_specs import CHAIN_REJECTION, WALK_TREE
from trtspec.decoding.rng import Lane


class Launching(Layers, Protocol):
    """Layers that hold plugins, too."""

    def launch(self, spec: KernelSpec, inputs: Sequence[Tensor], numbers: Mapping[str, int]) -> tuple[Tensor, ...]:
        """What a plugin writes."""


def sampled_trees(layers: Launching, inputs: Mapping[str, Tensor], limits: Limits) -> dict[str, Tensor]:
    """The target's choice at each place, and how far down each tree that leads. Kernels take places as rows."""
    shape = layers.shape(inputs["logits"])
    flat = layers.constant([-1], "int64", [1])
    arrays = {item.name: layers.reshape(inputs[item.name], flat) for item in CHOOSE_TOKEN_PARTS.inputs[1:]}
    arrays["logits"] = layers.reshape(inputs["logits"], layers.join([flat, layers.pick(shape, [2])], 0))
    arrays = _launch_all(layers, (CHOOSE_TOKEN_PARTS, CHOOSE_TOKEN_MERGE), arrays, limits)
    grid = layers.pick(shape, [0, 1])
    chosen = {item.name: layers.reshape(arrays[item.name], grid) for item in CHOOSE_TOKEN_MERGE.outputs}
    return _launch_all(layers, (WALK_TREE,), {**inputs, **chosen}, limits)


def rejection_chains(layers: Launching, inputs: Mapping[str, Tensor], limits: Limits) -> dict[str, Tensor]:
    """Rejection sampling along chains."""
    return _launch_all(layers, CHAIN_REJECTION, inputs, limits)


def _launch_all(
    layers: Launching, specs: Sequence[KernelSpec], inputs: Mapping[str, Tensor], limits: Limits
) -> dict[str, Tensor]:
    """The arrays there are after these launches."""
    arrays = dict(inputs)
    numbers = {"vocabulary": limits.vocabulary, "lane": int(Lane.TARGET)}
    for spec in specs:
        given = {name: numbers[name] for name in numbers_of(spec)}
        written = layers.launch(spec, [arrays[item.name] for item in spec.inputs], given)
        arrays |= {item.name: tensor for item, tensor in zip(spec.outputs, written, strict=True)}
    return arrays
