"""What the target is asked: prompts of a file, and user turns that the target itself makes up.

A chat model that is given the beginning of a user turn goes on as a user would (Xu et al. 2024, "Magpie"): that gives
questions of the kind it was trained on, without any data.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.errors import ConfigError
from trtspec.types import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for somebody's words while the template is taken apart."""
_USER_TURN = SamplingParams(temperature=1.0, top_p=0.95)
_MAX_USER_TOKENS = 200


class Template:
    """A chat template seen as what comes before the user's words, and what ends them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise ConfigError("the target's tokenizer has no chat template; give whole prompts as token ids instead")
        self._tokenizer = tokenizer
        before, _, after = self._render(_turn("user", _MARK)).partition(_MARK)
        self.before = self._ids(before)
        if not (ends := self._ids(after)):
            raise ConfigError(
                "the target's chat template has nothing after a user's words, so that nothing tells where they end; "
                "give --data with prompts and answers as token ids instead"
            )
        self.end = ends[0]
        """The token that ends a user turn."""

    def prompt(self, words: str) -> tuple[int, ...]:
        """Token ids of a conversation in which the user says this and the assistant is to answer."""
        return self._ids(self._render(_turn("user", words)))

    def answer_end(self, eos_ids: Collection[int]) -> tuple[int, ...]:
        """The token that ends an answer: the template's, if the target stops at it or at none; else one it stops at."""
        said = self._render(_turn("user", _MARK), _turn("assistant", _MARK), answered=True)
        ends = self._ids(said.rpartition(_MARK)[2])
        if eos_ids and (not ends or ends[0] not in eos_ids):
            return (min(eos_ids),)
        return ends[:1]

    def words(self, token_ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True)).strip()

    def _render(self, *turns: dict[str, str], answered: bool = False) -> str:
        """A conversation; where it is not answered, up to the beginning of the answer."""
        begun = not answered
        return str(self._tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=begun))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _turn(role: str, words: str) -> dict[str, str]:
    return {"role": role, "content": words}


def user_turn_requests(template: Template, count: int, seed: int) -> Iterator[Request]:
    """Requests whose answers are user turns."""
    for index in range(count):
        yield Request(
            f"user-{index}",
            prompt=template.before,
            max_tokens=_MAX_USER_TOKENS,
            sampling=_USER_TURN,
            seed=seed + index,
            eos_ids=frozenset({template.end}),
        )


def read_prompts(path: Path) -> list[str]:
    """The `prompt` of every line of a JSON lines file."""
    return [str(value["prompt"]) for _, value in read_lines(str(path), path)]


def read_lines(name: str, path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON lines file with their lines' numbers, each with a `prompt`; empty lines are skipped.

    Errors call the file by this name, flag and path.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON strings may hold other ends of lines
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not a text file in UTF-8") from error
    return [(number, _line(f"{name}: line {number}", line)) for number, line in enumerate(lines, 1) if line.strip()]


def _line(where: str, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error})") from error
    if not isinstance(value, dict) or "prompt" not in value:
        raise ConfigError(f'{where} has no "prompt"')
    return value
