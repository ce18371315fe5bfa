"""The additional output `TopLogits` of plain engines: the best logits of every row, computed by `transformers`.

A row holds the best logits, best first, their ids as floats, and the log of the sum of all exponentials. It belongs to
the token that it was computed for, and so says what comes after it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NAME = "TopLogits"
_MOST = 128


@functools.cache
def _model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def _logits(path: Path, tokens: Sequence[int]) -> Tensor:
    """What the model says after each token of a text, [T, V]."""
    logits: Tensor = _model(path)(torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    return logits


def logits_after(path: Path, tokens: Sequence[int]) -> Tensor:
    """What it says after the last one, [V]."""
    return _logits(path, tokens)[-1]


def rows_of(path: Path, tokens: Sequence[int]) -> Tensor:
    """A row for each token of a text."""
    logits = _logits(path, tokens)
    values, ids = logits.topk(min(_MOST, logits.shape[-1]), dim=-1)
    return torch.cat([values, ids.float(), logits.logsumexp(-1, keepdim=True)], dim=-1)


def context_rows(rows: Tensor, prompt: int, reused: int, *, whole: bool) -> Tensor:
    """Rows of the prompt's tokens that were computed; `whole` leaves room for the others, unfilled."""
    if not whole:
        return rows[reused:prompt].clone()
    filled = torch.full((prompt, rows.shape[1]), torch.nan)
    filled[reused:] = rows[reused:prompt]
    return filled


def generation_rows(rows: Tensor, prompt: int, generated: int, room: int) -> Tensor:
    """For each generated token the row that it was chosen from, with room for as many as may come: [1, room, row]."""
    filled = torch.full((1, room, rows.shape[1]), torch.nan)
    filled[0, :generated] = rows[prompt - 1 : prompt - 1 + generated]
    return filled
