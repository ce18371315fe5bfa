"""A target that is a function of the prefix, behind the real scheduler, cache bookkeeping and verification.

The runner keeps token ids where a model keeps keys and values, and reads every prefix back through the block table.
A wrong slot, copy, mask, position or block table therefore shows as a wrong prefix, at once and by assertion.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from trtspec.decoding.acceptance import Acceptance, exact
from trtspec.decoding.draft import Draft, ancestors
from trtspec.decoding.engine import Engine
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.plan import PlanRow, StepPlan, TargetOutput
from trtspec.decoding.proposer import BatchView, Needs, Proposer
from trtspec.decoding.stats import SpeculationStats
from trtspec.types import EngineEvent, Failed, Finish, Limits, PassRecord, Request, Started, StepOutput, TokenLogprobs

Law = Callable[[Sequence[int]], Sequence[float]]
"""Logits of the next token after a prefix."""


class Texts:
    """Numbers for texts: hidden states that tell exactly what was read."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self._texts: list[tuple[int, ...]] = []

    def number(self, text: Sequence[int]) -> int:
        key = tuple(text)
        if key not in self._numbers:
            self._numbers[key] = len(self._texts)
            self._texts.append(key)
        return self._numbers[key]

    def text(self, number: float) -> tuple[int, ...]:
        return self._texts[int(number)]


