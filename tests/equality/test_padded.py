"""A padded pass says what the pass says as it is, through chunks, trees, copies and batches; caches stay equal too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from builders.build import main
from tests.models import tiny_llama
from tests.scripted import ScriptedProposer, drive
from trtspec.decoding.draft import Draft
from trtspec.decoding.engine import Engine
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.plan import StepPlan, TargetOutput
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded import decoder_config
from trtspec.executors.embedded.cache import CachePool
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.layout import row_parts
from trtspec.executors.embedded.model import eager_decoder
from trtspec.executors.embedded.padded import USES_BEFORE_RECORDING, Replay
from trtspec.executors.embedded.runner import EagerRunner
from trtspec.executors.embedded.weights import dense, load_weights
from trtspec.types import Limits, Request

CPU = torch.device("cpu")
BLOCK_TOKENS = 12
"""No power of two, so that contexts end inside a block."""
BLOCKS = 80
VOCABULARY = 260
LIMITS = Limits(256, 4, 8, 8, 90, BLOCKS * BLOCK_TOKENS, VOCABULARY)
"""A pass holds a chunk of a prompt too long to be padded."""
TOKENS = 24
TOLERANCE = 3e-5
"""Of logits about 10, in float32: products of other shapes sum in another order. States are larger: relative, too."""
PROMPTS = tuple(
    tuple(torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(length)).tolist())
    for length in (1, 11, 12, 40, 100)
)


class Repeat:
    """A recorder that records nothing, and counts."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def __call__(self, run: Replay) -> Replay:
        self.recorded += 1

        def replay() -> TargetOutput:
            self.replayed += 1
            return run()

        return replay


class Twins:
    """Runs every pass as it is and padded, over a pool each, and compares logits, states and what the pools hold."""

    def __init__(self, directory: Path) -> None:
        config = DecoderConfig.from_json(directory / decoder_config.NAME)
        model = eager_decoder(
            config, dense(load_weights(directory, config), torch.float32, CPU), 256, features=(1, LAST_HIDDEN)
        )
        self.pools = [CachePool(config, BLOCKS * BLOCK_TOKENS, torch.float32, CPU) for _ in range(2)]
        self.recorder = Repeat()
        self._exact = EagerRunner(model, self.pools[0], BLOCK_TOKENS, VOCABULARY)
        self._padded = EagerRunner(model, self.pools[1], BLOCK_TOKENS, VOCABULARY, self.recorder)
        self.copies = 0
        self.passes = 0

    def forward(self, plan: StepPlan, draft: Draft) -> TargetOutput:
        expected, found = self._exact.forward(plan, draft), self._padded.forward(plan, draft)
        assert expected.features is not None and found.features is not None
        torch.testing.assert_close(found.logits, expected.logits, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(found.features, expected.features, atol=TOLERANCE, rtol=TOLERANCE)
        slots = torch.tensor([slot for part in row_parts(plan, draft, BLOCK_TOKENS) for slot in part.slots])
        exact, padded = self.pools
        torch.testing.assert_close(padded.keys[:, slots], exact.keys[:, slots], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(padded.values[:, slots], exact.values[:, slots], atol=TOLERANCE, rtol=0)
        self.copies += len(plan.copies)
        self.passes += 1
        return expected


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("padded")
    folder = tiny_llama(root / "model", kv_heads=1, tie=False, seed=6)
    argv = ["--method", "none", "--target", str(folder), "--output", str(root / "engine"), "--runner", "eager"]
    assert main([*argv, "--dtype", "float32"]) == 0
    return root / "engine"


@pytest.fixture
def twins(directory: Path) -> Twins:
    return Twins(directory)


def run(twins: Twins, proposer: ScriptedProposer, depth: int) -> list[Sequence[int]]:
    """The texts of all prompts, joining one after the other, their prompts in chunks of few tokens and of many."""
    engine = Engine(twins, proposer, KVCache(BLOCKS, BLOCK_TOKENS), LIMITS)
    asked = [Request(str(i), prompt, TOKENS, max_draft_tokens=depth) for i, prompt in enumerate(PROMPTS)]
    results = drive(engine, asked, join_every=2)
    return [results[request.request_id].ids for request in asked]


def forked(texts: Sequence[Sequence[int]]) -> ScriptedProposer:
    """Trees around a known text: its tokens are second siblings, so that accepted nodes lie scattered."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        prompt, text = next(
            pair for pair in zip(PROMPTS, texts, strict=True) if tuple(tokens)[: len(pair[0])] == pair[0]
        )
        nodes: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in text[len(tokens) - len(prompt) :][: min(limit, 3)]:
            nodes += [(token + 1) % VOCABULARY, token]
            parents += [parent, parent]
            parent = len(nodes) - 1
        return nodes, parents

    return ScriptedProposer(draw, 6)


def test_padded_passes_say_what_passes_say_as_they_are(twins: Twins) -> None:
    plain = run(twins, ScriptedProposer(lambda tokens, limit: ([], [])), 0)
    assert twins.copies == 0
    assert run(twins, forked(plain), 8) == plain
    assert twins.copies > 20
    assert twins.recorder.replayed > twins.passes / 2
    assert twins.recorder.recorded < 12


def test_padding_never_touches_a_slot_of_others(twins: Twins) -> None:
    """All slots that no row owns hold NaN, the scratch slot apart: whatever reads one spoils the comparison."""
    for pool in twins.pools:
        pool.keys[:, : pool.scratch] = math.nan
        pool.values[:, : pool.scratch] = math.nan
    run(twins, ScriptedProposer(lambda tokens, limit: ([], [])), 0)
    assert twins.recorder.replayed > twins.passes / 2
    untouched = twins.pools[0].keys[0, :, 0, 0].isnan()
    assert untouched.any()
    assert torch.equal(twins.pools[1].keys[0, :, 0, 0].isnan(), untouched)


def test_a_shape_is_recorded_when_it_has_come_often(directory: Path) -> None:
    twins = Twins(directory)
    engine = Engine(twins, ScriptedProposer(lambda tokens, limit: ([], [])), KVCache(BLOCKS, BLOCK_TOKENS), LIMITS)
    drive(engine, [Request("0", (5,), USES_BEFORE_RECORDING)])
    assert (twins.recorder.recorded, twins.recorder.replayed) == (1, 1)
