"""The calibration stage of a build, between the target's weights and the smoke test: text, vocabulary, drafter, tree.

The target answers what the file leaves open, so it is packed before; the drafter is packed here, since what it keeps
depends on the answers, and its heads are measured as they are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from builders import folder
from builders.calibration.asked import FLAG, RECORD, Calibration
from builders.calibration.heads import choose_tree, head_ranks, measured
from builders.drafts.source import DraftSource
from builders.progress import Report, stage_bars, working_on
from builders.training import material
from builders.training.answers import Conversation
from builders.training.features import FeatureStore, open_store
from builders.training.measure import rounded
from builders.training.target import Target
from builders.training.vocabulary import draft_vocabulary
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.errors import ConfigError
from trtspec.executors.embedded.drafter_config import HEADS
from trtspec.manifest import Manifest


def calibrate(
    asked: Calibration, source: DraftSource, target: Manifest, directory: Path, pack: Callable[[DraftSource], None]
) -> Manifest:
    """Pack the drafter into a folder that holds its target. Returns the target's manifest with the settings and what
    was measured, the latter in `build`."""
    with folder.trial(directory, target) as view:
        teacher = Target(view, (LAST_HIDDEN,))
        store = open_store(teacher, view / "features")
        heads = source.config.kind == HEADS
        with stage_bars() as report:
            text = _text(asked, teacher, store, report, complete=heads)
        cut = _cut(asked, source, teacher, text)
        pack(cut.source)
        record = {
            "file": str(asked.path),
            "conversations": len(text),
            "answer_tokens": sum(len(item.answer) for item in text),
            **cut.record,
        }
        if not heads:
            return replace(target, build={RECORD: record})
        with working_on("measuring the heads"):
            ranks = head_ranks(directory, cut.source.config, teacher, text, store)
    config, nodes = target.speculative, asked.tree_nodes
    if nodes is not None:
        config = choose_tree(config, ranks, nodes)
    found = {**record, **measured(config, ranks), "tree_chosen": nodes is not None}
    return replace(target, speculative=config, build={RECORD: found})


def _text(
    asked: Calibration, teacher: Target, store: FeatureStore, report: Report, *, complete: bool
) -> list[Conversation]:
    """The conversations of the file, and where asked for the states of all their tokens in the store."""
    speaker = material.Speaker(teacher, report)
    text = material.usable(material.given(FLAG, asked.path, speaker, teacher.directory, 0, store))
    if not text:
        raise ConfigError(
            f"{FLAG} {asked.path} gave no answer of at least {material.LEAST_ANSWER} tokens within the "
            f"{speaker.longest} tokens of prompt and answer that are looked at; give more, or shorter prompts"
        )
    if complete:
        material.complete(teacher, text, store, report)
    return text


class _Cut(NamedTuple):
    """A drafter with the tokens that it keeps, and what was measured of that."""

    source: DraftSource
    record: Mapping[str, Any]


def _cut(asked: Calibration, source: DraftSource, teacher: Target, text: Sequence[Conversation]) -> _Cut:
    if asked.draft_vocabulary is None:
        return _Cut(source, {})
    known = teacher.manifest.vocabulary_size
    token_ids = draft_vocabulary(text, asked.draft_vocabulary, known, teacher.eos_ids)
    record = {"tokens": len(token_ids), "covers": _covers(token_ids, text)}
    return _Cut(source.reduced(token_ids), {"draft_vocabulary": record})


def _covers(token_ids: Tensor, text: Sequence[Conversation]) -> float:
    """The share of the answers' tokens that can be drafted."""
    counts = Counter(token for item in text for token in item.answer)
    kept = set(token_ids.tolist())
    return rounded(sum(count for token, count in counts.items() if token in kept) / counts.total())
