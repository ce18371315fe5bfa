"""Whether kernels choose tokens here, and decide what PyTorch decides, pass by pass, over the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.nn.functional import one_hot

from plugins import eager, eager_verification
from scripts.gpu_check.checks import Check
from scripts.gpu_check.equality import SAMPLED
from scripts.gpu_check.passes import DEPTH, eager_runner, run_passes
from scripts.gpu_check.running import requests
from scripts.gpu_check.subject import Prompt, Subject
from trtspec.decoding.acceptance import exact, rejection
from trtspec.decoding.chooser import HOST, Chooser
from trtspec.decoding.draft import Draft
from trtspec.decoding.drawing import draw
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.proposer import BatchView, Needs
from trtspec.decoding.sampling import ChoiceRows
from trtspec.decoding.verify import Outcome
from trtspec.executors.embedded.choosers import Passes, why_not
from trtspec.executors.embedded.kernel_chooser import LAUNCHED, KernelChooser, Kernels
from trtspec.speculative import REJECTION
from trtspec.types import Request, SamplingParams

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


_TURNED = 0.01
"""So many rows may differ by rejection, whose probabilities kernels and PyTorch round differently."""
_LIKELIER = 3.0
"""By how much that token scores above all others, of which there are some hundreds."""


class BothWays:
    """Implements `Chooser` by two, and counts where they differ; the first one's word counts."""

    def __init__(self, first: Chooser, second: Chooser) -> None:
        self.rows = 0
        self.drawn = 0
        """Rows that were decided by rejection."""
        self.accepted = 0
        self.differing = 0
        self._first = first
        self._second = second

    def exact(self, rows: PassRows, editor: Editor) -> Outcome:
        return self._both(self._first.exact(rows, editor), self._second.exact(rows, editor))

    def rejection(self, rows: PassRows, editor: Editor) -> Outcome:
        self.drawn += len(rows.plan.rows)
        return self._both(self._first.rejection(rows, editor), self._second.rejection(rows, editor))

    def _both(self, expected: Outcome, found: Outcome) -> Outcome:
        same = [(a == b).view(len(expected.bonus), -1).all(dim=1) for a, b in zip(expected, found, strict=True)]
        self.rows += len(expected.bonus)
        self.accepted += int(expected.accepted.sum())
        self.differing += int((~torch.stack(same).all(dim=0)).sum())
        return expected


class Drawing:
    """Implements `Proposer`: draws each token from a law in which one of the prompt's is likelier than all others."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self.needs = Needs(max_nodes=DEPTH)
        self._vocabulary = vocabulary
        self._device = device

    def propose(self, view: BatchView) -> Draft:
        draft = Draft.chains([row.tokens[: min(row.max_depth, row.max_nodes, DEPTH)] for row in view.rows])
        row, node = (torch.arange(draft.width) < draft.counts.unsqueeze(1)).nonzero(as_tuple=True)
        rows = [view.rows[index] for index in row.tolist()]
        places = ChoiceRows(
            [item.request.sampling for item in rows],
            [item.request.seed for item in rows],
            [len(item.tokens) + step for item, step in zip(rows, node.tolist(), strict=True)],
            [item.choice for item in rows],
        )
        scores = _LIKELIER * one_hot(draft.tokens[row, node], self._vocabulary).float()
        drawn = draw(scores.to(self._device), places, None, self._vocabulary)
        tokens, probs = draft.tokens.clone(), drawn.probs.new_zeros(draft.rows, draft.width, self._vocabulary)
        tokens[row, node] = drawn.tokens.cpu()
        probs[row.to(self._device), node.to(self._device)] = drawn.probs
        certain = torch.tensor([item.request.sampling.greedy for item in view.rows])
        return replace(draft, tokens=tokens, probs=probs, certain=certain)


def choices(subject: Subject, prompts: Sequence[Prompt], tokens: int, device: torch.device) -> list[Check]:
    """Whether kernels run, on a GPU Triton's, on a CPU their twins; and if so, what they choose."""
    kernels = LAUNCHED if device.type == "cuda" else _TWINS
    passes = Passes(subject.size.dtype, subject.size.vocabulary, DEPTH, REJECTION)
    reason = why_not(device, passes, kernels)
    name = f"kernels that choose tokens run, {subject.dtype_name}"
    if reason is not None:
        return [Check(name, False, f"{reason}; so their choices are not compared with PyTorch's")]
    chooser = KernelChooser(kernels)
    return [
        Check(name, True, _named(device)),
        _exact(subject, prompts, tokens, device, chooser),
        _rejection(subject, prompts, tokens, device, chooser),
    ]


def _exact(subject: Subject, prompts: Sequence[Prompt], tokens: int, device: torch.device, chooser: Chooser) -> Check:
    """Rows of every kind of sampling, in passes with drafts."""
    both = BothWays(HOST, chooser)
    run_passes(subject, eager_runner(subject, device, None), _asked(prompts, tokens), partial(exact, chooser=both))
    detail = f"{both.differing} of {both.rows} rows differ, {both.accepted} drafted tokens accepted"
    passed = both.differing == 0 and both.accepted > 0
    return Check(f"{_named(device)} against PyTorch's choices, {subject.dtype_name}", passed, detail)


def _rejection(
    subject: Subject, prompts: Sequence[Prompt], tokens: int, device: torch.device, chooser: Chooser
) -> Check:
    """The same with chains that were drawn, by the papers' rule."""
    both = BothWays(HOST, chooser)
    run_passes(
        subject,
        eager_runner(subject, device, None),
        _asked(prompts, tokens),
        partial(rejection, chooser=both),
        Drawing(subject.size.vocabulary, device),
    )
    passed = both.differing <= _TURNED * both.drawn and both.accepted > 0 and both.drawn > 0
    detail = f"{both.differing} of {both.rows} rows differ, {both.drawn} of them drawn, {both.accepted} tokens accepted"
    return Check(f"{_named(device)} against PyTorch's rejection, {subject.dtype_name}", passed, detail)


def _asked(prompts: Sequence[Prompt], tokens: int) -> list[Request]:
    """Every prompt twice, of all kinds by turns."""
    return [
        replace(item, request_id=str(i), sampling=_KINDS[i % len(_KINDS)], seed=60 + i)
        for i, item in enumerate(requests([*prompts, *prompts], tokens, DEPTH))
    ]


def _named(device: torch.device) -> str:
    return "Triton's kernels" if device.type == "cuda" else "eager twins"
