"""The training itself: steps, now and then a measurement on what is held out, and a saved state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_

from builders.training.answers import Conversation
from builders.training.examples import Batch, Split, batches, known, once
from builders.training.features import FeatureStore
from builders.training.guesses import Vocabulary, losses, ranks
from builders.training.measure import accuracies, best_tree, chain, rank_shares, tokens_per_pass
from builders.training.networks import Network
from builders.training.recipe import Training
from builders.training.schedule import Budget, depth_at, rate_share
from builders.training.state import Run
from trtspec.errors import ConfigError

_DEPTH_WEIGHT = 0.8
"""A depth counts so much less than the one before it, as fewer drafts get there (Cai et al. 2024)."""
_CLIP = 1.0
_FIRST_MEASURE, _MEASUREMENTS = 0.02, 10
"""Progress of the first measurement after the start, and how many follow."""
_SAVE_SECONDS = 120.0
_CHOOSING_TOKENS, _GLANCE_DEPTH = 10_000, 4
"""Most that a measurement on the way looks at: each costs as much as some steps."""
_SCORED_NODES = 16
"""Weights are judged by a tree of so many nodes."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """All that a run reads and does not change."""

    training: Training
    vocabulary: Vocabulary
    split: Split
    store: FeatureStore
    budget: Budget
    device: torch.device


class Watch(Protocol):
    """Who looks on."""

    def stepped(self, run: Run, progress: float) -> None:
        """A step is done."""
        ...

    @property
    def stop(self) -> bool:
        """Someone wants the run to end here, to be continued."""
        ...


def train(lesson: Lesson, run: Run, directory: Path, watch: Watch) -> None:
    """Go on until the budget is used up; raises `KeyboardInterrupt` where it was stopped, with everything saved."""
    stream = batches(
        lesson.split.training,
        lesson.store,
        lesson.training.tokens_per_step,
        lesson.training.seed,
        first=run.steps,
    )
    saved = time.monotonic()
    while (progress := lesson.budget.progress(run.steps, run.seconds)) < 1:
        due = _is_due(run, progress)
        if due:
            _measure(lesson, run)
        if due or watch.stop or time.monotonic() - saved > _SAVE_SECONDS:
            run.save(directory)
            saved = time.monotonic()
        if watch.stop:
            raise KeyboardInterrupt
        _step(lesson, run, next(stream), progress)
        watch.stepped(run, progress)
    if run.loss_steps:
        _measure(lesson, run)
        run.save(directory)


def _is_due(run: Run, progress: float) -> bool:
    """Whether the next measurement is: one before all steps, then some at equal distances, never two at one step."""
    if not run.history:
        return True
    due = _FIRST_MEASURE + (len(run.history) - 1) * (1 - _FIRST_MEASURE) / _MEASUREMENTS
    return run.loss_steps > 0 and progress >= due


def _step(lesson: Lesson, run: Run, batch: Batch, progress: float) -> None:
    began = time.monotonic()
    training = lesson.training
    for group in run.optimizer.param_groups:
        group["lr"] = training.learning_rate * rate_share(progress)
    depth = depth_at(progress, training.depth) if training.deepens else training.depth
    batch = batch.to(lesson.device)
    found = losses(run.network(batch, depth), batch, lesson.vocabulary)
    weighted = [_DEPTH_WEIGHT**d * (item.law + training.state_loss * item.state) for d, item in enumerate(found)]
    torch.autograd.backward(torch.stack(weighted).sum())
    norm = clip_grad_norm_(run.network.parameters(), _CLIP)
    if not torch.isfinite(norm):
        raise ConfigError(f"the gradient of step {run.steps} is {float(norm)}; give a lower --learning-rate")
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.steps += 1
    run.tokens += batch.count
    run.loss_sum += float(found[0].law.detach())
    run.loss_steps += 1
    run.follow()
    run.seconds += time.monotonic() - began


def _measure(lesson: Lesson, run: Run) -> None:
    """Look at the averaged weights, and keep them where they are the best so far."""
    depth = min(lesson.training.measured_depth, _GLANCE_DEPTH)
    found = ranks_on(_first(lesson), lesson, run.network, run.average, depth)
    score = tokens_per_pass(found, best_tree(rank_shares(found), _SCORED_NODES))
    run.history.append(
        {
            "steps": run.steps,
            "tokens": run.tokens,
            "seconds": run.seconds,
            "loss": run.loss_sum / run.loss_steps if run.loss_steps else None,
            "accuracies": [list(item.top) for item in accuracies(found)],
            "chain": tokens_per_pass(found, chain(depth)),
            "tree": score,
        }
    )
    run.loss_sum, run.loss_steps = 0.0, 0
    if run.best is None or score > run.best_score:
        run.best_score = score
        run.best = {name: value.clone() for name, value in run.average.items()}


def _first(lesson: Lesson) -> list[Conversation]:
    """So much of what checkpoints are chosen by as a measurement on the way looks at."""
    chosen, size = [], 0
    for item in lesson.split.choosing:
        if size > _CHOOSING_TOKENS:
            break
        chosen.append(item)
        size += known(item, lesson.store)
    return chosen


@torch.no_grad()
def ranks_on(
    conversations: Sequence[Conversation], lesson: Lesson, network: Network, weights: dict[str, Tensor], depth: int
) -> list[Tensor]:
    """Ranks of a network with these weights at so many depths, for each conversation."""
    found = []
    for batch in once(conversations, lesson.store, lesson.training.tokens_per_step):
        batch = batch.to(lesson.device)
        guesses = functional_call(network, weights, (batch, depth))
        found += ranks(guesses, batch, repeat(lesson.vocabulary))
    return found
