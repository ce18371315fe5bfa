"""The target's own answers: what a proposer learns from. One JSON line a conversation; a second run goes on."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.training.batch import run_requests
from builders.training.conversations import Template, user_turn_requests
from trtspec.decoding.engine import Engine
from trtspec.types import FinishReason, Request, SamplingParams

MAX_ANSWER_TOKENS = 320
MAX_TOKENS = 1024
"""Of a prompt and its answer; prompts that leave little for an answer are left out."""
_LEAST_ANSWER = 16
_SAMPLED_EVERY = 4
_SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)
"""Every fourth answer is sampled: the others are greedy, as most requests for short factual text are."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt and its answer, as token ids; the answer ends with its end-of-text id unless it was cut."""

    key: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer


def read_conversations(path: Path) -> list[Conversation]:
    """All whole lines; a last line that an interruption cut is left out."""
    found = []
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else []:
        if line.endswith(b"\n"):
            value = json.loads(line)
            found.append(Conversation(value["key"], tuple(value["prompt"]), tuple(value["answer"])))
    return found


def invent_prompts(engine: Engine, template: Template, count: int, seed: int, batch_size: int) -> Iterator[str]:
    """User turns that the target makes up; those that do not end or say nothing are left out."""
    for answer in run_requests(engine, user_turn_requests(template, count, seed), batch_size):
        words = template.words(answer.token_ids)
        if words and answer.reason is FinishReason.EOS:
            yield words


def write_answers(
    engine: Engine,
    template: Template,
    prompts: Sequence[tuple[str, str]],
    eos_ids: frozenset[int],
    path: Path,
    seed: int,
    batch_size: int,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[Conversation]:
    """Answer the prompts, given as (key, words), that the file does not answer yet; yields each as it is written.

    `max_tokens` bounds prompt and answer together. Seed and kind of an answer depend on its prompt's place alone.
    """
    done = {item.key for item in read_conversations(path)}
    with path.open("ab") as file:
        file.truncate(_whole_bytes(path))
        requests = _requests(template, prompts, done, eos_ids, seed, max_tokens)
        for answer in run_requests(engine, requests, batch_size):
            conversation = Conversation(answer.request.request_id, answer.request.prompt, answer.token_ids)
            file.write(_line(conversation).encode())
            file.flush()
            yield conversation


def _whole_bytes(path: Path) -> int:
    """The length of a file without a last line that an interruption cut."""
    return path.read_bytes().rfind(b"\n") + 1


def _requests(
    template: Template,
    prompts: Iterable[tuple[str, str]],
    done: Collection[str],
    eos_ids: frozenset[int],
    seed: int,
    max_tokens: int,
) -> Iterator[Request]:
    for index, (key, words) in enumerate(prompts):
        if key in done:
            continue
        prompt = template.prompt(words)
        if len(prompt) + _LEAST_ANSWER > max_tokens:
            continue
        sampled = index % _SAMPLED_EVERY == _SAMPLED_EVERY - 1
        yield Request(
            key,
            prompt=prompt,
            max_tokens=min(MAX_ANSWER_TOKENS, max_tokens - len(prompt)),
            sampling=_SAMPLED if sampled else SamplingParams(),
            seed=seed + index,
            eos_ids=eos_ids,
        )


def _line(conversation: Conversation) -> str:
    value = {"key": conversation.key, "prompt": conversation.prompt, "answer": conversation.answer}
    return json.dumps(value, separators=(",", ":")) + "\n"
