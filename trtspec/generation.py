"""`generation.json` of an engine folder: where texts end, and how the model's authors want it sampled.

The builder writes it and the service reads it. It does not know where the values come from, nor requests.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtspec.errors import EngineFolderError
from trtspec.types import SamplingParams

NAME = "generation.json"
TOKENIZER = "tokenizer"
"""The folder beside it that holds the tokenizer and its chat template."""
MARK = ".trtspec-build"
"""The file beside it that a build writes first: the folder is ours, finished or not."""


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
        "sampling": asdict(defaults.sampling),
        "source": defaults.source,
    }
    (engine / NAME).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read(engine: Path) -> GenerationDefaults:
    """Read the defaults of an engine folder."""
    path = engine / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        sampling = document["sampling"]
        return GenerationDefaults(
            eos_ids=frozenset(int(id_) for id_ in document["eos_token_ids"]),
            sampling=SamplingParams(
                temperature=float(sampling["temperature"]),
                top_k=int(sampling["top_k"]),
                top_p=float(sampling["top_p"]),
                min_p=float(sampling["min_p"]),
            ),
            source=str(document["source"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineFolderError(f"{path} cannot be read ({error!r}); build the engine again") from error
