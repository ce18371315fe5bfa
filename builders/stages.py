"""The stages of a build, in order: text, weights, drafter (with its calibration), smoke, manifest.

What can be checked without weights and tokenizer was checked before, in `builders.recipe`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trtspec
from builders import folder
from builders.inputs import Input, unchanged
from builders.packages import NEEDED
from builders.progress import working_on
from builders.publishing import Wanted, build_folder, with_smoke
from builders.recipe import Plan
from trtspec import generation, manifest
from trtspec.errors import EngineFolderError
from trtspec.executors.embedded import decoder_config
from trtspec.manifest import Manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from builders.drafts.source import DraftSource
    from builders.text import TextArtifact

_HEADROOM_BYTES = 64 << 20
"""Disk space for everything that is not weights."""


def build_engine(plan: Plan, argv: Sequence[str]) -> Manifest:
    """Run every stage, and put the engine in its place."""
    needed = plan.packed_bytes + _HEADROOM_BYTES
    return build_folder(plan.output, plan.recipe, partial(_fill, plan), argv, needed)


def _fill(plan: Plan, directory: Path, inputs: Sequence[Input]) -> Manifest:
    """All files but the manifest, and the manifest as a value."""
    from builders.text import load_tokenizer, pack_text

    with working_on("packing the tokenizer"):
        tokenizer = load_tokenizer(plan.checkpoint)
        text = pack_text(plan.checkpoint, tokenizer, plan.checkpoint.config.vocab_size, directory)
    source = _fitting(plan, tokenizer, text.vocabulary_size, directory)
    made = _target(plan, text, directory)
    if source is not None:
        made = _with_drafter(plan, source, made, directory)
    return with_smoke(replace(made, artifacts=folder.list_artifacts(directory)), directory)


def _fitting(
    plan: Plan, tokenizer: PreTrainedTokenizerBase, vocabulary_size: int, directory: Path
) -> DraftSource | None:
    """The drafter as it fits the target's vocabulary; what does not is refused before any weight is packed."""
    from builders.pack_drafter import fit_drafter

    if plan.drafter is None:
        return None
    allow = plan.recipe.allow_unverified_target
    source = fit_drafter(plan.drafter, tokenizer, vocabulary_size, allow_unverified=allow)
    if plan.recipe.calibration is not None:
        plan.recipe.calibration.check_vocabulary(vocabulary_size, generation.read(directory).eos_ids)
    return source


def _target(plan: Plan, text: TextArtifact, directory: Path) -> Manifest:
    """Pack the target's weights; the manifest as far as they settle it."""
    from builders.identity import Identity
    from builders.layout import layout
    from builders.pack import Weights, pack_weights
    from trtspec.executors.embedded.weights import NAME as WEIGHTS

    identity = Identity()
    weights = Weights(plan.checkpoint.path, layout(plan.checkpoint.config), plan.checkpoint.read)
    pack_weights(weights, plan.form, directory / WEIGHTS, "weights", identity.add)
    plan.checkpoint.config.to_json(directory / decoder_config.NAME)
    return Manifest(
        model=plan.recipe.model,
        backend=plan.recipe.backend.value,
        architecture=plan.checkpoint.architecture,
        runner=plan.recipe.runner.value,
        dtype=plan.dtype.value,
        quantization=plan.recipe.quantization,
        max_context_tokens=plan.max_context_tokens,
        vocabulary_size=text.vocabulary_size,
        speculative=plan.recipe.speculative,
        artifacts={},
        tokenizer_sha256=text.sha256,
        target_sha256=identity.sha256,
        versions=_versions(plan),
    )


def _with_drafter(plan: Plan, source: DraftSource, target: Manifest, directory: Path) -> Manifest:
    """Pack the drafter beside its target, calibrated where that is asked for."""
    from builders.calibration.stage import calibrate
    from builders.pack_drafter import match_drafter, pack_drafter

    target = replace(target, drafter=match_drafter(plan, source, target.target_sha256))
    pack = partial(pack_drafter, form=plan.drafter_form, directory=directory)
    if plan.recipe.calibration is not None:
        return calibrate(plan.recipe.calibration, source, target, directory, pack)
    pack(source)
    return target


def _versions(plan: Plan) -> Mapping[str, str]:
    packages = [*NEEDED, *(["openvino"] if plan.recipe.runner.value == "openvino" else [])]
    return {"trtspec": trtspec.__version__} | {name: importlib.metadata.version(name) for name in packages}


class Placed(Wanted, Protocol):
    """What was asked for, and where an earlier build may have put it."""

    @property
    def possible_outputs(self) -> list[Path]: ...


def finished_before(recipe: Placed) -> tuple[Path, Manifest] | None:
    """The engine that this recipe already made from these inputs, if it is whole."""
    files = recipe.inputs
    for output in recipe.possible_outputs:
        try:
            found = manifest.read(output)
        except EngineFolderError:
            continue
        if found.build.get("recipe") == recipe.sha256 and unchanged(found.build["inputs"], files):
            return output, found
    return None


def smoke_note(smoke: Mapping[str, Any]) -> str:
    """What a built engine said, in a few words."""
    if smoke["equal"] is None:
        return f" ({smoke['tokens']} greedy tokens)"
    if smoke["equal"]:
        return f" ({smoke['tokens']} greedy tokens, the same with and without speculation)"
    return f" (with speculation, token {smoke['first_difference']} differs: half precision flips near-ties)"
