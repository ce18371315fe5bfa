"""What the target is asked: prompts of a file, and user turns that the target itself makes up.

A chat model that is given the beginning of a user turn goes on as a user would (Xu et al. 2024, "Magpie"): that gives
questions of the kind it was trained on, without any data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.errors import ConfigError
from trtspec.types import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for the user's words while the template is taken apart."""
_USER_TURN = SamplingParams(temperature=1.0, top_p=0.95)
_MAX_USER_TOKENS = 200


class Template:
    """A chat template seen as what comes before the user's words, and what ends them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise ConfigError("the target's tokenizer has no chat template; give whole prompts as token ids instead")
        self._tokenizer = tokenizer
        before, after = self._render(_MARK).split(_MARK, 1)
        self.before = self._ids(before)
        self.end = self._ids(after)[0]
        """The token that ends a user turn."""

    def prompt(self, words: str) -> tuple[int, ...]:
        """Token ids of a conversation in which the user says this and the assistant is to answer."""
        return self._ids(self._render(words))

    def words(self, token_ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True)).strip()

    def _render(self, words: str) -> str:
        messages = [{"role": "user", "content": words}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


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
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"--data {path}: line {number} is not JSON ({error})") from error
        if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
            raise ConfigError(f'--data {path}: line {number} has no "prompt", which must be a text')
        prompts.append(value["prompt"])
    return prompts
