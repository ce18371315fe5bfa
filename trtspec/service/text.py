"""Text to token ids and back, with the tokenizer and chat template of an engine folder.

It knows the transformers library and no request rules. All methods may run in several threads at once.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from trtspec.errors import EngineFolderError, InvalidField
from trtspec.generation import TOKENIZER
from trtspec.service.checks import shown
from trtspec.service.detokenize import Piece
from trtspec.service.token_length import longest_token
from trtspec.service.tokenizer_file import NAME as TOKENIZER_FILE
from trtspec.service.tokenizer_file import check_ids

_RESERVED_ARGUMENTS = frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters) | {
    "messages",
}
"""Names that would replace what the server itself gives to the renderer, the template included."""
_LINE_END = "\n"
"""A character that tokenizers join with no word behind it."""
_KNOWN_TOKENS = 8192
"""Tokens whose text is kept: most of what a language uses."""
_SHOWN_PROBLEM = 256
"""Characters of a template's own complaint; it may repeat what the client wrote."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat to render, in plain Python values."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_arguments: Mapping[str, Any] | None = None
    template: str | None = None
    continue_final_message: bool = False


class Tokenizer:
    """The model's own tokenizer.

    Encoding and decoding go to the immutable backend: the transformers layer sets truncation on each call, which
    is not safe between threads.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        told = json.loads(self._backend.to_str())
        self._text_of_one = lru_cache(_KNOWN_TOKENS)(self._decode_one)
        joins = (told.get("decoder") or {}).get("type") == "ByteLevel"
        self.piece: Piece | None = self._text_of_one if joins else None
        """Text of an id, where bytes of ids simply join."""
        self.longest_token = longest_token(told)
        """Most characters that a token stands for, where that is known."""

    @classmethod
    def load(cls, engine: Path) -> Tokenizer:
        """Open the tokenizer of an engine folder."""
        try:
            check_ids(engine / TOKENIZER / TOKENIZER_FILE)
            return cls(PreTrainedTokenizerFast.from_pretrained(engine / TOKENIZER, local_files_only=True))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # whatever the libraries trip over; a panic of tokenizers is no `Exception`
            raise EngineFolderError(f"{engine / TOKENIZER} cannot be read ({error}); build the engine again") from error

    def files(self) -> Mapping[str, bytes]:
        """Content of the files that make it, by name, for loaders of other programs."""
        with tempfile.TemporaryDirectory() as folder:
            self._tokenizer.save_pretrained(folder)
            return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text with the special tokens that the model starts with."""
        return tuple(self._backend.encode(text, add_special_tokens=True).ids)

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Ids of a rendered chat, whose template has written the special tokens already."""
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_inside(self, text: str) -> tuple[int, ...]:
        """Ids of a text as it stands behind other text, where no tokenizer adds a space of its own."""
        before = self.encode_rendered(_LINE_END)
        ids = self.encode_rendered(_LINE_END + text)
        return ids[len(before) :] if ids[: len(before)] == before else self.encode_rendered(text)

    def render(self, chat: ChatPrompt) -> str:
        """The chat as text, by the model's template."""
        template = self._template(chat)
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in chat.messages],
                tools=[dict(tool) for tool in chat.tools] or None,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=not chat.continue_final_message,
                continue_final_message=chat.continue_final_message,
                **(chat.template_arguments or {}),
            )
        except Exception as error:
            # A template is a program that fails on messages it does not foresee; that is the client's input.
            problem = f"not accepted by the chat template ({shown(str(error), _SHOWN_PROBLEM)})"
            raise InvalidField("chat", problem, "what the template takes") from error
        return str(text)

    def _template(self, chat: ChatPrompt) -> str | None:
        """Name of the template to use where the model has several; it has one that this chat may use."""
        templates = self._tokenizer.chat_template
        if not templates:
            raise InvalidField("chat", "a chat", "text or token_ids: this model has no chat template")
        names = sorted(templates) if isinstance(templates, dict) else ["default"]
        if chat.template is not None and chat.template not in names:
            raise InvalidField("chat.template", shown(chat.template), f"one of {', '.join(names)}")
        if clash := sorted(_RESERVED_ARGUMENTS & set(chat.template_arguments or ())):
            raise InvalidField("chat.template_arguments", repr(clash[0]), "a name that the server does not set")
        # The renderer would take the name of a single template for the template itself.
        return chat.template if isinstance(templates, dict) else None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens have none."""
        if len(ids) == 1:
            return self._text_of_one(ids[0])
        text: str = self._backend.decode(ids, skip_special_tokens=True)
        return text

    def _decode_one(self, id_: int) -> str:
        text: str = self._backend.decode([id_], skip_special_tokens=True)
        return text

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Text of each id alone, special tokens shown."""
        return tuple(str(self._backend.decode([id_], skip_special_tokens=False)) for id_ in ids)
