"""The stages of a build of compiled engines, in order: text, engines, smoke, manifest."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import trtspec
from builders import folder
from builders.checkpoint import Checkpoint
from builders.drafts.checks import match_identity
from builders.drafts.source import DraftSource, OpenedDraft
from builders.identity import target_sha256
from builders.inputs import fingerprint
from builders.pack_drafter import fit_drafter
from builders.progress import progress_bars, working_on
from builders.smoke import run_smoke
from builders.tensorrt_llm.compiled import Compiled
from builders.tensorrt_llm.compiling import compile_engine
from builders.tensorrt_llm.export import export
from builders.tensorrt_llm.order import Order
from builders.tensorrt_llm.spelling import in_old_spelling
from builders.text import TextArtifact, load_tokenizer, pack_text
from trtspec import manifest
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.probe import PINNED
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
    began = time.monotonic()
    output = order.place.resolve()
    folder.check_output(output)
    with folder.staging(output) as directory:
        _check_space(compiled, order, directory)
        with progress_bars() as bars:
            inputs = [fingerprint(name, order.inputs[name]) for name in bars.track(order.inputs, description="inputs")]
        finished = _fill(compiled, order, drafter, directory)
        build = {
            "argv": list(argv),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - began, 1),
            "recipe": order.sha256,
            "inputs": [item.to_dict() for item in inputs],
            "arguments": compiled.arguments(),
        }
        finished = replace(finished, build=build)
        manifest.write(finished, directory)
        folder.publish(directory, output)
    return finished


def _fill(compiled: Compiled, order: Order, drafter: Drafter | None, directory: Path) -> Manifest:
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
        compile_engine(plan, model, directory / plan.name, scratch)
        shutil.rmtree(directory / _SCRATCH)
    compiled.folder.write(directory)
    made = replace(made, artifacts=folder.list_artifacts(directory))
    return replace(made, smoke=_smoke(made, compiled, directory))


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
        versions=versions(),
    )


def _record(drafter: Drafter, identity: str, order: Order) -> DrafterRecord:
    """What shows that the drafter is the target's."""
    expected, matched_by = drafter.draft.card.target_sha256, drafter.matched_by
    if matched_by is None and expected is not None:
        path, allow = drafter.draft.path, order.allow_unverified_target
        matched_by = match_identity(path, expected, identity, allow_unverified=allow)
    shown = str(matched_by) if drafter.source.same_tokenizer else UNVERIFIED
    return DrafterRecord(drafter.draft.format, expected, shown)


def _smoke(made: Manifest, compiled: Compiled, directory: Path) -> Mapping[str, Any]:
    """A few tokens, where one process can serve the engine; more ranks need a launcher."""
    size = compiled.asked.tp * compiled.asked.pp
    if size > 1:
        return {"tokens": 0, "equal": None, "text": "", "skipped": f"{size} ranks are served under mpirun"}
    with folder.trial(directory, made) as view, working_on("generating a few tokens"):
        return run_smoke(view, made).to_dict()


def _check_space(compiled: Compiled, order: Order, directory: Path) -> None:
    size = compiled.asked.tp * compiled.asked.pp
    needed = int(_ROOM * sum(plan.weights_bytes for plan in compiled.engines) * size)
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ConfigError(f"--output {order.place}: the engines need {needed} bytes and {free} are free on that disk")


def versions() -> Mapping[str, str]:
    """What built the folder."""
    packages = ("torch", "transformers", "safetensors")
    return {"trtspec": trtspec.__version__, "tensorrt-llm": PINNED} | {
        name: metadata.version(name) for name in packages
    }
