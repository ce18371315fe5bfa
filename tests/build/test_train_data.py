"""What is learnt from: rows of both sources, weights of guesses, answers and features that outlast an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn.functional import cross_entropy

from builders.training import answers as answering
from builders.training.answers import Conversation, read_conversations, write_answers
from builders.training.batch import Answer
from builders.training.beginnings import _inverse
from builders.training.conversations import Template
from builders.training.course import Course
from builders.training.examples import Split, collate, split
from builders.training.features import FeatureStore, Shelf
from builders.training.guesses import NEVER, Vocabulary, losses, ranks
from builders.training.lock import locked
from builders.training.loop import Lesson, _first
from builders.training.material import given
from builders.training.measure import TOP
from builders.training.networks import HeadsNetwork, shifted
from builders.training.outcome import measured, suited
from builders.training.recipe import STYLES, Training
from builders.training.recorder import Recorder
from builders.training.schedule import Budget
from builders.training.state import NAME, Run
from tests.models import CHAT_TEMPLATE, tiny_tokenizer
from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import PlanRow, StepPlan, TargetOutput
from trtspec.errors import ConfigError
from trtspec.executors.embedded.drafter_config import HEADS, DrafterConfig
from trtspec.types import FinishReason, Method, Request

WIDTH = 4
EOS = 2
TALK = Conversation("a", (5, 6), (7, 8, EOS))


def store_with(directory: Path, *items: tuple[Conversation, int]) -> FeatureStore:
    """Features of so many of each conversation's tokens."""
    torch.manual_seed(0)
    store = FeatureStore(directory, WIDTH)
    shelf = Shelf(store)
    for item, count in items:
        shelf.put(item, torch.randn(16, WIDTH)[:count])
    shelf.close()
    return store


def test_the_end_of_a_text_is_learnt_and_counted_whether_or_not_it_has_features(tmp_path: Path) -> None:
    vocabulary = Vocabulary(torch.arange(10), torch.randn(10, WIDTH))
    found = []
    for count in (4, 5):
        store = store_with(tmp_path / str(count), (TALK, count))
        batch = collate([TALK], store)
        assert batch.tokens.tolist() == [[5, 6, 7, 8, EOS]] and batch.lengths.tolist() == [5]
        assert batch.answer.tolist() == [[False, False, True, True, True]]
        assert bool(batch.features[0, 4].any()) == (count == 5)
        knowing = [shifted(batch.features, 1)]
        (loss,) = losses(knowing, batch, vocabulary)
        (rank,) = ranks(knowing, batch, [vocabulary])
        assert rank.shape == (2, 1) and int(rank.max()) < NEVER
        found.append((float(loss.law), rank.tolist()))
    assert found[0] == found[1]


def test_no_rows_lose_nothing(tmp_path: Path) -> None:
    short = Conversation("s", (5, 6, 7), (8, EOS))
    batch = collate([short], store_with(tmp_path, (short, 5)))
    guesses = [torch.randn(1, 5, WIDTH, requires_grad=True) for _ in range(2)]
    first, second = losses(guesses, batch, Vocabulary(torch.arange(10), torch.randn(10, WIDTH)))
    assert float(first.law.detach()) > 0 and [float(item.detach()) for item in second] == [0.0, 0.0]
    nothing = replace(batch, answer=torch.zeros_like(batch.answer))
    for item in losses(guesses, nothing, Vocabulary(torch.arange(10), torch.randn(10, WIDTH))):
        torch.autograd.backward(item.law + item.state)
        assert [float(part.detach()) for part in item] == [0.0, 0.0]
    assert guesses[0].grad is not None and not guesses[0].grad.any()


def test_guesses_of_what_cannot_be_drafted_do_not_count(tmp_path: Path) -> None:
    """Of the three tokens of the answer that follow another one, the vocabulary lacks one."""
    batch = collate([TALK], store_with(tmp_path, (TALK, 4)))
    head, coming = torch.randn(10, WIDTH), TALK.answer[1:]
    guess = torch.randn(1, len(TALK.tokens), WIDTH)
    kept = torch.tensor(sorted({*range(10)} - {coming[0]}))
    found = losses([guess], batch, Vocabulary(kept, head[kept]))[0].law
    laws = (batch.features[0] @ head[kept].T).softmax(dim=1)
    places = [len(TALK.prompt) + i for i, token in enumerate(coming) if token != coming[0]]
    each = [cross_entropy((guess[0, place - 1] @ head[kept].T), laws[place]) for place in places]
    assert 0 < len(each) < len(coming) and torch.allclose(found, torch.stack(each).mean(), atol=1e-5)


