"""The conversations of a training run: those of a file, answered by the target where they lack answers, or invented."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from builders.progress import Report
from builders.training.answers import MAX_TOKENS, Conversation, invent_prompts, read_conversations, write_answers
from builders.training.conversations import Template, read_lines, read_prompts
from builders.training.features import FeatureStore, Shelf, write_features
from builders.training.recorder import Recorder
from builders.training.target import Target
from trtspec.decoding.engine import Engine
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import ConfigError
from trtspec.manifest import hash_file
from trtspec.types import Limits

_CHUNK = 500
"""User turns that are invented together; an interruption loses at most so many."""
_BATCH = 64
_PREFILL = 192
_SLOTS = 40_000
"""Positions of the cache: a full batch of usual conversations; longer ones wait for each other."""
_SEEDS = 1_000_000
"""Requests of one run have seeds of their own."""
LEAST_ANSWER = 2
"""A token, and one to guess after it."""


class Speaker:
    """The target as one that talks. Its engine opens when it is first needed."""

    def __init__(self, target: Target, report: Report) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(target.tokenizer_directory)
        self._target = target
        self.vocabulary_size = target.manifest.vocabulary_size
        self.longest = min(MAX_TOKENS, target.manifest.max_context_tokens)
        self._report = report

    @cached_property
    def recorder(self) -> Recorder:
        """What the engine runs on."""
        return Recorder(self._target.runner(self.longest, _SLOTS))

    @cached_property
    def engine(self) -> Engine:
        """Plain decoding, in which nobody takes over what another computed: the recorder is to see it all."""
        block = self._target.block_tokens
        limits = Limits(
            max_context_tokens=self.longest,
            max_batch_size=_BATCH,
            max_draft_tokens=0,
            max_tree_nodes=0,
            max_pass_tokens=_BATCH + _PREFILL,
            kv_cache_tokens=_SLOTS // block * block,
            vocabulary_size=self.vocabulary_size,
        )
        return Engine(self.recorder, NoProposer(), KVCache(_SLOTS // block, block, prefix_sharing=False), limits)

    @cached_property
    def template(self) -> Template:
        return Template(self.tokenizer)

    @cached_property
    def answer_end(self) -> tuple[int, ...]:
        """What ends an answer that is given as text."""
        return self.template.answer_end(self._target.eos_ids)

    def invent(self, count: int, directory: Path, seed: int) -> list[tuple[str, str]]:
        """The user turns that ended well out of so many, as (key, words); whole chunks on disk are kept."""
        found: list[tuple[str, str]] = []
        for chunk in range(-(-count // _CHUNK)):
            size = min(_CHUNK, count - chunk * _CHUNK)
            path = directory / f"prompts-{seed}-{chunk}-{size}.jsonl"
            if not path.is_file():
                first = seed * _SEEDS + chunk * _CHUNK
                with self.recorder.paused():
                    words = list(invent_prompts(self.engine, self.template, size, first, _BATCH))
                _write_lines(path, ({"prompt": item} for item in words))
            found += [(f"{seed}-{chunk}-{size}-{i}", words) for i, words in enumerate(read_prompts(path))]
            self._report("prompts", min((chunk + 1) * _CHUNK, count), count)
        return found

    def answer(
        self, prompts: Sequence[tuple[str, str]], path: Path, seed: int, store: FeatureStore
    ) -> list[Conversation]:
        """The conversations of these prompts, given as (key, words); those in the file are kept.

        What the target computes on the way goes into the store.
        """
        known = {item.key for item in read_conversations(path)}
        if missing := [item for item in prompts if item[0] not in known]:
            eos_ids, first = self._target.eos_ids, seed * _SEEDS
            said = write_answers(self.engine, self.template, prompts, eos_ids, path, first, _BATCH, self.longest)
            shelf = Shelf(store)
            for done, item in enumerate(said, 1):
                shelf.put(item, self.recorder.take(item.key))
                self._report("answers", done, len(missing))
            shelf.close()
        wanted = {key for key, _ in prompts}
        return [item for item in read_conversations(path) if item.key in wanted]


def given(
    flag: str, path: Path, speaker: Speaker, directory: Path, seed: int, store: FeatureStore
) -> list[Conversation]:
    """The conversations of a file of JSON lines, which a flag names: `prompt`, and `answer` or else the target's own.

    Both are texts, or lists of token ids with the template already applied, as `answers.jsonl` of another run has them.
    """
    digest = hash_file(path).sha256[:12]
    whole: list[Conversation] = []
    open_prompts: list[tuple[str, str]] = []
    for number, value in read_lines(f"{flag} {path}", path):
        where = f"{flag} {path}: line {number}"
        key = str(value.get("key", f"{digest}-{number}"))
        if "answer" in value:
            whole.append(Conversation(key, *_pair(where, value, speaker)))
        elif isinstance(value["prompt"], str):
            open_prompts.append((key, value["prompt"]))
        else:
            raise ConfigError(f"{where} has token ids and no answer; give the answer's ids, too")
    return whole + speaker.answer(open_prompts, directory / f"answers-{digest}.jsonl", seed, store)


def usable(conversations: Iterable[Conversation]) -> list[Conversation]:
    """Those in which something can be guessed."""
    return [item for item in conversations if item.prompt and len(item.answer) >= LEAST_ANSWER]


def complete(target: Target, conversations: Sequence[Conversation], store: FeatureStore, report: Report) -> None:
    """Compute the features of what was answered elsewhere, or before an interruption."""
    missing = sum(len(item.tokens) for item in conversations if store.find(item) is None)
    done = 0
    for count in write_features(target, conversations, store):
        done += count
        report("features", done, missing)


def _pair(where: str, value: dict[str, Any], speaker: Speaker) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and answer, the latter as far as the target goes."""
    prompt, answer = value["prompt"], value["answer"]
    if isinstance(prompt, str) and isinstance(answer, str):
        prompt, words = speaker.template.prompt(prompt), speaker.tokenizer.encode(answer, add_special_tokens=False)
        answer = (*words, *speaker.answer_end)
    elif not (_are_ids(prompt, speaker) and _are_ids(answer, speaker)):
        raise ConfigError(f"{where}: prompt and answer must both be texts, or both lists of the target's token ids")
    return tuple(prompt), tuple(answer[: max(speaker.longest - len(prompt), 0)])


def _are_ids(value: object, speaker: Speaker) -> bool:
    most = speaker.vocabulary_size
    return isinstance(value, list) and all(type(item) is int and 0 <= item < most for item in value) and bool(value)


def _write_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """The file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    partial.replace(path)
