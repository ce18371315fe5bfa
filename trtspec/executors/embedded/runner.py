"""The eager runner: a pass of the decoder in plain PyTorch, on any device. The reference for compiled ones."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import Pass, TargetOutput
from trtspec.executors.embedded.cache import CachePool, attending
from trtspec.executors.embedded.layout import PassLayout, lay_out, row_parts
from trtspec.executors.embedded.model import Attention, Decoder
from trtspec.executors.embedded.padded import Paging, Recorder, Recordings


class EagerRunner:
    """Implements `Runner` over a decoder and its cache. With a recorder, passes of few tokens are recorded by shape;
    logits of a pass are then valid until the next one."""

    def __init__(
        self,
        model: Decoder[Attention, Tensor],
        pool: CachePool,
        block_tokens: int,
        vocabulary_size: int,
        record: Recorder | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._block_tokens = block_tokens
        self._vocabulary_size = vocabulary_size
        paging = Paging(block_tokens, pool.scratch)
        self._recordings = None if record is None else Recordings(self._run, record, paging, pool.keys.device)

    @torch.inference_mode()
    def forward(self, plan: Pass, draft: Draft) -> TargetOutput:
        self._pool.move(plan.copies)
        parts = row_parts(plan, draft, self._block_tokens)
        recorded = None if self._recordings is None else self._recordings.replay(parts)
        if recorded is not None:
            return recorded
        return self._run(lay_out(parts, self._block_tokens, self._pool.keys.device))

    def _run(self, layout: PassLayout) -> TargetOutput:
        with attending(self._pool, layout, self._model.config.num_heads) as attention:
            hidden = self._model.hidden(layout.token_ids, layout.positions, attention)
        return TargetOutput(self._model.logits(hidden.last[layout.scored], self._vocabulary_size), hidden.features)
