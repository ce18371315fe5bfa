"""Token ids to text, one id at a time, and the search for stop strings.

It owns what is held back: an incomplete character, and text that may be the start of a stop string. Ids are pushed
singly, so how passes grouped them cannot change where a text ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_INCOMPLETE_TOKENS = 3
"""Most ids that an incomplete UTF-8 character can end with: it lacks one of at most four bytes."""
_CONTEXT_TOKENS = 8
"""Prompt ids decoded to the left of the output, so that a tokenizer that drops a leading space keeps it."""

Decode = Callable[[Sequence[int]], str]
Piece = Callable[[int], str]
"""Text of an id alone, where the bytes of ids simply join: whole characters then need no context."""


class Text(NamedTuple):
    """Text that became certain, and the stop string that ended it."""

    text: str
    stop: str | None = None


class StopScanner:
    """Finds the stop string that completes first; of two that complete together, the longer."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple(stops)
        self.characters = sum(map(len, self._stops))
        """Of all stop strings together: each may be compared for each token."""
        self._include = include
        self._held = ""

    def push(self, text: str, *, may_end: bool = True) -> Text:
        """Take more text and give what cannot belong to a stop string any more.

        A stop string that completes while the output may not end is passed over.
        """
        known = len(self._held)
        self._held += text
        if may_end and (matches := self._matches(known)):
            end, start, stop = min(matches)
            found, self._held = self._held[: end if self._include else start], ""
            return Text(found, stop)
        keep = self._possible_start()
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return Text(certain)

    def rest(self) -> str:
        """Give what was held: the output is over and no stop string completed."""
        held, self._held = self._held, ""
        return held

    def _matches(self, known: int) -> list[tuple[int, int, str]]:
        """End, start and text of the stop strings that end behind the first `known` held characters."""
        starts = ((self._held.find(stop, max(known - len(stop) + 1, 0)), stop) for stop in self._stops)
        return [(at + len(stop), at, stop) for at, stop in starts if at >= 0]

    def _possible_start(self) -> int:
        """Length of the longest tail that starts a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0


class Detokenizer:
    """The text of one output.

    Joined deltas equal the decoded ids, read to the right of the prompt, where their bytes are valid UTF-8 and no
    special token stands inside a character. Stop strings that complete among the first `min_tokens` ids are text.
    """

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int] = (),
        scanner: StopScanner | None = None,
        min_tokens: int = 0,
        piece: Piece | None = None,
    ) -> None:
        self._decode = decode
        self._piece = piece
        self._scanner = scanner or StopScanner(())
        self._scans = self._scanner.characters > 0
        self._min_tokens = min_tokens
        self._pushed = 0
        self._window = [] if piece else list(prompt[-_CONTEXT_TOKENS:])
        if decode(self._window).endswith(REPLACEMENT):
            # The prompt ends inside a character; what completes it belongs to the output.
            self._window = []
        self._read = len(self._window)
        self._known = decode(self._window)

    def push(self, token_id: int) -> Text:
        """Take the next id."""
        self._pushed += 1
        text = self._text_of(token_id)
        return self._scanner.push(text, may_end=self._pushed > self._min_tokens) if self._scans else Text(text)

    def flush(self) -> Text:
        """The rest of the text, an incomplete character included, when no id follows. It may complete a stop string."""
        rest = self._decode(self._window)[len(self._known) :]
        self._known += rest
        found = self._scanner.push(rest, may_end=self._pushed > self._min_tokens)
        return found if found.stop is not None else Text(found.text + self._scanner.rest())

    def _text_of(self, token_id: int) -> str:
        """What the id makes certain."""
        if self._piece is not None and not self._window:
            text = self._piece(token_id)
            if REPLACEMENT not in text:
                return text
        self._window.append(token_id)
        return self._advance()

    def _advance(self) -> str:
        text = self._decode(self._window)
        end = len(self._window)
        if text.endswith(REPLACEMENT):
            end -= _INCOMPLETE_TOKENS
            if end <= self._read:
                return ""
            head = self._decode(self._window[:end])
            if not text.startswith(head):
                return ""
            text = head
        delta = text[len(self._known) :]
        if delta:
            # The ids before the last delta have done their work as left context, and where ids simply join, all have.
            gone = end if self._piece else self._read
            self._window = self._window[gone:]
            self._read = end - gone
            self._known = self._decode(self._window[: self._read])
        elif end - self._read > _CONTEXT_TOKENS:
            # A long run of special tokens must not make each further decode longer.
            self._window.pop()
        return delta
