"""`python -m builders.train` from flags to a drafter's folder, for every method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builders import build, train
from builders.drafts import native
from builders.training.answers import read_conversations
from builders.training.course import Looker
from builders.training.features import open_store, write_features
from builders.training.state import Run
from builders.training.target import Target
from tests import training_data
from tests.training_data import METHODS, run, saved, write_data
from trtspec import manifest


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_data.engine(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_and_leaves_a_drafter_that_builds(
    method: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(method, target, tmp_path) == 0
    assert f"--method {method} --draft {tmp_path / method}" in capsys.readouterr().out
    losses = [record["loss"] for record in saved(tmp_path)["history"] if record["loss"] is not None]
    assert min(losses) < 0.95 * losses[0]
    card = native.open_native(tmp_path / method).card
    assert (card.method.value, card.target_sha256) == (method, manifest.read(target).target_sha256)
    assert card.training["steps"] == 8 and card.training["data"] == "data.jsonl"
    assert card.training["command"].startswith(
        f"python -m builders.train --method {method} --target engine --data data"
    )
    assert str(tmp_path) not in (tmp_path / method / "proposer.json").read_text()
    assert (tmp_path / method / "curves.png").read_bytes().startswith(b"\x89PNG")
    ids = load_file(tmp_path / method / "drafter.safetensors")["token_ids"].tolist()
    assert len(ids) == 60 and ids == sorted(set(ids)) and {0, 2} <= set(ids)
    model = str(target.parent / "model")
    argv = ["--target", model, "--draft", str(tmp_path / method), "--output", str(tmp_path / "engine")]
    assert build.main(["--method", method, "--runner", "eager", *argv]) == 0
    assert manifest.read(tmp_path / "engine").smoke["equal"] is True


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    data = write_data(tmp_path / "data.jsonl")
    assert run("eagle", target, whole, data=data) == 0
    stepped = Looker.stepped

    def stop_at_three(self: Looker, run: Run, progress: float) -> None:
        stepped(self, run, progress)
        self.stop = self.stop or run.steps == 3

    with monkeypatch.context() as patch:
        patch.setattr(Looker, "stepped", stop_at_three)
        assert run("eagle", target, parts, data=data) == 130
    assert "goes on from here" in capsys.readouterr().err
    assert saved(parts)["steps"] == 3 and not (parts / "eagle").exists()
    assert run("eagle", target, parts, data=data) == 0
    first, second = (load_file(root / "eagle" / "drafter.safetensors") for root in (whole, parts))
    assert set(first) == set(second) and all(first[name].equal(second[name]) for name in first)
    assert [item["accuracies"] for item in saved(whole)["history"]] == [
        item["accuracies"] for item in saved(parts)["history"]
    ]


def test_the_target_answers_prompts_that_have_no_answer(target: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"what is {i}?"}) + "\n" for i in range(4)))
    assert run("medusa", target, tmp_path, "--steps", "1", data=data) == 0
    (answers,) = (tmp_path / "work").glob("*/answers-*.jsonl")
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len({line["key"] for line in lines}) == 4 and all(line["answer"] for line in lines)
    before = answers.stat().st_mtime_ns
    assert run("medusa", target, tmp_path, "--steps", "1", data=data) == 0
    assert answers.stat().st_mtime_ns == before


def test_what_is_computed_while_answering_is_what_a_pass_over_the_whole_text_computes(
    target: Path, tmp_path: Path
) -> None:
    """The last token is read by no pass; all others have their features, so that none is computed again."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"what is {i}?" * (i + 1)}) + "\n" for i in range(5)))
    assert run("medusa", target, tmp_path, "--steps", "1", data=data) == 0
    teacher = Target(target)
    (answers,) = (tmp_path / "work").glob("*/answers-*.jsonl")
    while_answering = open_store(teacher, answers.parent / "features")
    conversations = read_conversations(answers)
    again = open_store(teacher, tmp_path / "again")
    assert sum(write_features(teacher, conversations, again)) == sum(len(item.tokens) for item in conversations)
    for item in conversations:
        rows = while_answering.read(item).float()
        assert len(rows) == len(item.tokens) - 1
        torch.testing.assert_close(rows, again.read(item)[:-1].float(), atol=0.02, rtol=0.02)


def test_user_turns_are_made_up_where_there_is_no_data(target: Path, tmp_path: Path) -> None:
    argv = ["--method", "medusa", "--target", str(target), "--work", str(tmp_path / "work"), "--synthesize", "40"]
    assert train.main([*argv, "--output", str(tmp_path / "out"), "--steps", "1", "--draft-vocabulary", "60"]) == 0
    (prompts,) = (tmp_path / "work").glob("*/prompts-*.jsonl")
    assert 1 < len(prompts.read_text().splitlines()) <= 40


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert train.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", "line 1 is not JSON"),
        ('{"text": "a"}', 'line 1 has no "prompt"'),
        ('{"prompt": [1, 2]}', "token ids and no answer"),
        ('{"prompt": "a", "answer": [1]}', "must both be"),
        ('{"prompt": [1], "answer": [999999]}', "must both be"),
        ('{"prompt": "a", "answer": "b c"}', "at least three different prompts"),
    ],
)
def test_bad_data_is_refused_with_its_line(
    line: str, words: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(line + "\n")
    argv = ["--method", "eagle", "--target", str(target), "--work", str(tmp_path / "work")]
    error = refused([*argv, "--data", str(data), "--output", str(tmp_path / "out")], capsys)
    assert "--data" in error and words in error
    assert not (tmp_path / "out").exists()


def test_bad_flags_are_refused_before_anything_is_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--method", "eagle", "--work", str(tmp_path / "work")]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    assert "is no drafter" in refused([*argv, "--output", str(tmp_path / "full")], capsys)
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "drafter.json").write_text("{}")
    (tmp_path / "engine" / "manifest.json").write_text("{}")
    assert "is an engine (it has manifest.json)" in refused([*argv, "--output", str(tmp_path / "engine")], capsys)
    new = [*argv, "--output", str(tmp_path / "new")]
    assert "--minutes is -1.0" in refused([*new, "--minutes", "-1"], capsys)
    assert "--tree-nodes is 65; allowed is 1 to 64" in refused([*new, "--tree-nodes", "65"], capsys)
    assert "--heads is for --method medusa" in refused([*new, "--heads", "3"], capsys)
    assert "no such file" in refused([*new, "--data", str(tmp_path / "none")], capsys)
    assert not (tmp_path / "work").exists()


def test_commands_on_a_card_show_no_places() -> None:
    shown = [
        train._without_place(item) for item in ("--target", ".", "/a/b/model", "--data=/a/c.jsonl", "--seed=3", "2.5")
    ]
    assert shown == ["--target", ".", "model", "--data=c.jsonl", "--seed=3", "2.5"]


def test_a_target_is_named_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(build, "main", lambda argv: asked.append(argv) or 0)
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert train._engine(Path(), tmp_path / "work") == tmp_path / "work" / "targets" / "model"
    assert asked[0][-1] == str(tmp_path / "work" / "targets" / "model")