def test_features_belong_to_a_text(tmp_path: Path) -> None:
    store_with(tmp_path, (TALK, 5))
    store = FeatureStore(tmp_path, WIDTH)
    assert store.find(TALK) is not None and store.find(replace(TALK, key="another name")) is not None
    assert store.find(replace(TALK, answer=(7, 9, EOS))) is None
    Shelf(store).close()


def test_features_of_older_runs_are_found_by_key_and_length(tmp_path: Path) -> None:
    before = store_with(tmp_path, (TALK, 4), (replace(TALK, key="b", answer=(3, EOS)), 4)).read(TALK)
    (index,) = tmp_path.glob("*.json")
    index.write_text(json.dumps([[key, count] for key, count, _ in json.loads(index.read_text())]))
    store = FeatureStore(tmp_path, WIDTH)
    assert store.read(TALK).equal(before)
    assert store.find(replace(TALK, answer=(7, 8, 9, EOS))) is None
    assert store.find(replace(TALK, key="unknown")) is None


def test_one_run_at_a_time_in_a_work_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "form", tmp_path):
        with pytest.raises(ConfigError, match=r"--work .*another run.*give another --work"):
            locked(tmp_path / "form", tmp_path).__enter__()
        with locked(tmp_path / "other", tmp_path):
            pass
    with locked(tmp_path / "form", tmp_path):
        pass


def answer_all(monkeypatch: pytest.MonkeyPatch, path: Path, count: int, stop_after: int) -> list[Request]:
    """The requests that are made for so many prompts, until some are answered."""
    made: list[Request] = []

    def answered(engine: object, requests: Any, batch_size: int) -> Any:
        for request in requests:
            made.append(request)
            yield Answer(request, (7, EOS), FinishReason.EOS)

    monkeypatch.setattr(answering, "run_requests", answered)
    prompts = [(f"k{i}", f"word {i}") for i in range(count)]
    engine = cast(Any, None)
    said = write_answers(engine, Template(tiny_tokenizer()), prompts, frozenset({EOS}), path, 100, 8)
    for _, _ in zip(range(stop_after), said, strict=False):
        pass
    cast(Any, said).close()
    return made


def test_answers_after_an_interruption_are_those_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = answer_all(monkeypatch, tmp_path / "whole", 9, 9)
    assert [item.seed for item in whole] == list(range(100, 109)) and whole[3].sampling != whole[2].sampling
    path = tmp_path / "parts"
    first = answer_all(monkeypatch, path, 9, 3)
    kept = path.read_bytes()
    path.write_bytes(kept + b'{"key":"k5","pro')
    inode = path.stat().st_ino
    second = answer_all(monkeypatch, path, 9, 9)
    assert first[:3] + second == whole
    assert path.stat().st_ino == inode and path.read_bytes().startswith(kept)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(read_conversations(path)) == 9


def test_answers_that_are_given_as_text_end_as_the_target_ends_its_own() -> None:
    tokenizer = tiny_tokenizer()
    assert Template(tokenizer).answer_end({0, 2}) == (2,)
    assert Template(tokenizer).answer_end(()) == (2,)
    tokenizer.chat_template = CHAT_TEMPLATE.replace(
        "+ '<|im_end|>\n'", "+ ('<|im_end|>' if message['role'] == 'user' else '')"
    )
    assert Template(tokenizer).end == 2 and Template(tokenizer).answer_end({0}) == (0,)
    tokenizer.chat_template = "{% for message in messages %}{{ message['role'] + message['content'] }}{% endfor %}"
    with pytest.raises(ConfigError, match="nothing after a user's words"):
        Template(tokenizer)


