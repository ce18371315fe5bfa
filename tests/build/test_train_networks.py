"""What is trained is what an engine computes, and each guess stands beside the token that it guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from builders.training.answers import Conversation
from builders.training.examples import Batch, batches, collate, once, split
from builders.training.features import open_store, write_features
from builders.training.guesses import NEVER, Vocabulary, losses, ranks
from builders.training.networks import create, shifted
from builders.training.target import Target
from builders.training.vocabulary import draft_vocabulary
from tests import training_data
from tests.training_data import METHODS, run
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import Drafter, DraftPlan, DraftRow
from trtspec.executors.embedded import drafter_config, drafter_weights
from trtspec.executors.embedded.drafter_config import HEADS, TOKENS, DrafterConfig
from trtspec.executors.embedded.drafter_weights import load_drafter
from trtspec.executors.embedded.runners import RUNNERS, Shape, StoredDrafter
from trtspec.executors.embedded.weights import Int8Weight

TOLERANCE = 1e-4
"""Of logits about 5, in float32: another order of summation moves them by some 1e-5."""
LENGTH, DEPTH = 21, 3
BF16 = 2**-8


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(training_data.engine(tmp_path_factory.mktemp("target")))


def opened(folder: Path, target: Target) -> tuple[DrafterConfig, Drafter]:
    config = DrafterConfig.from_json(folder / drafter_config.NAME)
    shape = Shape(
        config=target.config,
        dtype=torch.float32,
        device=torch.device("cpu"),
        positions=64,
        vocabulary_size=target.manifest.vocabulary_size,
        block_tokens=16,
        blocks=4,
        threads=1,
    )
    stored = StoredDrafter(config, load_drafter(folder, config, target.weights))
    return config, RUNNERS["eager"].create(shape, target.weights, stored).drafter


def batch_of(target: Target) -> Batch:
    torch.manual_seed(3)
    tokens = torch.randint(0, 200, (1, LENGTH))
    features = torch.randn(1, LENGTH, len(target.features) * target.config.hidden_size)
    return Batch(tokens, features, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([LENGTH]))


def said_by_engine(config: DrafterConfig, drafter: Drafter, batch: Batch, columns: slice, origin: int) -> list[Tensor]:
    """The logits at each depth after the text up to the token behind `origin`, as decoding would ask for them."""
    features, tokens = batch.features[0, : origin + 1, columns], batch.tokens[0].tolist()
    if config.kind == HEADS:
        assert drafter.heads is not None
        return list(drafter.heads.forward(features[-1:])[0, :DEPTH])
    (network,) = drafter.modules
    whole = config.kind == TOKENS
    fed: Sequence[int] = tokens[: origin + 2] if whole else tokens[1 : origin + 2]
    states, logits, start = None if whole else network.states(features), [], 0
    for depth in range(DEPTH):
        row = DraftRow(fed, start, range(4), scored=1)
        output = network.forward(DraftPlan((row,)), Draft.empty(1), states)
        logits.append(output.logits[-1].clone())
        start += len(fed)
        fed, states = tokens[origin + 2 + depth : origin + 3 + depth], None if whole else output.states[-1:].clone()
    return logits


@pytest.mark.parametrize("method", METHODS)
def test_engines_compute_what_was_trained(method: str, target: Target, tmp_path: Path) -> None:
    assert run(method, target.directory, tmp_path, "--steps", "2") == 0
    config, drafter = opened(tmp_path / method, target)
    stored = load_dense(tmp_path / method)
    ids = stored.pop(drafter_weights.TOKEN_IDS).long()
    begin = target.features.index(config.features[0]) * 32 if config.features else 0
    columns = slice(begin, begin + 32 * len(config.features))
    network = create(config, target.embedding, columns)
    network.load_state_dict({name.removeprefix(network.prefix): value for name, value in stored.items()})
    batch, head = batch_of(target), Int8Weight.of(target.head_rows(ids)).dense(torch.float32)
    with torch.no_grad():
        guesses = network(batch, DEPTH)
    for origin in (0, 5, LENGTH - 5):
        for guess, logits in zip(guesses, said_by_engine(config, drafter, batch, columns, origin), strict=True):
            assert torch.allclose(guess[0, origin] @ head.T, logits, atol=TOLERANCE)


def load_dense(folder: Path) -> dict[str, Tensor]:
    """The stored tensors as float32, int8 matrices times their scales."""
    found = load_file(folder / drafter_weights.NAME)
    scales = {name: found.pop(name) for name in list(found) if name.endswith(".scales")}
    for name, scale in scales.items():
        base = name.removesuffix(".scales")
        found[base] = found[base] * scale.unsqueeze(1)
    return {name: value.float() for name, value in found.items()}


def test_features_are_the_hidden_states_of_an_independent_engine(target: Target, tmp_path: Path) -> None:
    conversations = [Conversation(str(i), (5, 6 + i), tuple(range(7, 20 + 9 * i))) for i in range(3)]
    store = open_store(target, tmp_path)
    assert sum(write_features(target, conversations, store)) == store.tokens == 15 + 24 + 33
    assert list(write_features(target, conversations, open_store(target, tmp_path))) == []
    model = AutoModelForCausalLM.from_pretrained(target.directory.parent / "model")
    for item in conversations:
        with torch.no_grad():
            states = model(torch.tensor([item.tokens]), output_hidden_states=True).hidden_states
        wanted = torch.cat([states[index][0] for index in target.features], dim=1)
        assert torch.allclose(open_store(target, tmp_path).read(item).float(), wanted, rtol=BF16, atol=1e-4)


def test_a_drafter_that_knew_the_targets_states_would_lose_nothing() -> None:
    torch.manual_seed(0)
    width, vocabulary = 8, Vocabulary(torch.arange(0, 40, 2), torch.randn(20, 8))
    features = 3 * torch.randn(2, 12, width)
    best = vocabulary.token_ids[(features @ vocabulary.head.T).argmax(-1)]
    tokens = torch.cat([torch.zeros(2, 1, dtype=torch.int64), best[:, :-1]], dim=1)
    answer = torch.zeros(2, 12, dtype=torch.bool)
    answer[0, 4:], answer[1, 6:10] = True, True
    batch = Batch(tokens, features, answer, torch.tensor([12, 10]))
    knowing = [shifted(features, 1 + depth) for depth in range(3)]
    for guess in knowing:
        guess[0, :3], guess[1, :5] = 99.0, 99.0  # what is guessed before the answer's first token counts nowhere
    for item in losses(knowing, batch, vocabulary):
        assert float(item.state) == 0.0
    found = ranks(knowing, batch, [vocabulary] * 3)
    assert [item.shape for item in found] == [(7, 3), (3, 3)]
    assert found[0].tolist() == [[0, 0, 0]] * 5 + [[0, 0, NEVER], [0, NEVER, NEVER]]
    late = [shifted(features, 2 + depth) for depth in range(3)]
    pairs = zip(losses(late, batch, vocabulary), losses(knowing, batch, vocabulary), strict=True)
    assert all(off.state > 0 and off.law > good.law for off, good in pairs)
    odd = batch.tokens.clone()
    odd[0, 6] = 1  # a token that cannot be drafted
    changed = replace(batch, tokens=odd)
    assert ranks(knowing, changed, [vocabulary] * 3)[0][:2, :2].tolist() == [[0, NEVER], [NEVER, 0]]


def test_what_is_held_out_is_never_learnt_from(target: Target, tmp_path: Path) -> None:
    conversations = [Conversation(str(i), (3 + i % 150, 4), (5, 6, i % 200, i // 200)) for i in range(300)]
    parts = split(conversations)
    assert split(list(reversed(conversations))) == parts
    assert sum(map(len, parts)) == 300 and 2 <= len(parts.choosing) <= len(parts.held_out) <= 12
    assert all(all(split(conversations[:count])) for count in range(3, 9))
    prompts = [{item.prompt for item in part} for part in parts]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 150
    store = open_store(target, tmp_path)
    assert sum(write_features(target, conversations, store)) == 1800
    stream = batches(parts.training, store, 120, seed=1)
    seen: list[tuple[int, ...]] = []
    while len(seen) < len(parts.training):
        seen += [tuple(row) for row in next(stream).tokens.tolist()]
    assert sorted(seen) == sorted(item.tokens for item in parts.training)
    measured = [tuple(row) for batch in once(parts.held_out, store, 120) for row in batch.tokens.tolist()]
    assert sorted(measured) == sorted(item.tokens for item in parts.held_out)


def test_batches_of_a_later_start_are_those_of_the_whole_stream(target: Target, tmp_path: Path) -> None:
    conversations = [Conversation(str(i), (3 + i, 4), tuple(range(5, 8 + i % 7))) for i in range(40)]
    store = open_store(target, tmp_path)
    list(write_features(target, conversations, store))
    whole, late = batches(conversations, store, 60, seed=2), batches(conversations, store, 60, seed=2, first=7)
    for _ in range(7):
        next(whole)
    for _ in range(5):
        assert next(whole).tokens.equal(next(late).tokens)
    batch = collate(conversations[:2], store)
    assert batch.answer.tolist() == [[False, False, True, True, True, False], [False, False, True, True, True, True]]


def test_vocabulary_holds_ends_then_the_most_frequent() -> None:
    said = [Conversation("a", (1,), (9, 9, 9, 7, 7, 5, 4))]
    assert draft_vocabulary(said, 4, 20, {2}).tolist() == [2, 4, 7, 9]
    assert draft_vocabulary(said, 30, 6, {2}).tolist() == [0, 1, 2, 3, 4, 5]
    found = Vocabulary(torch.tensor([2, 4, 9]), torch.zeros(3, 1)).places(torch.tensor([9, 3, 2, 11]))
    assert found.tolist() == [2, 3, 0, 3]
