"""The eager drafter: its networks in plain PyTorch, on any device. The reference for compiled ones."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import DraftOutput, DraftPlan
from trtspec.executors.embedded.cache import CachePool, attending
from trtspec.executors.embedded.drafter_model import DrafterModel, HeadsModel
from trtspec.executors.embedded.layout import lay_out, row_parts
from trtspec.executors.embedded.model import Attention


class EagerNetwork:
    """Implements `DraftNetwork` over a module and its cache.

    Nothing here runs in inference mode: callers write into what they are told.
    """

    def __init__(
        self,
        model: DrafterModel[Attention, Tensor],
        pool: CachePool,
        block_tokens: int,
        positions: int,
        token_ids: Tensor | None,
    ) -> None:
        self.token_ids = token_ids
        self.positions = positions
        self._model = model
        self._pool = pool
        self._block_tokens = block_tokens

    def states(self, features: Tensor) -> Tensor:
        return self._model.states(self._own(features))

    def forward(self, plan: DraftPlan, draft: Draft, states: Tensor | None) -> DraftOutput:
        parts = row_parts(plan, draft, self._block_tokens)
        layout = lay_out(parts, self._block_tokens, self._pool.keys.device)
        with attending(self._pool, layout, self._model.attention_heads) as attention:
            drafted = self._model.run(layout, None if states is None else self._own(states), attention)
        return DraftOutput(drafted.logits.float(), drafted.states)

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._pool.keys.device, self._pool.keys.dtype)


class EagerHeads:
    """Implements `HeadsNetwork`."""

    def __init__(self, model: HeadsModel[Tensor], dtype: torch.dtype, token_ids: Tensor | None) -> None:
        self.token_ids = token_ids
        self._dtype = dtype
        self._model = model

    def forward(self, features: Tensor) -> Tensor:
        return self._model.run(features.to(self._dtype)).float()
