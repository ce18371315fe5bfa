"""Which chooser an engine gets: kernels on a GPU where they run, PyTorch everywhere else. Says so in the log."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch

from trtspec.decoding.chooser import HOST, Chooser
from trtspec.executors.embedded.kernel_chooser import LAUNCHED, KernelChooser, Kernels
from trtspec.speculative import EXACT, REJECTION

_log = logging.getLogger(__name__)

_WIDTHS = (1, 2, 16)
"""Drafts of these widths take all that Triton compiles: one kernel for 1, one for multiples of 16, one for the rest."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What the passes of an engine bring to its chooser."""

    dtype: torch.dtype
    """Of logits."""
    vocabulary: int
    nodes: int = 0
    """Most nodes of a row's draft."""
    acceptance: str = EXACT

    @property
    def widths(self) -> list[int]:
        """Of drafts, one for each kernel that they take."""
        return [width for width in _WIDTHS if width <= self.nodes]


def choose_chooser(device: torch.device, passes: Passes, kernels: Kernels = LAUNCHED) -> Chooser:
    """The chooser for an engine with such passes, on that device."""
    if device.type == "cpu":
        return HOST
    _log.info("compiling kernels that choose tokens, for %s", device)
    reason = why_not(device, passes, kernels)
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


def why_not(device: torch.device, passes: Passes, kernels: Kernels = LAUNCHED) -> str | None:
    """What is wrong with the kernels there; None where they do what they must.

    What is tried is what such passes launch later on, so no request waits for a compiler.
    """
    try:
        for dtype in (passes.dtype, torch.float32):
            _try_choice(device, dtype, passes.vocabulary, kernels)
        for width in passes.widths:
            _try_walk(device, width, kernels)
            if passes.acceptance == REJECTION:
                _try_rejection(device, width, passes.vocabulary, kernels)
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


def _try_rejection(device: torch.device, width: int, vocabulary: int, kernels: Kernels) -> None:
    """A chain of zeros that both laws are sure of, and what follows, which the target is sure of too."""
    scores = torch.full((1, width + 1, vocabulary), -math.inf, device=device)
    scores[..., 0] = 0.0
    tokens = torch.zeros(1, width, dtype=torch.int32, device=device)
    row = torch.zeros(1, dtype=torch.int32, device=device)
    rest = (row + width, row, tokens.float(), row.long(), row, row)
    outcome = kernels.chain_rejection(scores, scores[:, :width].contiguous(), tokens, *rest, vocabulary)
    _compare("chain_rejection", torch.cat([outcome.accepted, outcome.token]), [width, 0])


def _compare(name: str, found: torch.Tensor, expected: list[int]) -> None:
    if found.tolist() != expected:
        raise ArithmeticError(f"{name} says {found.tolist()} where {expected} is right")
