"""`generation.json` of an engine folder: where texts end, and how the model's authors want it sampled.

The builder writes it and the service reads it. It does not know where the values come from, nor requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.errors import EngineFolderError
from trtspec.json_file import UNREADABLE, check_fields, read_object
from trtspec.types import SamplingParams

NAME = "generation.json"
TOKENIZER = "tokenizer"
"""The folder beside it that holds the tokenizer and its chat template."""
MARK = ".trtspec-build"
"""The file beside it that a build writes first: the folder is ours, finished or not."""
_SAMPLING: Mapping[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "min_tokens": int,
}
"""What a model can have a default for; biases and bad words are a request's own."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values that unset request fields take."""

    eos_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    source: str = "The model names no sampling defaults: greedy."
    """A sentence for people: where the values come from, and what is not applied."""


def write(defaults: GenerationDefaults, engine: Path) -> None:
    """Write the defaults into an engine folder."""
    document = {
        "eos_token_ids": sorted(defaults.eos_ids),
        "sampling": {name: getattr(defaults.sampling, name) for name in _SAMPLING},
        "source": defaults.source,
    }
    (engine / NAME).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read(engine: Path) -> GenerationDefaults:
    """Read the defaults of an engine folder."""
    path = engine / NAME
    try:
        document = read_object(path)
        found = GenerationDefaults(
            eos_ids=frozenset(int(id_) for id_ in document["eos_token_ids"]),
            sampling=_sampling(document["sampling"]),
            source=str(document["source"]),
        )
        check_fields(found)
    except UNREADABLE as error:
        raise EngineFolderError(f"{path} cannot be read ({error!r:.200}); build the engine again") from error
    return found


def _sampling(document: Mapping[str, Any]) -> SamplingParams:
    """Fields that an older build did not know are missing and change nothing."""
    values: dict[str, Any] = {name: kind(document[name]) for name, kind in _SAMPLING.items() if name in document}
    return SamplingParams(**values)
