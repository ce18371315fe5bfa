"""The stages of a build for the PyTorch flow, in order: text, checkpoints as they are, smoke, manifest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders import folder
from builders.drafts.checks import TOKENIZER
from builders.drafts.tokenizers import check_same_tokenizer
from builders.inputs import Input, fingerprint
from builders.model_config import eos_ids, read_json
from builders.progress import progress_bars, working_on
from builders.smoke import run_smoke
from builders.tensorrt_llm.artifacts import Collected, Model
from builders.tensorrt_llm.order import Order
from builders.tensorrt_llm.spelling import CONFIG, old_spelling
from builders.tensorrt_llm.stages import versions
from builders.text import load_tokenizer, pack_text
from trtspec import manifest
from trtspec.executors.tensorrt_llm.engine_spec import DRAFT, TARGET
from trtspec.manifest import UNVERIFIED, DrafterRecord, Manifest
from trtspec.types import Method

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GENERATION = "generation_config.json"


@dataclass(frozen=True, slots=True)
class ModelText:
    """What of a model's folder is about text, whatever its architecture."""

    model: Model

    @property
    def path(self) -> Path:
        return self.model.path

    @property
    def eos_token_ids(self) -> frozenset[int]:
        ids = eos_ids(self.model.raw.get("eos_token_id"), self.path / CONFIG)
        return ids if self.generation is None else ids | eos_ids(self.generation.get("eos_token_id"), self.path)

    @property
    def generation(self) -> Mapping[str, Any] | None:
        file = self.path / _GENERATION
        return read_json(file) if file.is_file() else None

    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        return found


def build_collected(collected: Collected, order: Order, argv: Sequence[str]) -> Manifest:
    """Run every stage, and put the folder in its place."""
    began = time.monotonic()
    output = order.place.resolve()
    folder.check_output(output)
    with folder.staging(output) as directory:
        with progress_bars() as bars:
            inputs = [fingerprint(name, order.inputs[name]) for name in bars.track(order.inputs, description="inputs")]
        finished = _fill(collected, order, inputs, directory)
        build = {
            "argv": list(argv),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - began, 1),
            "recipe": order.sha256,
            "inputs": [item.to_dict() for item in inputs],
            "arguments": collected.arguments(),
        }
        finished = replace(finished, build=build)
        manifest.write(finished, directory)
        folder.publish(directory, output)
    return finished


def _fill(collected: Collected, order: Order, inputs: Sequence[Input], directory: Path) -> Manifest:
    target, source = collected.target, ModelText(collected.target)
    with working_on("packing the tokenizer"):
        text = pack_text(source, load_tokenizer(source), target.vocabulary_size, directory)
    place_model(target.path, directory / TARGET)
    record = None if collected.draft is None else _drafter(collected, order, directory)
    collected.folder.write(directory)
    made = Manifest(
        model=order.model,
        backend="tensorrt_llm",
        architecture=target.architecture,
        runner=order.flow,
        dtype=collected.dtype,
        quantization="none",
        max_context_tokens=collected.max_seq_len,
        vocabulary_size=text.vocabulary_size,
        speculative=collected.speculative,
        artifacts=folder.list_artifacts(directory),
        tokenizer_sha256=text.sha256,
        target_sha256=files_sha256(inputs),
        drafter=record,
        versions=versions(),
    )
    return replace(made, smoke=_smoke(made, collected, directory))


def _drafter(collected: Collected, order: Order, directory: Path) -> DrafterRecord | None:
    """Put the drafter in its place; a whole model must speak the target's language."""
    if collected.draft is None:
        return None
    matched_by = UNVERIFIED
    if collected.speculative.method is Method.DRAFT_MODEL:
        tokenizers = [load_tokenizer(ModelText(model)) for model in (collected.draft, collected.target)]
        allow = order.allow_unverified_target
        if check_same_tokenizer(collected.draft.path, *tokenizers, allow_other_ends=allow):
            matched_by = TOKENIZER
    place_model(collected.draft.path, directory / DRAFT)
    return DrafterRecord("hugging face", None, matched_by)


def _smoke(made: Manifest, collected: Collected, directory: Path) -> Mapping[str, Any]:
    """A few tokens, where this machine's one process may start the engine."""
    size = collected.asked.tp * collected.asked.pp
    if size > 1:
        return {"tokens": 0, "equal": None, "text": "", "skipped": f"it needs {size} GPUs"}
    with folder.trial(directory, made) as view, working_on("generating a few tokens"):
        return run_smoke(view, made).to_dict()


def place_model(model: Path, place: Path) -> None:
    """The files of a model, linked where the disk allows it, with a config.json that transformers 4 understands."""
    place.mkdir()
    for file in sorted(model.iterdir()):
        if file.is_file() and file.name != CONFIG:
            _link(file.resolve(), place / file.name)
    raw = read_json(model / CONFIG)
    (place / CONFIG).write_text(json.dumps(old_spelling(raw) or raw, indent=2) + "\n")


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(file, place)


def files_sha256(inputs: Sequence[Input]) -> str:
    """The identity of a target that no layout of ours describes: its files', by name."""
    facts = {item.name: item.sha256 for item in inputs if not item.name.startswith(f"{DRAFT}/")}
    return hashlib.sha256(manifest.canonical_json(facts).encode()).hexdigest()
