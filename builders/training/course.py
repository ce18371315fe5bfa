"""A training run from end to end: material, features, training, and the drafter's folder. Each stage goes on where an
interruption left it."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from builders.drafts.card import Card
from builders.progress import Report
from builders.training import material, outcome, state_file
from builders.training.answers import Conversation
from builders.training.beginnings import begin_as_target
from builders.training.examples import Split, split
from builders.training.features import FeatureStore, open_store
from builders.training.guesses import Vocabulary
from builders.training.lock import locked
from builders.training.loop import Lesson, ranks_on, train
from builders.training.networks import Network, create
from builders.training.recipe import Training, drafter_config
from builders.training.schedule import Budget
from builders.training.state import Run
from builders.training.target import Target
from builders.training.vocabulary import draft_vocabulary
from trtspec.errors import ConfigError
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.manifest import canonical_json, hash_file

_IDS = "ids"
_SINK = 4
"""The first positions have states of another size than all others."""
_SAMPLE = 50
_VOCABULARY = "token_ids.safetensors"


@dataclass(frozen=True, slots=True)
class Course:
    """What is asked of a run."""

    training: Training
    budget: Budget
    data: Path | None
    synthesize: int
    work: Path
    output: Path
    command: str
    tree_nodes: int
    """Most nodes of a draft in the settings that the card recommends."""

    @property
    def source(self) -> str:
        """The data in words."""
        return f"{self.synthesize} user turns that the target made up" if self.data is None else self.data.name

    @property
    def name(self) -> str:
        """Runs that may continue each other have the same one; a longer budget continues a shorter one."""
        data = self.source if self.data is None else hash_file(self.data).sha256
        return hashlib.sha256(canonical_json([self.training.facts(), data]).encode()).hexdigest()[:12]


class Left(NamedTuple):
    """What a run left."""

    card: Card
    drawn: bool
    """The picture is there."""


class Looker:
    """Shows progress, and notes that someone asked to stop."""

    def __init__(self, report: Report) -> None:
        self.stop = False
        self._report = report
        self._measured = 0

    def stepped(self, run: Run, progress: float) -> None:
        self._report("training", round(1000 * progress), 1000)
        if len(run.history) > self._measured:
            self._measured = len(run.history)
            print(describe(run.history[-1]), flush=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals to end are answered between steps."""

        def note(number: int, frame: FrameType | None) -> None:
            self.stop = True

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def describe(record: dict[str, Any]) -> str:
    """A measurement in a line."""
    loss = "" if record["loss"] is None else f"loss {record['loss']:.3f}, "
    tops = " ".join(f"{100 * item[0]:.0f}" for item in record["accuracies"])
    speed = record["tokens"] / record["seconds"] if record["seconds"] else 0.0
    return (
        f"step {record['steps']}, {record['tokens'] / 1000:.0f}k tokens, {record['seconds'] / 60:.1f} min "
        f"({speed:.0f}/s): {loss}held out: first guess right by depth {tops} %, "
        f"tokens per pass {record['chain']:.2f} as a chain, {record['tree']:.2f} as a tree"
    )


def take(course: Course, target: Target, report: Report) -> Left:
    """Run all stages; raises `KeyboardInterrupt` where it was stopped, to be continued."""
    directory = course.work / target.form
    with locked(directory, course.work):
        return _take(course, target, directory, report)


def _take(course: Course, target: Target, directory: Path, report: Report) -> Left:
    store = open_store(target, directory / "features")
    conversations = _conversations(course, target, directory, store, report)
    material.complete(target, conversations, store, report)
    parts = split(conversations)
    _check(course, parts)
    rundir = directory / f"{course.training.method.value}-{course.name}"
    token_ids = _token_ids(course, target, parts, rundir)
    config, network = _network(course, target, len(token_ids), store, parts)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network.to(device)
    vocabulary = Vocabulary(token_ids.to(device), target.head_rows(token_ids).to(device))
    lesson = Lesson(course.training, vocabulary, parts, store, course.budget, device)
    run = Run.begin(network, course.training.learning_rate)
    run.resume(rundir)
    looker = Looker(report)
    with looker.listening():
        train(lesson, run, rundir, looker)
    return _leave(course, target, config, lesson, run)


def _conversations(
    course: Course, target: Target, directory: Path, store: FeatureStore, report: Report
) -> list[Conversation]:
    speaker = material.Speaker(target, report)
    seed = course.training.seed
    if course.data is not None:
        found = material.given("--data", course.data, speaker, directory, seed, store)
    else:
        prompts = speaker.invent(course.synthesize, directory, seed)
        found = speaker.answer(prompts, directory / f"answers-{seed}.jsonl", seed, store)
    return material.usable(found)


def _check(course: Course, parts: Split) -> None:
    if not all(parts):
        flag = f"--synthesize {course.synthesize}" if course.data is None else f"--data {course.data}"
        raise ConfigError(
            f"{flag} gave {sum(map(len, parts))} conversations with an answer; at least three different prompts are "
            "needed, one to learn from, one to choose by and one to measure on: give more"
        )


def _token_ids(course: Course, target: Target, parts: Split, rundir: Path) -> Tensor:
    """The draft vocabulary; a run keeps the one it began with."""
    path = rundir / _VOCABULARY
    if path.is_file():
        groups, _ = state_file.read(path)
        return groups[_IDS][_IDS]
    known = target.manifest.vocabulary_size
    token_ids = draft_vocabulary(parts.training, course.training.draft_vocabulary, known, target.eos_ids)
    state_file.write(path, {_IDS: {_IDS: token_ids}}, {})
    return token_ids


def _network(
    course: Course, target: Target, vocabulary: int, store: FeatureStore, parts: Split
) -> tuple[DrafterConfig, Network]:
    config = drafter_config(course.training, target.config, target.features, vocabulary)
    width = target.config.hidden_size
    begin = target.features.index(config.features[0]) if config.features else 0
    columns = slice(begin * width, (begin + len(config.features)) * width)
    torch.manual_seed(course.training.seed)
    network = create(config, target.embedding, columns)
    begin_as_target(network, target, _scale(store, parts, width))
    return config, network


def _scale(store: FeatureStore, parts: Split, width: int) -> float:
    """The size of the target's upper residuals: the root of the mean square of the highest state but the last."""
    rows = torch.cat([store.read(item)[_SINK:, -2 * width : -width].float() for item in parts.training[:_SAMPLE]])
    return float(rows.square().mean().sqrt()) if len(rows) else 1.0


def _leave(course: Course, target: Target, config: DrafterConfig, lesson: Lesson, run: Run) -> Left:
    """Choose settings for the best weights, measure them on what is held out, and write the folder."""
    best, depth = run.best or run.average, course.training.measured_depth
    chosen_by = ranks_on(lesson.split.choosing, lesson, run.network, best, depth)
    found = ranks_on(lesson.split.held_out, lesson, run.network, best, depth)
    prefix = run.network.prefix
    card = Card(
        method=course.training.method,
        target_sha256=target.sha256,
        target_name=target.manifest.model,
        speculative=outcome.suited(course.training, chosen_by, course.tree_nodes),
        training={
            "command": course.command,
            "data": course.source,
            "conversations": len(lesson.split.training),
            "tokens seen": run.tokens,
            "steps": run.steps,
            "minutes": round(run.seconds / 60, 1),
            **course.training.facts(),
        },
        measured=outcome.measured(found, chosen_by),
    )
    tensors = {prefix + name: value for name, value in best.items()}
    drawn = outcome.write_drafter(course.output, config, tensors, lesson.vocabulary.token_ids, card, run.history)
    return Left(card, drawn)
