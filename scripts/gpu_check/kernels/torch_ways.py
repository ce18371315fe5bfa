"""The same work in plain PyTorch, as a server without kernels does it: probabilities or their logs in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from plugins.sampling_specs import MOST


def choose(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best token of each row, its log-probability, and that of another."""
    logprobs = logits.log_softmax(dim=1, dtype=torch.float32)
    ids = logprobs.argmax(dim=1, keepdim=True)
    return ids, logprobs.gather(1, ids), logprobs.gather(1, wanted)


def sample(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A token of each row's law."""
    logprobs = logits.log_softmax(dim=1, dtype=torch.float32)
    ids = (logprobs.exp() / torch.empty_like(logprobs).exponential_()).argmax(dim=1, keepdim=True)
    return ids, logprobs.gather(1, ids), logprobs.gather(1, wanted)


def best(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best logits of each row, their ids, and the normaliser."""
    found = logits.topk(min(MOST, logits.shape[1]), dim=1)
    return found.values.float(), found.indices, logits.float().logsumexp(dim=1)


def reject(target: Tensor, draft: Tensor, tokens: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """How many nodes of each chain stay, and a token after them."""
    p, q = (scores.softmax(dim=2, dtype=torch.float32) for scores in (target, draft))
    nodes, at = tokens.shape[1], tokens.unsqueeze(2)
    stays = uniforms * q.gather(2, at).squeeze(2) < p[:, :nodes].gather(2, at).squeeze(2)
    accepted = stays.long().cumprod(dim=1).sum(dim=1)
    rows = torch.arange(len(p), device=p.device)
    behind = q[rows, accepted.clamp(max=nodes - 1)] * (accepted < nodes).unsqueeze(1)
    left = (p[rows, accepted] - behind).clamp(min=0)
    return accepted, (left / torch.empty_like(left).exponential_()).argmax(dim=1)
