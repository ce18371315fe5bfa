"""Guides over a vocabulary of sixteen tokens, for scripted targets, and what a text under one must be."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import xgrammar

from trtspec.decoding.draft import Draft
from trtspec.decoding.guiding import GuidedText
from trtspec.decoding.proposer import BatchView, Needs, Proposer
from trtspec.executors.guides.grammars import CompiledGuide, Grammars
from trtspec.guides import Guide, GuideKind
from trtspec.types import Request

SPELT = ("{", "}", "[", "]", ",", ":", '"', "a", "b", "1", "2", '"a"', "<", ">", "", "")
SPECIAL, EOS = 14, 15
GRAMMARS = Grammars(
    xgrammar.TokenizerInfo(
        [text.encode() for text in SPELT], xgrammar.VocabType.RAW, vocab_size=16, stop_token_ids=[EOS]
    )
)
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"enum": [1, 2, 12]}, "maxItems": 4},
        "b": {"type": "string", "maxLength": 3},
    },
    "required": ["a", "b"],
}


def compiled(kind: GuideKind, text: str = "") -> CompiledGuide:
    return GRAMMARS.compile(Guide(kind, text))


JSON = compiled(GuideKind.JSON_SCHEMA, json.dumps(SCHEMA))


def spell(ids: Sequence[int]) -> str:
    return "".join(SPELT[id_] for id_ in ids)


def conforms(ids: Sequence[int]) -> bool:
    """Whether the whole text is JSON of the schema."""
    found = json.loads(spell(ids))
    return (
        set(found) == {"a", "b"}
        and isinstance(found["a"], list)
        and len(found["a"]) <= 4
        and all(item in (1, 2, 12) for item in found["a"])
        and isinstance(found["b"], str)
        and len(found["b"]) <= 3
    )


def fresh(request: Request, text: Sequence[int]) -> GuidedText:
    """A new matcher that was fed a text, prompt included."""
    found = GuidedText(request)
    found.follow(text)
    return found


class Watched:
    """A proposer that sees in each pass that the matchers stand where a fresh one would."""

    def __init__(self, proposer: Proposer) -> None:
        self.needs: Needs = proposer.needs
        self.seen = 0
        self._proposer = proposer

    def propose(self, view: BatchView) -> Draft:
        draft = self._proposer.propose(view)
        for row in view.rows:
            self._compare(row.request, row.tokens, row.guided)
        return draft

    def _compare(self, request: Request, text: Sequence[int], guided: GuidedText | None) -> None:
        if guided is None:
            return
        self.seen += 1
        here, expected = guided.allowed(()), fresh(request, text).allowed(())
        assert here is not None and expected is not None and np.array_equal(here, expected)
