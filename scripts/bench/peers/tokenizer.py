"""The tokenizer of one of our engine folders: all engines get the ids that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from trtspec import generation


@dataclass(frozen=True, slots=True)
class ChatTokenizer:
    tokenizer: Any
    eos_ids: Sequence[int]

    def message(self, text: str) -> list[int]:
        """Ids of a chat of one message, ready for the answer."""
        chat = [{"role": "user", "content": text}]
        templated = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(templated, add_special_tokens=False)["input_ids"]
        return ids


def load_tokenizer(engine: Path) -> ChatTokenizer:
    """From an engine folder, with the ids that end its texts."""
    tokenizer = AutoTokenizer.from_pretrained(engine / generation.TOKENIZER)
    return ChatTokenizer(tokenizer, sorted(generation.read(engine).eos_ids))
