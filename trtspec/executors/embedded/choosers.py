"""Which chooser an engine gets: kernels on a GPU where they run, PyTorch everywhere else. Says so in the log."""

from __future__ import annotations

import logging
import math

import torch

from trtspec.decoding.chooser import HOST, Chooser
from trtspec.executors.embedded.kernel_chooser import LAUNCHED, KernelChooser, Kernels

_log = logging.getLogger(__name__)

_WIDTHS = (1, 2, 16)
"""Drafts of these widths take all kernels of the walk: Triton has one for 1, for multiples of 16, and for the rest."""


def choose_chooser(device: torch.device, dtype: torch.dtype, vocabulary: int, kernels: Kernels = LAUNCHED) -> Chooser:
    """The chooser for an engine whose logits are of that type, on that device."""
    if device.type == "cpu":
        return HOST
    reason = why_not(device, dtype, vocabulary, kernels)
    if reason is None:
        _log.info("Triton's kernels choose tokens on %s", device)
        return KernelChooser(kernels)
    _log.warning(
        "PyTorch chooses tokens on %s and waits at each level of sampled drafts; Triton's kernels do not run (%s): "
        "pip install 'trtspec[plugins]' brings Triton, which needs a C compiler beside it",
        device,
        reason,
    )
    return HOST


def why_not(device: torch.device, dtype: torch.dtype, vocabulary: int, kernels: Kernels = LAUNCHED) -> str | None:
    """What is wrong with the kernels there; None where they do what they must.

    What is tried is what passes launch later on, so no request waits for a compiler.
    """
    try:
        for logits_dtype in (dtype, torch.float32):
            _try_choice(device, logits_dtype, vocabulary, kernels)
        for width in _WIDTHS:
            _try_walk(device, width, kernels)
        _try_rejection(device, vocabulary, kernels)
    except Exception as error:  # of Triton, its compiler or its driver: none of them is needed
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    return None


def _try_choice(device: torch.device, dtype: torch.dtype, vocabulary: int, kernels: Kernels) -> None:
    logits = torch.zeros(2, vocabulary, dtype=dtype, device=device)
    logits[0, -1] = 1.0
    numbers = torch.zeros(2, dtype=torch.int32, device=device)
    chosen = kernels.choose_token(logits, numbers.long(), numbers, numbers, numbers, numbers - 1, vocabulary)
    _compare("choose_token", chosen.ids, [vocabulary - 1, 0])


def _try_walk(device: torch.device, width: int, kernels: Kernels) -> None:
    """Down a chain of zeros that the target agrees with to its end."""
    tokens = torch.zeros(1, width, dtype=torch.int32, device=device)
    parents = torch.arange(-1, width - 1, dtype=torch.int32, device=device).unsqueeze(0)
    ids = torch.zeros(1, width + 1, dtype=torch.int32, device=device)
    counts = torch.full((1,), width, dtype=torch.int32, device=device)
    _compare("walk_tree", kernels.walk_tree(ids, tokens, parents, counts).accepted, [width])


def _try_rejection(device: torch.device, vocabulary: int, kernels: Kernels) -> None:
    """Two nodes that both laws are sure of, and what follows, which the target is sure of too."""
    scores = torch.full((1, 3, vocabulary), -math.inf, device=device)
    scores[..., 0] = 0.0
    pair, one = (torch.zeros(1, width, dtype=torch.int32, device=device) for width in (2, 1))
    row = one.flatten()
    rest = (row + 2, row, pair.float(), row.long(), row, row)
    outcome = kernels.chain_rejection(scores, scores[:, :2].contiguous(), pair, *rest, vocabulary)
    _compare("chain_rejection", torch.cat([outcome.accepted, outcome.token]), [2, 0])


def _compare(name: str, found: torch.Tensor, expected: list[int]) -> None:
    if found.tolist() != expected:
        raise ArithmeticError(f"{name} says {found.tolist()} where {expected} is right")
