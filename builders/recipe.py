"""What is asked of a build, resolved from flags: one frozen value, hashed.

The contents of target, drafter and calibration text are not part of the hash; `builders.inputs` watches them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trtspec
from builders.calibration.asked import Calibration
from builders.checkpoint import Checkpoint, stored_precision
from builders.choices import EMBEDDED_DTYPES, Choice, choose_dtype
from builders.inputs import input_files
from trtspec import manifest
from trtspec.errors import ConfigError
from trtspec.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from builders.drafts.source import DraftSource, OpenedDraft
    from builders.pack import Form

ENGINES = Path("engines")
_CALIBRATION = "calibration text"
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
    draft: OpenedDraft | None = None
    allow_unverified_target: bool = False
    calibration: Calibration | None = None

    @property
    def inputs(self) -> Mapping[str, Path]:
        """The files that a build reads, by name."""
        files = input_files(self.target)
        if self.draft is not None and self.draft.path != self.target:
            files |= {f"draft/{name}": path for name, path in input_files(self.draft.path).items()}
        if self.calibration is not None:
            files[_CALIBRATION] = self.calibration.path
        return files

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
            "draft": None if self.draft is None else self.draft.format,
            "allow_unverified_target": self.allow_unverified_target,
            "calibration": self.calibration and self.calibration.facts(),
        }
        return hashlib.sha256(manifest.canonical_json(facts).encode()).hexdigest()

    def output_for(self, dtype: str) -> Path:
        form = dtype if self.quantization == "none" else self.quantization
        name = f"{self.model}-{self.speculative.method.value}-{form}"
        return self.output or ENGINES / name

    @property
    def possible_outputs(self) -> list[Path]:
        """Where this recipe may have built before: the checkpoint need not be opened to look there."""
        dtypes = [self.dtype] if self.dtype != "auto" else [name for name in EMBEDDED_DTYPES if name != "auto"]
        return list(dict.fromkeys(self.output_for(dtype) for dtype in dtypes))


@dataclass(frozen=True, slots=True)
class Plan:
    """A recipe and a checkpoint: nothing is open any more."""

    recipe: Recipe
    checkpoint: Checkpoint
    dtype: Choice
    max_context_tokens: int
    output: Path
    drafter: DraftSource | None = None
    matched_by: str | None = None
    """What shows that the drafter belongs to the target; None where its weights have to be packed to tell."""

    @property
    def packed_bytes(self) -> int:
        from builders.layout import layout

        return self.form.bytes(layout(self.checkpoint.config)) + self.drafter_bytes

    @property
    def drafter_bytes(self) -> int:
        """Its padding included, which is left out once the vocabulary is known."""
        return 0 if self.drafter is None else self.drafter_form.bytes(self.drafter.packed)

    @property
    def form(self) -> Form:
        """How the target's weights are stored."""
        from builders.pack import Form

        return Form(self.dtype.value, self.recipe.quantization)

    @property
    def drafter_form(self) -> Form:
        """How the drafter's are: integers stay integers."""
        kept = self.drafter is not None and self.drafter.is_int8
        return replace(self.form, quantization="int8") if kept else self.form


def make_plan(recipe: Recipe, checkpoint: Checkpoint) -> Plan:
    """Settle what depends on the checkpoint."""
    dtype = choose_dtype(
        recipe.dtype, stored_precision(checkpoint.tensors), recipe.runner.value, recipe.native_bfloat16
    )
    asked = context_tokens(recipe.max_context_tokens, checkpoint)
    plan = Plan(recipe, checkpoint, dtype, asked, recipe.output_for(dtype.value))
    return plan if recipe.draft is None else _with_drafter(plan, recipe.draft)


def context_tokens(asked: int | None, checkpoint: Checkpoint) -> int:
    """The longest context that was asked for, by default the model's, if attention can look over all of it."""
    most = checkpoint.config.max_position_embeddings
    asked = most if asked is None else asked
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
    return asked


def _with_drafter(plan: Plan, draft: OpenedDraft) -> Plan:
    from builders.drafts.checks import check_source, check_whole, early_match

    source = draft.source(plan.checkpoint)
    check_source(source, plan.checkpoint.config, plan.recipe.speculative)
    if plan.recipe.calibration is not None:
        check_whole(source, plan.recipe.calibration.draft_vocabulary)
    allow = plan.recipe.allow_unverified_target
    return replace(plan, drafter=source, matched_by=early_match(draft, source, allow_unverified=allow))