def test_given_texts_become_a_conversation_that_ends(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    speaker = SimpleNamespace(template=Template(tokenizer), tokenizer=tokenizer, answer_end=(9, 8), longest=30)
    data, store = tmp_path / "data.jsonl", FeatureStore(tmp_path / "features", WIDTH)
    data.write_text(json.dumps({"prompt": "a", "answer": "b"}) + "\n")
    speaker.answer = lambda prompts, path, seed, store: []
    (found,) = given("--data", data, cast(Any, speaker), tmp_path, 0, store)
    assert found.answer == (*tokenizer.encode("b"), 9, 8)[: 30 - len(found.prompt)]


TRAINING = Training(Method.EAGLE, 1, 2, 8, 100, STYLES[Method.EAGLE].learning_rate, 0.2, 0)


def course(data: Path, root: Path) -> Course:
    return Course(TRAINING, Budget(1.0), data, 0, root, root, "", 32)


def test_a_run_is_named_by_what_its_data_hold(tmp_path: Path) -> None:
    for name, text in (("one.jsonl", "a"), ("two.jsonl", "a"), ("three.jsonl", "b")):
        (tmp_path / name).write_text(text)
    one, two, three = (course(tmp_path / name, tmp_path) for name in ("one.jsonl", "two.jsonl", "three.jsonl"))
    assert one.name == two.name != three.name
    (tmp_path / "one.jsonl").write_text("c")
    assert one.name != two.name
    assert one.source == "one.jsonl"


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    config = DrafterConfig(HEADS, None, (-1,), 8, own_embedding=False, own_head=False, modules=2)
    Run.begin(HeadsNetwork(config, WIDTH, slice(0, WIDTH)), 0.1).save(tmp_path)
    other = Run.begin(HeadsNetwork(replace(config, modules=1), WIDTH, slice(0, WIDTH)), 0.1)
    with pytest.raises(ConfigError, match=rf"{NAME} is not the state of this run .*remove"):
        other.resume(tmp_path)
    torch.save({"network": {}}, tmp_path / NAME)  # which is a pickle
    with pytest.raises(ConfigError, match="is not the state of this run"):
        other.resume(tmp_path)
    (tmp_path / NAME).write_bytes(b"half a file")
    with pytest.raises(ConfigError, match="is not the state of this run"):
        other.resume(tmp_path)


def test_what_is_reported_chose_nothing(tmp_path: Path) -> None:
    parts = split([Conversation(str(i), (i,), (3, EOS)) for i in range(400)])
    assert isinstance(parts, Split) and len(parts.choosing) > 2
    assert abs(len(parts.choosing) - len(parts.held_out)) <= 1
    store = store_with(tmp_path, *((item, 3) for item in parts.choosing))
    vocabulary = Vocabulary(torch.arange(10), torch.randn(10, WIDTH))
    lesson = Lesson(TRAINING, vocabulary, parts, store, Budget(1.0), torch.device("cpu"))
    assert _first(lesson) == parts.choosing
    good, bad = [torch.tensor([[0, 0]] * 8)], [torch.tensor([[1, 1]] * 8)]
    heads, deep = replace(TRAINING, method=Method.MEDUSA), [torch.tensor([[0, 0, 0]] * 8)]
    assert suited(heads, good, 32)["tree"] == [[0], [0, 0]]
    assert suited(heads, good, 1) == {"num_speculative_tokens": 1, "tree": [[0]]}
    eagle = replace(TRAINING, method=Method.EAGLE)
    assert [suited(eagle, deep, nodes)["num_speculative_tokens"] for nodes in (2, 3, 32)] == [2, 3, 3]
    grown = {"num_speculative_tokens": 3, "dynamic_tree": True, "max_tree_nodes": 3, "tree_width": 3}
    assert suited(eagle, deep, 3) == grown
    assert suited(replace(TRAINING, method=Method.DRAFT_MODEL), deep, 32) == {"num_speculative_tokens": 3}
    card = measured(bad, chosen_by=good)
    assert card[f"depth 1: top {', '.join(map(str, TOP))}"][0] == 0.0
    assert card["tokens per pass, trees"]["8"] == 1.0


def _plan(request: Request) -> StepPlan:
    row = PlanRow(0, request, (5, 6), 0, 2, True, True, 0, 0, range(1), 0, 1)
    return StepPlan(0, (row,))


def test_a_paused_recorder_keeps_nothing() -> None:
    request = Request("r", prompt=(5, 6), max_tokens=1)
    plan = _plan(request)
    runner = SimpleNamespace(forward=lambda plan, draft: TargetOutput(torch.zeros(1, 9), torch.ones(2, WIDTH)))
    recorder = Recorder(cast(Any, runner))
    with recorder.paused():
        recorder.forward(plan, Draft.empty(1))
    with pytest.raises(KeyError):
        recorder.take("r")
    recorder.forward(plan, Draft.empty(1))
    assert recorder.take("r").shape == (2, WIDTH)


def test_states_under_a_norm_of_nothing_are_not_blown_up() -> None:
    found = _inverse(torch.tensor([2.0, 0.0, -4.0, 1e-9]))
    assert found.tolist() == [0.5, 0.0, -0.25, 0.0]
