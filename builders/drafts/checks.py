"""Whether a drafter can draft for a target as it is asked to, before any weight is read.

Only the target's identity takes its weights: it is compared once they are packed.
"""

from __future__ import annotations

from pathlib import Path

from builders.calibration.asked import VOCABULARY
from builders.drafts.source import DraftSource, OpenedDraft
from builders.methods import METHODS
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import HEADS
from trtspec.manifest import UNVERIFIED
from trtspec.speculative import FLAG, SpeculativeConfig
from trtspec.types import Method

IDENTITY, TOKENIZER, TARGET_FOLDER = "identity", "tokenizer", "target folder"
"""What shows that a drafter belongs to its target."""


def check_method(draft: OpenedDraft, method: Method) -> None:
    """Refuse to use a drafter of one method for another."""
    if draft.card.method is not method:
        held = draft.card.method.value
        raise ConfigError(
            f"--method is {method.value!r} and --draft {draft.path} holds a drafter for {held!r} ({draft.format}); "
            f"give --method {held}, or another folder"
        )


def check_source(source: DraftSource, target: DecoderConfig, speculative: SpeculativeConfig) -> None:
    """Refuse a drafter that does not fit the target or the drafts that are asked of it."""
    config, path = source.config, source.path
    kind = METHODS[speculative.method.value].drafter
    if config.kind != kind:
        raise CheckpointError(
            f"--draft {path}: its networks are of kind {config.kind!r} and method {speculative.method.value!r} drafts "
            f"with {kind!r}; copy or train the drafter again"
        )
    for index in config.features:
        if index != LAST_HIDDEN and not 0 <= index < target.num_layers:
            raise CheckpointError(
                f"--draft {path}: it reads what goes into layer {index} and the target has {target.num_layers} layers, "
                f"0 to {target.num_layers - 1}; give a drafter that was made for this target"
            )
    if config.kind == HEADS and speculative.draft_tokens > config.modules:
        raise ConfigError(
            f"{FLAG}: drafts are up to {speculative.draft_tokens} deep and --draft {path} has {config.modules} heads, "
            f"one for each depth; give num_speculative_tokens and a tree of at most {config.modules}"
        )


def check_whole(source: DraftSource, asked: int | None) -> None:
    """Refuse to cut the vocabulary of a drafter that is cut already."""
    if asked is not None and source.token_ids is not None:
        raise ConfigError(
            f"{VOCABULARY} is {asked} and --draft {source.path} drafts {len(source.token_ids)} tokens already; "
            "leave the flag out, or give a drafter of all tokens"
        )


def early_match(draft: OpenedDraft, source: DraftSource, *, allow_unverified: bool) -> str | None:
    """What shows that the drafter belongs to the target; None where only the target's identity can tell."""
    if source.beside_target:
        return TARGET_FOLDER
    if source.model is not None:
        return TOKENIZER
    if draft.card.target_sha256 is not None:
        return None
    if not allow_unverified:
        name = draft.card.target_name
        raise CheckpointError(
            f"--draft {draft.path} ({draft.format}) does not name its target by identity"
            f"{f' (only as {name!r})' if name else ''}, so that it cannot be shown that it was made for this one; "
            "give --allow-unverified-target if you know it"
        )
    return UNVERIFIED


def match_identity(path: Path, expected: str, found: str, *, allow_unverified: bool) -> str:
    """Compare the target that a card names with the one that was packed."""
    if expected == found:
        return IDENTITY
    if not allow_unverified:
        raise CheckpointError(
            f"--draft {path} was made for the target {expected} and this one is {found}; give the drafter's own target "
            "with --target, or --allow-unverified-target to use it all the same"
        )
    return UNVERIFIED
