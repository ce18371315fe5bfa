"""How much text one token can stand for, read from a tokenizer's own description.

With it, a text that is far too long is refused without cutting it into tokens. It says nothing where a step of the
tokenizer may drop or join characters, because then there is no such bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import pre_tokenizers

_KEEP = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})
"""Pre-tokenizers that drop nothing; of `Split` only where it does not remove what it finds."""


def longest_token(tokenizer: Mapping[str, Any]) -> int | None:
    """Most characters of a text that a token stands for; None where nothing can be said."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    pre_steps = list(_steps(tokenizer["pre_tokenizer"], "pretokenizers"))
    keeps = (
        model["type"] == "BPE"
        and all(_only_lengthens(step) for step in _steps(tokenizer["normalizer"], "normalizers"))
        and all(step["type"] in _KEEP and step.get("behavior") != "Removed" for step in pre_steps)
        # An added token that strips takes any amount of white space with it.
        and not any(token["lstrip"] or token["rstrip"] for token in added)
        and _knows_every_byte(model, pre_steps)
    )
    if not keeps:
        return None
    # One byte of a text is one character of a byte-level token, so this holds for those, too.
    return max(len(text) for text in (*model["vocab"], *(token["content"] for token in added)))


def _steps(part: Mapping[str, Any] | None, members: str) -> Iterator[Mapping[str, Any]]:
    """The single steps of a normalizer or pre-tokenizer."""
    if part is not None and part["type"] == "Sequence":
        for inner in part[members]:
            yield from _steps(inner, members)
    elif part is not None:
        yield part


def _only_lengthens(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        replaced = step["pattern"].get("String")
        return replaced is not None and len(step["content"]) >= len(replaced)
    return bool(step["type"] == "Prepend")


def _knows_every_byte(model: Mapping[str, Any], pre_steps: list[Mapping[str, Any]]) -> bool:
    """Whether no character is unknown: unknown ones are dropped, or any number of them is one token."""
    if any(step["type"] == "ByteLevel" for step in pre_steps):
        return set(pre_tokenizers.ByteLevel.alphabet()) <= set(model["vocab"])
    return bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
