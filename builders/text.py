"""The tokenizer stage: tokenizer, chat template and generation defaults of an engine folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from builders.generation import generation_defaults
from trtspec import generation
from trtspec.errors import CheckpointError
from trtspec.manifest import canonical_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER = f"{generation.TOKENIZER}/tokenizer.json"
_RUN_TIME = ("truncation", "padding")
"""Settings of the last call that tokenizer.json happens to carry; they are no part of a tokenizer's identity."""


@dataclass(frozen=True, slots=True)
class TextArtifact:
    """What the manifest must know of the tokenizer."""

    vocabulary_size: int
    """Ids below this are both in the tokenizer and in the embedding."""
    sha256: str


class TextSource(Protocol):
    """What of a checkpoint is about text."""

    @property
    def path(self) -> Path: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    @property
    def generation(self) -> Mapping[str, Any] | None: ...
    def tokenizer(self) -> PreTrainedTokenizerBase: ...


def load_tokenizer(checkpoint: TextSource) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer, or an error that names the checkpoint."""
    try:
        return checkpoint.tokenizer()
    except Exception as error:  # whatever the libraries trip over; tokenizers raises nothing more specific
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{checkpoint.path}: cannot load the tokenizer ({reason}); a tokenizer.json is needed"
        ) from error


def pack_text(checkpoint: TextSource, tokenizer: PreTrainedTokenizerBase, width: int, directory: Path) -> TextArtifact:
    """Save the tokenizer with its template, and the generation defaults; the embedding has `width` rows."""
    tokenizer.save_pretrained(directory / generation.TOKENIZER)
    path = directory / TOKENIZER
    if not path.is_file():
        raise CheckpointError(
            f"{checkpoint.path}: the tokenizer has no tokenizer.json form; supported are fast tokenizers"
        )
    defaults = generation_defaults(checkpoint.generation, checkpoint.eos_token_ids, tokenizer.eos_token_id)
    generation.write(defaults, directory)
    known = max(tokenizer.get_vocab().values()) + 1
    return TextArtifact(min(width, known), tokenizer_sha256(path))


def tokenizer_sha256(path: Path) -> str:
    """The identity of a tokenizer: vocabulary, merges, special tokens and how text is split."""
    document = json.loads(path.read_text())
    for key in _RUN_TIME:
        document.pop(key, None)
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()
