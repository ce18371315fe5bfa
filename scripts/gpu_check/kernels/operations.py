"""The operations that are measured: what they read, the kernels that do it, and the same in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plugins.contract import KernelSpec
from plugins.verification_specs import CHAIN_REJECTION
from scripts.gpu_check.kernels import torch_ways
from scripts.gpu_check.kernels.launches import CHOOSE_TOKEN, TOP_LOGITS, Arguments
from scripts.gpu_check.kernels.loads import BYTES, Load, Pool
from scripts.gpu_check.kernels.timing import Call


@dataclass(frozen=True, slots=True)
class Prepared:
    """Calls that take turns, and how many bytes of logits one of them reads."""

    arguments: Sequence[Arguments]
    torch_calls: Sequence[Call]
    reads: int

    def kernel_calls(self, changed: Mapping[str, KernelSpec] | None = None) -> list[Call]:
        """With some of the kernels' specifications changed."""
        other = changed or {}
        specs = [other.get(spec.name, spec) for spec in self.arguments[0].specs]
        return [replace(item, specs=specs).run for item in self.arguments]


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that kernels do."""

    name: str
    bytes_read: Callable[[Load], int]
    """At most, of logits."""
    prepare: Callable[[Load, Pool], Prepared]


def _rows_bytes(load: Load) -> int:
    return load.rows * load.vocabulary * BYTES


def _chains_bytes(load: Load) -> int:
    """Each row of target and draft, and where a chain ends both again."""
    return (load.rows + load.batch * (load.nodes + 2)) * load.vocabulary * BYTES


def _choose(load: Load, pool: Pool, noisy: int) -> Prepared:
    device, numbers = pool.logits.device, {"vocabulary": load.vocabulary, "lane": 0}
    places = torch.arange(load.rows, dtype=torch.int32, device=device)
    beside = {
        "seeds": places.long() * 7919,
        "positions": places,
        "choices": torch.zeros_like(places),
        "noisy": torch.full_like(places, noisy),
        "wanted": places % load.vocabulary,
    }
    wanted = beside["wanted"].long().unsqueeze(1)
    turns = [one for (one,) in pool.turns([(load.rows, load.vocabulary)])]
    arguments = [Arguments(CHOOSE_TOKEN, {"logits": logits, **beside}, numbers) for logits in turns]
    way = torch_ways.sample if noisy else torch_ways.choose
    return Prepared(arguments, [_call(way, logits, wanted) for logits in turns], _rows_bytes(load))


def _greedy(load: Load, pool: Pool) -> Prepared:
    return _choose(load, pool, noisy=0)


def _noisy(load: Load, pool: Pool) -> Prepared:
    return _choose(load, pool, noisy=1)


def _best(load: Load, pool: Pool) -> Prepared:
    turns = [one for (one,) in pool.turns([(load.rows, load.vocabulary)])]
    arguments = [Arguments(TOP_LOGITS, {"logits": logits}, {"vocabulary": load.vocabulary}) for logits in turns]
    return Prepared(arguments, [_call(torch_ways.best, logits) for logits in turns], _rows_bytes(load))


def _reject(load: Load, pool: Pool) -> Prepared:
    """Drafts are tokens at random, so that chains end anywhere; what was read is counted where they did end."""
    device, (batch, nodes, vocabulary) = pool.logits.device, (load.batch, load.nodes, load.vocabulary)
    draw = torch.Generator().manual_seed(batch + nodes)
    tokens = torch.randint(0, vocabulary, (batch, nodes), generator=draw).int().to(device)
    uniforms = torch.rand(batch, nodes, generator=draw).to(device)
    places = torch.arange(batch, dtype=torch.int32, device=device)
    zeros = torch.zeros_like(places)
    beside = {"tokens": tokens, "counts": zeros + nodes, "certain": zeros, "uniforms": uniforms}
    beside |= {"seeds": places.long() * 7919, "positions": places, "choices": zeros}
    turns = pool.turns([(batch, nodes + 1, vocabulary), (batch, nodes, vocabulary)])
    arguments = [
        Arguments(CHAIN_REJECTION, {"target": target, "draft": draft, **beside}, {"vocabulary": vocabulary})
        for target, draft in turns
    ]
    at = tokens.long()
    calls = [_call(torch_ways.reject, target, draft, at, uniforms) for target, draft in turns]
    return Prepared(arguments, calls, _rows_read(arguments[0], nodes) * vocabulary * BYTES)


def _rows_read(arguments: Arguments, nodes: int) -> int:
    """Target and draft of each node, and again where a chain ends; after the last node the target alone, once."""
    accepted = next(item.outputs[0] for item in arguments.launches() if item.spec.name == "chain_acceptance")
    whole = int((accepted == nodes).sum())
    return 2 * accepted.numel() * nodes + 2 * (accepted.numel() - whole) + whole


def _call(way: Callable[..., object], *arrays: Tensor) -> Call:
    return lambda: way(*arrays)


OPERATIONS = [
    Operation("choose_token, greedy", _rows_bytes, _greedy),
    Operation("choose_token, with noise", _rows_bytes, _noisy),
    Operation("top_logits", _rows_bytes, _best),
    Operation("chain_rejection", _chains_bytes, _reject),
]
