"""Whether what rejection sampling emits has the target's law, by a chi-square test over many draws."""

from __future__ import annotations

import torch
from torch import Tensor

from plugins.eager_verification import law
from scripts.gpu_check.checks import Check
from scripts.gpu_check.kernels.chains import drawn_chains

FALSE_ALARM = 1e-6
"""How often a right kernel would fail, at each place."""
_SCORES = torch.tensor([[1.0, 0.4, 0.0, -0.3, -1.0, -torch.inf, 0.7], [0.0, 1.2, 0.3, 0.3, -torch.inf, -0.6, -0.2]])
"""After the root, and after the node."""
_DRAFT = torch.tensor([[0.0, 1.0, 0.6, -1.0, 0.5, 0.2, -torch.inf]])
"""Of another mind than the target, and with a token that the target never says."""


def keeps_the_law(rows: int, device: torch.device, certain: bool) -> Check:
    """The tokens of the first place, and of the second where the first node stayed."""
    chains = drawn_chains(_SCORES, _DRAFT, rows, certain)
    accepted, token = (item.cpu() for item in chains.on(device).launched())
    stayed = accepted > 0
    places = (torch.where(stayed, chains.tokens[:, 0], token), token[stayed])
    chances = [chance(emitted, wanted) for emitted, wanted in zip(places, law(_SCORES), strict=True)]
    name = f"chain_rejection keeps the target's law, drafts {'certain' if certain else 'sampled'}"
    told = " and ".join(f"{value:.2g}" for value in chances)
    detail = f"{rows} chains, {int(stayed.sum())} nodes accepted; chance of such counts or worse {told}"
    return Check(name, min(chances) > FALSE_ALARM, detail)


def chance(tokens: Tensor, wanted: Tensor) -> float:
    """That draws of a law would fit it no better: the upper tail of the chi-square law, 0 for what cannot be drawn."""
    if bool((tokens < 0).any()):
        return 0.0
    counts = torch.bincount(tokens.long(), minlength=len(wanted)).double()
    there = wanted > 0
    if len(counts) > len(wanted) or bool((counts[~there] > 0).any()):
        return 0.0
    expected = wanted[there] * counts.sum()
    statistic = ((counts[there] - expected) ** 2 / expected).sum()
    freedom = torch.tensor((int(there.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))
