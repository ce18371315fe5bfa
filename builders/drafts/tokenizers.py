"""Whether a draft model speaks the target's language: token by token, not by the size of the vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPECIAL = ("bos_token_id", "eos_token_id")


def check_same_tokenizer(
    path: Path, drafter: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, *, allow_other_ends: bool
) -> bool:
    """Refuse tokenizers that spell an id differently, merge differently, or begin and end texts with other ids.

    Ids that only one of them knows lie in padding, and are neither fed nor drafted. Returns whether they are the same;
    false is for those that begin or end texts with other ids, where that is allowed: such drafts are only worse.
    """
    _check_spelling(path, drafter.get_vocab(), target.get_vocab())
    _check_merges(path, drafter, target)
    for name in _SPECIAL:
        left, right = getattr(drafter, name), getattr(target, name)
        if left != right:
            if allow_other_ends:
                return False
            raise CheckpointError(
                f"--draft {path}: its tokenizer has another {name}, {left}, than the target, {right}, and is the same "
                "otherwise; give a model of the same family, or --allow-unverified-target to use it all the same"
            )
    return True


def _check_merges(path: Path, drafter: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> None:
    left, right = _merges(drafter), _merges(target)
    if left != right:
        at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
        one, other = (items[at] if at < len(items) else None for items in (left, right))
        raise _different(path, f"merge {at} is {one!r} in the drafter and {other!r} in the target")


def _check_spelling(path: Path, drafter: dict[str, int], target: dict[str, int]) -> None:
    words, wanted = ({index: token for token, index in vocabulary.items()} for vocabulary in (drafter, target))
    for index in sorted(words.keys() & wanted.keys()):
        if words[index] != wanted[index]:
            raise _different(
                path, f"token {index} is {words[index]!r} in the drafter and {wanted[index]!r} in the target"
            )


def _merges(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """The merges of a byte-pair tokenizer, each as a pair; none for other kinds."""
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = document["model"].get("merges", [])
    return [tuple(item.split(" ", 1)) if isinstance(item, str) else tuple(item) for item in merges]


def _different(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"--draft {path}: its tokenizer is not the target's: {what}; give a model of the same family"
    )
