"""How much of the target's law a draft vocabulary holds, by position: a guess counts so much in the loss.

Where the target most likely says what cannot be drafted, a guess is refused whatever it is, so nothing is to be learnt
(EAGLE-3, Li et al. 2025, masks the positions whose likeliest token is outside).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from builders.training.answers import Conversation
from builders.training.features import text_sha256

_ROWS = 128
"""Positions that are scored over the whole vocabulary at once."""


class Coverage:
    """Weighs conversations, each computed once: scoring the whole vocabulary takes longer than a step of training."""

    def __init__(self, head: Tensor, token_ids: Tensor, path: Path) -> None:
        """`head` [V, H] scores all tokens, of which `token_ids` [D] can be drafted; the file keeps what is known."""
        self._head = head
        self._token_ids = token_ids
        self._path = path
        self._known: dict[str, Tensor] = torch.load(path, weights_only=True) if path.is_file() else {}

    def save(self) -> None:
        """Keep what was computed; the file appears whole or not at all."""
        partial = self._path.with_name(self._path.name + ".partial")
        torch.save(self._known, partial)
        partial.replace(self._path)

    @torch.no_grad()
    def __call__(self, conversation: Conversation, features: Tensor) -> Tensor:
        """[count, F], the last state last -> [count]: the law's mass in the vocabulary; 1 before the answer."""
        text = text_sha256(conversation)
        found = self._known.get(text)
        if found is None or len(found) != len(features):  # the last token's features may have come since
            found = self._known[text] = self._masses(conversation, features)
        return found

    def _masses(self, conversation: Conversation, features: Tensor) -> Tensor:
        begin = len(conversation.prompt)
        states = features[begin:, -self._head.shape[1] :].to(self._head.device, torch.float32)
        found = [self._mass(part) for part in states.split(_ROWS)]
        return torch.cat([torch.ones(begin), *found])[: len(features)]

    def _mass(self, states: Tensor) -> Tensor:
        logits = linear(states, self._head)
        return (logits[:, self._token_ids].logsumexp(dim=1) - logits.logsumexp(dim=1)).exp().clamp(max=1.0).cpu()
