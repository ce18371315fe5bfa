"""What is asked of a build, resolved from flags: one frozen value, hashed.

The target's content is not part of the hash; `builders.inputs` watches it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import trtspec
from builders.checkpoint import Checkpoint, stored_precision
from builders.choices import DTYPES, Choice, choose_dtype
from trtspec import manifest
from trtspec.errors import ConfigError
from trtspec.speculative import SpeculativeConfig

ENGINES = Path("engines")
LEAST_CONTEXT = 2
"""A token of prompt and a token of text."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The flags of a build after defaults; `auto` is still open where only the checkpoint can settle it."""

    model: str
    target: Path
    output: Path | None
    backend: Choice
    runner: Choice
    dtype: str
    quantization: str
    native_bfloat16: str | None
    speculative: SpeculativeConfig
    max_context_tokens: int | None

    @property
    def sha256(self) -> str:
        facts = {
            "version": trtspec.__version__,
            "format": manifest.FORMAT,
            "model": self.model,
            "backend": self.backend.value,
            "runner": self.runner.value,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "native_bfloat16": self.native_bfloat16,
            "speculative": self.speculative.facts(),
            "max_context_tokens": self.max_context_tokens,
        }
        return hashlib.sha256(manifest.canonical_json(facts).encode()).hexdigest()

    def output_for(self, dtype: str) -> Path:
        form = dtype if self.quantization == "none" else self.quantization
        name = f"{self.model}-{self.speculative.method.value}-{form}"
        return self.output or ENGINES / name

    @property
    def possible_outputs(self) -> list[Path]:
        """Where this recipe may have built before: the checkpoint need not be opened to look there."""
        dtypes = [self.dtype] if self.dtype != "auto" else [name for name in DTYPES if name != "auto"]
        return list(dict.fromkeys(self.output_for(dtype) for dtype in dtypes))


@dataclass(frozen=True, slots=True)
class Plan:
    """A recipe and a checkpoint: nothing is open any more."""

    recipe: Recipe
    checkpoint: Checkpoint
    dtype: Choice
    max_context_tokens: int
    output: Path

    @property
    def packed_bytes(self) -> int:
        from builders.layout import layout, stored_as
        from trtspec.executors.embedded.weights import DTYPES as TORCH_DTYPES

        dtype, items = TORCH_DTYPES[self.dtype.value], layout(self.checkpoint.config)
        return sum(part.bytes for item in items for part in stored_as(item, dtype, self.recipe.quantization))


def make_plan(recipe: Recipe, checkpoint: Checkpoint) -> Plan:
    """Settle what depends on the checkpoint."""
    dtype = choose_dtype(
        recipe.dtype, stored_precision(checkpoint.tensors), recipe.runner.value, recipe.native_bfloat16
    )
    most = checkpoint.config.max_position_embeddings
    asked = most if recipe.max_context_tokens is None else recipe.max_context_tokens
    if not LEAST_CONTEXT <= asked <= most:
        raise ConfigError(
            f"--max-context-tokens is {asked} and the model's max_position_embeddings is {most}; "
            f"give {LEAST_CONTEXT} to {most}"
        )
    window = checkpoint.attention_window
    if window is not None and window < asked:
        raise ConfigError(
            f"--max-context-tokens is {asked} and the model's sliding_window is {window}; attention in a window is not "
            f"in this release, and needed only beyond it; give --max-context-tokens {LEAST_CONTEXT} to {window}"
        )
    return Plan(recipe, checkpoint, dtype, asked, recipe.output_for(dtype.value))