class ScriptedRunner:
    """Implements `Runner` for a law."""

    def __init__(self, law: Law, block_tokens: int, texts: Texts | None = None) -> None:
        self.law = law
        self.texts = texts
        self.plans: list[StepPlan] = []
        self.drafts: list[Draft] = []
        self._block_tokens = block_tokens
        self._cells: dict[int, int] = {}

    def forward(self, plan: StepPlan, draft: Draft) -> TargetOutput:
        self.plans.append(plan)
        self.drafts.append(draft)
        moved = {copy.destination: self._cells[copy.source] for copy in plan.copies}
        self._cells.update(moved)
        nodes = [draft.tokens[i, :count].tolist() for i, count in enumerate(draft.counts.tolist())]
        for row, tokens in zip(plan.rows, nodes, strict=True):
            self._write(row, tokens)
        seen = ancestors(draft)
        logits: list[Sequence[float]] = []
        features: list[int] = []
        for i, row in enumerate(plan.rows):
            prefix = [self._read(row, position) for position in range(row.next_position)]
            assert prefix == list(row.history[: row.next_position]), "the cache does not hold what was committed"
            logits += [self.law(prefix[: row.next_position - back]) for back in range(row.scored - 1, -1, -1)]
            paths = ([j for j in range(node + 1) if seen[i, node, j]] for node in range(len(nodes[i])))
            nodes_texts = [prefix + [self._read(row, row.next_position + j) for j in path] for path in paths]
            logits += [self.law(text) for text in nodes_texts]
            if self.texts:
                known = [prefix[: position + 1] for position in range(row.start, row.next_position)]
                features += [self.texts.number(text) for text in (*known, *nodes_texts)]
        found = torch.tensor(features, dtype=torch.float32).unsqueeze(1) if self.texts else None
        return TargetOutput(torch.tensor(logits, dtype=torch.float32), found)

    def _write(self, row: PlanRow, nodes: list[int]) -> None:
        """Store a row's tokens. All rows write before any row reads, as the layers of a model do."""
        for offset, token in enumerate([*row.tokens, *nodes]):
            assert token >= 0, "a placeholder was fed"
            self._cells[self._slot(row, row.start + offset)] = token

    def _read(self, row: PlanRow, position: int) -> int:
        return self._cells[self._slot(row, position)]

    def _slot(self, row: PlanRow, position: int) -> int:
        return row.blocks[position // self._block_tokens] * self._block_tokens + position % self._block_tokens


@dataclass
class Output:
    """What one output of a request came to."""

    ids: list[int] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    first_token_pass: int | None = None
    finish: Finish | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats.of(self.passes)


@dataclass
class Result:
    """What a request came to; ids, passes and so on are those of its first output."""

    outputs: dict[int, Output] = field(default_factory=lambda: defaultdict(Output))
    started_turn: int | None = None
    cached_tokens: int | None = None
    error: Exception | None = None

    @property
    def ids(self) -> list[int]:
        return self.outputs[0].ids

    @property
    def passes(self) -> list[PassRecord]:
        return self.outputs[0].passes

    @property
    def first_token_pass(self) -> int | None:
        return self.outputs[0].first_token_pass

    @property
    def finish(self) -> Finish | None:
        return self.outputs[0].finish

    @property
    def stats(self) -> SpeculationStats:
        return self.outputs[0].stats


def scripted_engine(
    law: Law,
    proposer: Proposer,
    *,
    vocabulary: int = 16,
    context: int = 256,
    batch: int = 8,
    pass_tokens: int = 64,
    blocks: int = 128,
    block_tokens: int = 4,
    prefix_sharing: bool = True,
    texts: Texts | None = None,
    acceptance: Acceptance = exact,
) -> tuple[Engine, ScriptedRunner]:
    """An engine over a law. Depth limits come from requests alone."""
    limits = Limits(
        max_context_tokens=context,
        max_batch_size=batch,
        max_draft_tokens=64,
        max_tree_nodes=64,
        max_pass_tokens=pass_tokens,
        kv_cache_tokens=blocks * block_tokens,
        vocabulary_size=vocabulary,
    )
    runner = ScriptedRunner(law, block_tokens, texts)
    return Engine(runner, proposer, KVCache(blocks, block_tokens, prefix_sharing), limits, acceptance), runner


def drive(
    engine: Engine,
    requests: Sequence[Request],
    *,
    join_every: int = 0,
    cancel: dict[str, int] | None = None,
    now: Callable[[int], float] = float,
) -> dict[str, Result]:
    """Turn the engine until all requests ended, checking its books after every turn.

    With `join_every` a request joins every so many turns, else all at once. `cancel` ends requests at given turns.
    """
    results = {request.request_id: Result() for request in requests}
    pending = list(requests)
    before = engine.stats().free_blocks
    turn = 0
    while pending or not engine.idle:
        while pending and (not join_every or turn % join_every == 0):
            engine.submit(pending.pop(0))
            if join_every:
                break
        for request_id in [name for name, at in (cancel or {}).items() if at == turn]:
            record(results, engine.cancel(request_id), turn)
        one_turn(engine, results, now(turn), turn)
        engine.check()
        turn += 1
        assert turn < 20_000, "the engine makes no progress"
    assert engine.stats().free_blocks == before, "blocks were lost"
    return results


def one_turn(engine: Engine, results: dict[str, Result], now: float, turn: int = 0) -> None:
    """Begin and finish a pass."""
    begun = engine.begin(now)
    record(results, begun.events, turn)
    if begun.plan is not None:
        record(results, engine.finish(begun.plan), turn)


def record(results: dict[str, Result], events: Sequence[EngineEvent], turn: int) -> None:
    """Add events to their requests' results, asserting the rules of a stream."""
    for event in events:
        result = results[event.request_id]
        assert result.error is None, "an event after the end"
        match event:
            case Started(cached_tokens=cached):
                assert result.started_turn is None, "started twice"
                result.started_turn, result.cached_tokens = turn, cached
            case StepOutput(token_ids=ids):
                assert result.started_turn is not None or not ids, "tokens before the start"
                _extend(result.outputs[event.output_index], event)
            case Failed(error=error):
                result.error = error
                for output in result.outputs.values():
                    _check_end(output)


def _extend(output: Output, event: StepOutput) -> None:
    assert output.finish is None, "an event after the end"
    assert sum(item.emitted for item in event.passes) == len(event.token_ids)
    assert not event.prompt_logprobs or not output.ids, "log-probabilities of the prompt after the first token"
    if event.token_ids and output.first_token_pass is None:
        output.first_token_pass = event.passes[0].pass_index
    output.ids += event.token_ids
    output.passes += event.passes
    output.finish = event.finish
    output.logprobs += event.logprobs
    output.prompt_logprobs += event.prompt_logprobs
    if event.finish:
        _check_end(output)


def _check_end(output: Output) -> None:
    output.stats.check()
    assert output.stats.completion_tokens == len(output.ids)


# ------------------------------------------------------------------ laws


def hashed_law(vocabulary: int = 16, salt: int = 0) -> Law:
    """Logits that depend on the whole prefix, without ties."""

    def law(prefix: Sequence[int]) -> list[float]:
        values = random.Random(f"{salt}:{','.join(map(str, prefix))}")
        return [values.uniform(-2.0, 2.0) for _ in range(vocabulary)]

    return law


def chain_law(then: Callable[[Sequence[int]], int], vocabulary: int = 16) -> Law:
    """A law that all but insists on one token."""

    def law(prefix: Sequence[int]) -> list[float]:
        return [30.0 if token == then(prefix) else 0.0 for token in range(vocabulary)]

    return law


def greedy(law: Law, prompt: Sequence[int], count: int) -> list[int]:
    """Plain greedy decoding, written down independently of the engine."""
    tokens = list(prompt)
    for _ in range(count):
        logits = law(tokens)
        tokens.append(max(range(len(logits)), key=logits.__getitem__))
    return tokens[len(prompt) :]


# ------------------------------------------------------------------ drafters


class ScriptedProposer:
    """Drafts what a function says: (tokens so far, depth) -> (tokens, parents)."""

    def __init__(self, draw: Callable[[Sequence[int], int], tuple[list[int], list[int]]], max_nodes: int = 8) -> None:
        self.needs = Needs(max_nodes=max_nodes, tree=True)
        self.views: list[BatchView] = []
        self._draw = draw

    def propose(self, view: BatchView) -> Draft:
        self.views.append(view)
        return Draft.trees([self._one(list(row.tokens), row.max_depth, row.max_nodes) for row in view.rows])

    def _one(self, tokens: list[int], depth: int, nodes: int) -> tuple[list[int], list[int]]:
        if depth == 0:
            return [], []
        drawn, parents = self._draw(tokens, depth)
        return drawn[:nodes], parents[:nodes]


def right_drafter(law: Law, depth: int = 4) -> ScriptedProposer:
    """A chain that is always what greedy decoding would choose."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        chain = greedy(law, tokens, min(depth, limit))
        return chain, list(range(-1, len(chain) - 1))

    return ScriptedProposer(draw, depth)


def wrong_drafter(law: Law, depth: int = 4, vocabulary: int = 16) -> ScriptedProposer:
    """A chain whose first token is never what greedy decoding would choose."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        chain = greedy(law, tokens, min(depth, limit))
        chain[0] = (chain[0] + 1) % vocabulary
        return chain, list(range(-1, len(chain) - 1))

    return ScriptedProposer(draw, depth)


def random_drafter(law: Law, depth: int = 4, vocabulary: int = 16, seed: int = 3) -> ScriptedProposer:
    """Random trees around the right chain: some depth right, siblings wrong, order shuffled among siblings."""
    values = random.Random(seed)

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        drawn: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in greedy(law, tokens, min(depth, limit)):
            siblings = values.sample([item for item in range(vocabulary) if item != token], values.randrange(3))
            right = values.randrange(len(siblings) + 1)
            siblings.insert(right, token if values.random() < 0.8 else (token + 1) % vocabulary)
            first = len(drawn)
            drawn += siblings
            parents += [parent] * len(siblings)
            parent = first + right
        return drawn, parents

    return ScriptedProposer(draw, 3 * depth)
