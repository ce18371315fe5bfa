"""One output, from the engine's steps to the deltas a client sees.

It owns where an output ends: a stop string cuts ids, text, log-probabilities and pass records at the token that
completes it. It does not know protos or gRPC, and it may run in any one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trtspec.decoding.stats import SpeculationStats, Tally
from trtspec.service.detokenize import Decode, Detokenizer, Piece, StopScanner
from trtspec.types import FinishReason, PassRecord, StepOutput, TokenLogprobs

MAX_DELTA_TOKENS = 4096
"""In one message. With all that can be asked for a token takes some 450 bytes, and clients read 4 MiB by default."""
MAX_PASS_RECORDS = 4096
"""Pass records kept for `finished`; at about 16 bytes each they stay far below the smallest message limit."""

_LIGHT_WORK = 1024
_TOKEN_WORK = 16
"""Decoding a token takes as long as looking for so many characters of stop strings, some five microseconds. So 64
tokens without stop strings are light, and no token is where stop strings are long."""


@dataclass(frozen=True, slots=True)
class End:
    """How an output ended."""

    reason: FinishReason
    stop_string: str | None = None
    stop_id: int | None = None


class Delta(NamedTuple):
    """What one message adds to an output. A tuple, which is made in half the time of a frozen dataclass."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    passes: tuple[PassRecord, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    end: End | None = None

    @property
    def empty(self) -> bool:
        return not self.token_ids and not self.text


class OutputAssembler:
    """Turns the steps of one output into deltas and keeps its totals."""

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int],
        scanner: StopScanner,
        *,
        keep_output: bool,
        keep_passes: bool,
        min_tokens: int = 0,
        piece: Piece | None = None,
    ) -> None:
        self._text = Detokenizer(decode, prompt, scanner, min_tokens, piece)
        self._light_tokens = _LIGHT_WORK // (_TOKEN_WORK + scanner.characters)
        self.keeps_output = keep_output
        self._keep_passes = keep_passes
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self.count = 0
        self.end: End | None = None
        self._tally = Tally()
        self.passes: list[PassRecord] = []
        self.passes_truncated = False

    @property
    def stats(self) -> SpeculationStats:
        return self._tally.stats

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        return tuple(self._logprobs)

    def is_light(self, step: StepOutput) -> bool:
        """Taking the step costs less than handing it to another thread would."""
        return len(step.token_ids) <= self._light_tokens

    def take(self, step: StepOutput, *, by_token: bool) -> tuple[Delta, ...]:
        """The deltas of a step: one for each token, or as few as fit. The last one has `end` where the output ends."""
        texts = self._read(step)
        ids, logprobs = step.token_ids[: len(texts)], step.logprobs[: len(texts)]
        passes = cut(step.passes, len(ids)) if len(ids) < len(step.token_ids) or self._stopped_here else step.passes
        self._count(ids, passes)
        if self.keeps_output:
            self._ids.extend(ids)
            self._texts.extend(texts)
            self._logprobs.extend(logprobs)
        size = 1 if by_token else MAX_DELTA_TOKENS
        if len(texts) <= size:
            return (Delta(ids, "".join(texts), passes, logprobs, self.end),)
        return split(Delta(ids, "", passes, logprobs, self.end), texts, size)

    def _read(self, step: StepOutput) -> list[str]:
        """The text of each token up to where the output ends; it may end here."""
        texts: list[str] = []
        silent = step.finish is not None and step.finish.stop_id is not None
        for token_id in step.token_ids[:-1] if silent else step.token_ids:
            found = self._text.push(token_id)
            texts.append(found.text)
            if found.stop is not None:
                self.end = End(FinishReason.STOP, stop_string=found.stop)
                return texts
        if silent and step.token_ids:
            texts.append("")  # the id that ends the output has none
        if step.finish:
            found = self._text.flush()
            texts[-1:] = ["".join(texts[-1:]) + found.text]
            if found.stop is not None:
                self.end = End(FinishReason.STOP, stop_string=found.stop)
            else:
                self.end = End(step.finish.reason, stop_id=step.finish.stop_id)
        return texts

    @property
    def _stopped_here(self) -> bool:
        return self.end is not None and self.end.stop_string is not None

    def _count(self, ids: Sequence[int], passes: Sequence[PassRecord]) -> None:
        self.count += len(ids)
        self._tally.count(passes)
        if self._keep_passes:
            room = MAX_PASS_RECORDS - len(self.passes)
            self.passes.extend(passes[:room])
            self.passes_truncated |= len(passes) > room


def cut(passes: Sequence[PassRecord], kept: int) -> tuple[PassRecord, ...]:
    """The records of an output that ends after `kept` tokens of these passes."""
    result: list[PassRecord] = []
    for record in passes:
        if kept <= record.emitted:
            result.append(record.cut_to(kept))
            break
        result.append(record)
        kept -= record.emitted
    return tuple(result)


def split(whole: Delta, texts: Sequence[str], size: int) -> tuple[Delta, ...]:
    """Deltas of at most `size` tokens, given the text of each. The one with the first token of a pass has its record,
    and the last one has the end."""
    # An end without a token still is a delta, and so is the text that it set free.
    count = max(-(-len(texts) // size), 1)
    passes: list[list[PassRecord]] = [[] for _ in range(count)]
    at = 0
    for record in whole.passes:
        passes[min(at // size, count - 1)].append(record)
        at += record.emitted
    parts = [slice(index * size, (index + 1) * size) for index in range(count)]
    return tuple(
        Delta(
            token_ids=whole.token_ids[part],
            text="".join(texts[part]),
            passes=tuple(records),
            logprobs=whole.logprobs[part],
            end=whole.end if part is parts[-1] else None,
        )
        for part, records in zip(parts, passes, strict=True)
    )
