"""Launches the kernels that verify drafts on PyTorch's tensors; names and arguments are those of the eager twins."""

from __future__ import annotations

from torch import Tensor

from plugins.eager_verification import ChainOutcome
from plugins.launch import launch
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


def _check_places(name: str, over_places: Tensor, tokens: Tensor) -> None:
    """What a kernel cannot see: it would read and write elsewhere."""
    nodes = tokens.shape[1]
    if nodes > MOST_NODES:
        raise ValueError(f"tokens: {nodes} nodes a row; at most {MOST_NODES}")
    if over_places.shape[1] != nodes + 1:
        raise ValueError(f"{name}: {over_places.shape[1]} places a row for {nodes} nodes; wanted is one more")
