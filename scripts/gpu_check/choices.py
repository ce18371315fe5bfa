"""Whether kernels choose tokens here, and decide what PyTorch decides, pass by pass, over the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from plugins import eager, eager_verification
from scripts.gpu_check.checks import Check
from scripts.gpu_check.equality import SAMPLED
from scripts.gpu_check.passes import DEPTH, eager_runner, run_passes
from scripts.gpu_check.running import requests
from scripts.gpu_check.subject import Prompt, Subject
from trtspec.decoding.acceptance import exact
from trtspec.decoding.chooser import HOST, Chooser
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.verify import Outcome
from trtspec.executors.embedded.choosers import why_not
from trtspec.executors.embedded.kernel_chooser import LAUNCHED, KernelChooser, Kernels
from trtspec.types import SamplingParams

_TWINS = Kernels(eager.choose_token, eager_verification.walk_tree, eager_verification.chain_rejection)
_KINDS = (
    SamplingParams(),
    SamplingParams(1.0),
    SamplingParams(0.7, top_k=20, min_p=0.02),
    SAMPLED,
    SamplingParams(0.9, presence_penalty=0.5),
    SamplingParams(repetition_penalty=1.2),
)
"""By turns, so that rows of every kind meet in a pass."""


class BothWays:
    """Implements `Chooser` by two, and counts where they differ; the first one's word counts."""

    def __init__(self, first: Chooser, second: Chooser) -> None:
        self.rows = 0
        self.accepted = 0
        self.differing = 0
        self._first = first
        self._second = second

    def exact(self, rows: PassRows, editor: Editor) -> Outcome:
        return self._both(self._first.exact(rows, editor), self._second.exact(rows, editor))

    def rejection(self, rows: PassRows, editor: Editor) -> Outcome:
        return self._both(self._first.rejection(rows, editor), self._second.rejection(rows, editor))

    def _both(self, expected: Outcome, found: Outcome) -> Outcome:
        same = [(a == b).view(len(expected.bonus), -1).all(dim=1) for a, b in zip(expected, found, strict=True)]
        self.rows += len(expected.bonus)
        self.accepted += int(expected.accepted.sum())
        self.differing += int((~torch.stack(same).all(dim=0)).sum())
        return expected


def kernels_run(subject: Subject, device: torch.device) -> Check:
    """On a GPU, Triton's; a CPU has their twins."""
    kernels = LAUNCHED if device.type == "cuda" else _TWINS
    reason = why_not(device, subject.size.dtype, subject.size.vocabulary, kernels)
    return Check("kernels that choose tokens run", reason is None, reason or _named(device))


def choices_agree(subject: Subject, prompts: Sequence[Prompt], tokens: int, device: torch.device) -> Check:
    """Rows of every kind of sampling, in passes with drafts."""
    kernels = LAUNCHED if device.type == "cuda" else _TWINS
    both = BothWays(HOST, KernelChooser(kernels))
    asked = [
        replace(item, sampling=_KINDS[i % len(_KINDS)], seed=60 + i)
        for i, item in enumerate(requests([*prompts, *prompts], tokens, DEPTH))
    ]
    run_passes(
        subject,
        eager_runner(subject, device, None),
        [replace(item, request_id=str(i)) for i, item in enumerate(asked)],
        partial(exact, chooser=both),
    )
    detail = f"{both.differing} of {both.rows} rows differ, {both.accepted} drafted tokens accepted"
    passed = both.differing == 0 and both.accepted > 0
    return Check(f"{_named(device)} against PyTorch's choices, {subject.dtype_name}", passed, detail)


def _named(device: torch.device) -> str:
    return "Triton's kernels" if device.type == "cuda" else "eager twins"
