"""The stages of a build for the PyTorch flow, in order: text, checkpoints as they are, smoke, manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders import folder
from builders.drafts.checks import TOKENIZER
from builders.drafts.tokenizers import check_same_tokenizer
from builders.inputs import Input
from builders.model_config import eos_ids, read_json
from builders.progress import working_on
from builders.publishing import build_folder
from builders.tensorrt_llm.artifacts import Collected, Model
from builders.tensorrt_llm.finishing import smoked, versions
from builders.tensorrt_llm.order import Order
from builders.tensorrt_llm.spelling import CONFIG, old_spelling
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
    return build_folder(order.place, order, partial(_fill, collected, order), argv)


def _fill(collected: Collected, order: Order, directory: Path, inputs: Sequence[Input]) -> Manifest:
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
        build={"arguments": collected.arguments()},
    )
    return smoked(made, directory, order.asked, "it needs {ranks} GPUs")


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


def place_model(model: Path, place: Path) -> None:
    """The files of a model, linked where the disk allows it, with a config.json that transformers 4 understands."""
    place.mkdir()
    for file in sorted(model.iterdir()):
        if file.is_file() and file.name != CONFIG:
            folder.link(file.resolve(), place / file.name)
    raw = read_json(model / CONFIG)
    (place / CONFIG).write_text(json.dumps(old_spelling(raw) or raw, indent=2) + "\n")


def files_sha256(inputs: Sequence[Input]) -> str:
    """The identity of a target that no layout of ours describes: its files', by name."""
    facts = {item.name: item.sha256 for item in inputs if not item.name.startswith(f"{DRAFT}/")}
    return hashlib.sha256(manifest.canonical_json(facts).encode()).hexdigest()
