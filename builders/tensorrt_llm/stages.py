"""The stages of a build of compiled engines, in order: text, engines, smoke, manifest."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from builders import folder
from builders.checkpoint import Checkpoint
from builders.drafts.checks import match_identity
from builders.drafts.source import DraftSource, OpenedDraft
from builders.identity import target_sha256
from builders.inputs import Input
from builders.pack_drafter import fit_drafter
from builders.progress import working_on
from builders.publishing import build_folder
from builders.tensorrt_llm.compiled import Compiled
from builders.tensorrt_llm.compiling import compile_engine
from builders.tensorrt_llm.export import export
from builders.tensorrt_llm.finishing import smoked, versions
from builders.tensorrt_llm.order import Order
from builders.tensorrt_llm.spelling import in_old_spelling
from builders.text import TextArtifact, load_tokenizer, pack_text
from trtspec.manifest import UNVERIFIED, DrafterRecord, Manifest

_SCRATCH = ".scratch"
_ROOM = 1.2
"""Engines, and checkpoints on the way to them, take a little more than the weights."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """What drafts, where it has weights."""

    draft: OpenedDraft
    source: DraftSource
    matched_by: str | None


def build_compiled(compiled: Compiled, order: Order, drafter: Drafter | None, argv: Sequence[str]) -> Manifest:
    """Run every stage, and put the folder in its place."""
    fill = partial(_fill, compiled, order, drafter)
    return build_folder(order.place, order, fill, argv, _needed_bytes(compiled))


def _fill(
    compiled: Compiled, order: Order, drafter: Drafter | None, directory: Path, inputs: Sequence[Input]
) -> Manifest:
    """All files but the manifest, and the manifest as a value."""
    target = compiled.target.checkpoint
    with working_on("packing the tokenizer"):
        tokenizer = load_tokenizer(target)
        text = pack_text(target, tokenizer, target.config.vocab_size, directory)
    if drafter is not None and drafter.source.model is not None:
        allow = order.allow_unverified_target
        fitted = fit_drafter(drafter.source, tokenizer, text.vocabulary_size, allow_unverified=allow)
        drafter = replace(drafter, source=fitted)
    made = _manifest(compiled, order, text, drafter, target_sha256(target))
    for plan in compiled.engines:
        scratch = directory / _SCRATCH / plan.name
        model = _as_hugging_face(plan.checkpoint, plan.dtype, scratch.with_name(f"{plan.name}-model"))
        compile_engine(plan, model, directory / plan.name, scratch, text.vocabulary_size)
        shutil.rmtree(directory / _SCRATCH)
    compiled.folder.write(directory)
    made = replace(made, artifacts=folder.list_artifacts(directory))
    return smoked(made, directory, order.asked, "{ranks} ranks are served under mpirun")


def _as_hugging_face(checkpoint: Checkpoint, dtype: str, place: Path) -> Path:
    """A folder that TensorRT-LLM's transformers reads as ours does."""
    return in_old_spelling(checkpoint.path, place) if checkpoint.path.is_dir() else export(checkpoint, dtype, place)


def _manifest(compiled: Compiled, order: Order, text: TextArtifact, drafter: Drafter | None, identity: str) -> Manifest:
    return Manifest(
        model=order.model,
        backend="tensorrt_llm",
        architecture=compiled.target.checkpoint.architecture,
        runner=order.flow,
        dtype=order.dtype,
        quantization=order.quantization,
        max_context_tokens=compiled.target.max_seq_len,
        vocabulary_size=text.vocabulary_size,
        speculative=compiled.speculative,
        artifacts={},
        tokenizer_sha256=text.sha256,
        target_sha256=identity,
        drafter=None if drafter is None else _record(drafter, identity, order),
        versions=versions(*(("triton", "tensorrt") if compiled.target.top_logits else ())),
        build={"arguments": compiled.arguments()},
    )


def _record(drafter: Drafter, identity: str, order: Order) -> DrafterRecord:
    """What shows that the drafter is the target's."""
    expected, matched_by = drafter.draft.card.target_sha256, drafter.matched_by
    if matched_by is None and expected is not None:
        path, allow = drafter.draft.path, order.allow_unverified_target
        matched_by = match_identity(path, expected, identity, allow_unverified=allow)
    shown = str(matched_by) if drafter.source.same_tokenizer else UNVERIFIED
    return DrafterRecord(drafter.draft.format, expected, shown)


def _needed_bytes(compiled: Compiled) -> int:
    ranks = compiled.asked.tp * compiled.asked.pp
    return int(_ROOM * sum(plan.weights_bytes for plan in compiled.engines) * ranks)
