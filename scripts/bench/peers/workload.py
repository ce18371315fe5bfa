"""The prompts of each mode as token ids, the same for every engine. Pure but for the tokenizer it is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.peers.jobs import Mode

PROMPTS = Path(__file__).resolve().parents[1] / "prompts.jsonl"
NEW_TOKENS = 128
PREFILL_TOKENS, PREFILL_RUNS = 1000, 5
CONTEXT_LENGTHS, CONTEXT_RUNS = (64, 1000), 6
"""Half of the runs generate the first token alone."""
CONTEXT_NEW_TOKENS = 65
"""Few, so that the length of the context hardly changes meanwhile."""
WARM_UPS = 16

Tokenize = Callable[[str], list[int]]
"""A user's message as ids, chat template applied."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a mode generates from."""

    prompts: list[list[int]]
    max_new_tokens: int


def read_prompts(path: Path = PROMPTS) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]


def workload(mode: Mode, texts: Sequence[str], tokenize: Tokenize) -> Workload:
    match mode:
        case Mode.PLAIN | Mode.SPECULATION:
            return Workload([tokenize(text) for text in texts], NEW_TOKENS)
        case Mode.PREFILL:
            return Workload(_of_length(PREFILL_TOKENS, PREFILL_RUNS, texts, tokenize), 1)
        case Mode.CONTEXT:
            prompts = [ids for length in CONTEXT_LENGTHS for ids in _of_length(length, CONTEXT_RUNS, texts, tokenize)]
            return Workload(prompts, CONTEXT_NEW_TOKENS)


def warm_up(tokenize: Tokenize) -> list[list[int]]:
    """Prompts that appear in no workload, one for each request in flight."""
    return [tokenize(f"{index} times {index + 1} is what? Count up to it.") for index in range(2, 2 + WARM_UPS)]


def _of_length(tokens: int, count: int, texts: Sequence[str], tokenize: Tokenize) -> list[list[int]]:
    """`count` prompts of exactly `tokens` ids. Each turns the texts by one, so that no two share more than the
    template's own beginning."""
    return [_cut(" ".join((*texts[turn:], *texts[:turn])), tokens, tokenize) for turn in range(count)]


def _cut(text: str, tokens: int, tokenize: Tokenize) -> list[int]:
    """A message of the text, repeated as needed and cut in its middle, so that the template's end stays."""
    ids = tokenize(text)
    ending = len(tokenize(""))  # at least as long as what follows the message
    while len(ids) < tokens:
        text = f"{text} {text}"
        ids = tokenize(text)
    return ids[: tokens - ending] + ids[len(ids) - ending :]
