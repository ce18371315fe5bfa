"""Guides compiled for an engine's tokens, and matchers of them.

All kinds are what TensorRT-LLM makes of them with the same library, so that a request means the same on both backends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
import xgrammar

from trtspec.decoding.guiding import Bools, Matcher, OpenGuide
from trtspec.errors import InvalidField
from trtspec.guides import Guide, GuideKind

MASK_SECONDS = 0.05
"""CPU time that a mask may take on average; most take a few microseconds."""
_SPARE_SECONDS = 2.0
"""More of it that all masks of an output may take together."""
_WORD_BITS = 32
_PLACE_IN_SOURCE = re.compile(r"^\[[\d:]+\] \S+?:\d+: ")
"""What the library puts before a message: the time and a line of its own code."""

_COMPILE: Mapping[GuideKind, Callable[[xgrammar.GrammarCompiler, str], xgrammar.CompiledGrammar]] = {
    GuideKind.JSON_SCHEMA: lambda compiler, text: compiler.compile_json_schema(text),
    GuideKind.JSON_OBJECT: lambda compiler, text: compiler.compile_builtin_json_grammar(),
    GuideKind.REGEX: lambda compiler, text: compiler.compile_regex(text),
    GuideKind.GRAMMAR: lambda compiler, text: compiler.compile_grammar(text),
    GuideKind.CHOICE: lambda compiler, text: compiler.compile_grammar(text),
    GuideKind.STRUCTURAL_TAG: lambda compiler, text: compiler.compile_structural_tag(text),
}


class CompiledGuide(OpenGuide):
    """A guide with its grammar."""

    __slots__ = ("_grammar", "_tokens")
    _grammar: xgrammar.CompiledGrammar
    _tokens: xgrammar.TokenizerInfo

    def __init__(self, guide: Guide, grammar: xgrammar.CompiledGrammar, tokens: xgrammar.TokenizerInfo) -> None:
        super().__init__(guide.kind, guide.text)
        object.__setattr__(self, "_grammar", grammar)  # the base is frozen
        object.__setattr__(self, "_tokens", tokens)

    @property
    def size(self) -> int:
        """Bytes that the grammar takes."""
        return int(self._grammar.memory_size_bytes)

    def matcher(self) -> Matcher:
        return GrammarMatcher(self._grammar, self._tokens)


class Grammars:
    """Compiles one guide at a time, for the tokens of one engine."""

    def __init__(self, tokens: xgrammar.TokenizerInfo) -> None:
        self._tokens = tokens
        # One thread: cores belong to the engine. The cache is ours, which is bounded by guides and by bytes.
        self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)

    def compile(self, guide: Guide) -> CompiledGuide:
        """Raises `InvalidField` for a guide that makes no sense."""
        try:
            grammar = _COMPILE[guide.kind](self._compiler, guide.text)
        except (RuntimeError, ValueError, TypeError) as error:  # all that the library raises for a text
            raise InvalidField(guide.field, f"not understood ({_first_words(error)})", "a text of that kind") from None
        return CompiledGuide(guide, grammar, self._tokens)


def _first_words(error: Exception) -> str:
    """The library's own complaint; it may repeat what the client wrote."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _PLACE_IN_SOURCE.sub("", lines[0])[:256]


class GrammarMatcher:
    """Implements `Matcher`."""

    def __init__(self, grammar: xgrammar.CompiledGrammar, tokens: xgrammar.TokenizerInfo) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self.vocabulary: int = tokens.vocab_size
        self.end_ids = frozenset(tokens.stop_token_ids)
        self._special = frozenset(tokens.special_token_ids)
        # A tensor, for versions of the library that TensorRT-LLM brings take no array of NumPy.
        self._words = torch.zeros((1, -(-self.vocabulary // _WORD_BITS)), dtype=torch.int32)
        self._masks = 0
        self._spent = 0.0

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def accept(self, token: int) -> bool:
        # What the library would reject as well, but with a line in the log.
        if not 0 <= token < self.vocabulary or token in self._special or self._matcher.is_terminated():
            return False
        return bool(self._matcher.accept_token(token))

    def rollback(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)

    def allowed(self) -> Bools:
        """Nothing where the text has ended, and where its masks have cost too much: then it cannot go on."""
        self._masks += 1
        if self._matcher.is_terminated() or self._spent > _SPARE_SECONDS + MASK_SECONDS * self._masks:
            return np.zeros(self.vocabulary, np.bool_)
        begun = time.thread_time()
        self._matcher.fill_next_token_bitmask(self._words)
        self._spent += time.thread_time() - begun
        bits = np.unpackbits(self._words.numpy().view(np.uint8)[0], bitorder="little")
        return bits[: self.vocabulary].astype(np.bool_)
