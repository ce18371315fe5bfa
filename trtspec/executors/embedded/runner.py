"""The eager runner: a pass of the decoder in plain PyTorch, on any device. The reference for compiled ones."""

from __future__ import annotations

import torch

from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import StepPlan, TargetOutput
from trtspec.executors.embedded.cache import CachePool, PagedAttention
from trtspec.executors.embedded.layout import lay_out
from trtspec.executors.embedded.model import Decoder


class EagerRunner:
    """Implements `Runner` over a decoder and its cache."""

    def __init__(self, model: Decoder, pool: CachePool, block_tokens: int, vocabulary_size: int) -> None:
        self._model = model
        self._pool = pool
        self._block_tokens = block_tokens
        self._vocabulary_size = vocabulary_size

    @torch.inference_mode()
    def forward(self, plan: StepPlan, draft: Draft) -> TargetOutput:
        self._pool.move(plan.copies)
        layout = lay_out(plan, draft, self._block_tokens, self._pool.keys.device)
        attention = PagedAttention(self._pool, layout, self._model.config.num_heads)
        hidden = self._model.hidden(layout.token_ids, layout.positions, attention)
        scored = hidden[layout.scored]
        return TargetOutput(self._model.logits(scored, self._vocabulary_size), scored)
