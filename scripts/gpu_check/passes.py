"""Whether a recorded pass says what the pass says as it is, pass by pass, over the same work."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scripts.gpu_check.checks import Check
from scripts.gpu_check.equality import MARGIN_STEPS
from scripts.gpu_check.running import BATCH, requests
from scripts.gpu_check.subject import MAX_POSITIONS, Prompt, Subject
from trtspec.decoding.acceptance import Acceptance, exact
from trtspec.decoding.draft import Draft
from trtspec.decoding.engine import Engine
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.plan import Pass, Runner, TargetOutput
from trtspec.decoding.proposer import Proposer
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.executors.embedded.cache import CachePool
from trtspec.executors.embedded.decoder_config import NAME, DecoderConfig
from trtspec.executors.embedded.graphs import CudaGraphs
from trtspec.executors.embedded.model import eager_decoder
from trtspec.executors.embedded.padded import Recorder, Replay
from trtspec.executors.embedded.runner import EagerRunner
from trtspec.executors.embedded.weights import dense, load_weights
from trtspec.types import Limits, Request

BLOCK_TOKENS = 16
BLOCKS = 512
DEPTH = 8
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: MARGIN_STEPS * 2.0**-7}
"""Of the largest logit. Padded products are other products, which sum in another order."""


def repeat(run: Replay) -> Replay:
    """The recorder for where there is no GPU: the padded pass is run again each time."""
    return run


class Counted:
    """A recorder that counts what it recorded and how often that was replayed."""

    def __init__(self, record: Recorder) -> None:
        self.recorded = 0
        self.replayed = 0
        self._record = record

    def __call__(self, run: Replay) -> Replay:
        recorded = self._record(run)
        self.recorded += 1

        def replay() -> TargetOutput:
            self.replayed += 1
            return recorded()

        return replay


class Twins:
    """Runs every pass on two runners and keeps their largest difference; the first one's word counts."""

    def __init__(self, first: Runner, second: Runner) -> None:
        self.passes = 0
        self.difference = 0.0
        self._first = first
        self._second = second

    def forward(self, plan: Pass, draft: Draft) -> TargetOutput:
        expected, found = (
            self._first.forward(plan, draft).logits.float(),
            self._second.forward(plan, draft).logits.float(),
        )
        self.passes += 1
        if len(expected):
            relative = (expected - found).abs().max() / expected.abs().max()
            self.difference = max(self.difference, relative.item())
        return TargetOutput(expected)


def recorded_passes(subject: Subject, prompts: Sequence[Prompt], tokens: int, device: torch.device) -> Check:
    """All prompts, with drafts, several at a time, each pass once recorded and once as it is."""
    counted = Counted(CudaGraphs() if device.type == "cuda" else repeat)
    twins = Twins(eager_runner(subject, device, None), eager_runner(subject, device, counted))
    run_passes(subject, twins, requests(prompts, tokens, DEPTH))
    what = "CUDA graphs" if device.type == "cuda" else "padded passes"
    passed = twins.difference <= TOLERANCES[subject.size.dtype] and counted.replayed > 0
    detail = (
        f"{counted.replayed} of {twins.passes} passes from {counted.recorded} recordings; "
        f"logits differ by {twins.difference:.1e} of the largest at most"
    )
    return Check(f"{what} against passes as they are, {subject.dtype_name}", passed, detail)


def run_passes(
    subject: Subject,
    runner: Runner,
    asked: Sequence[Request],
    acceptance: Acceptance = exact,
    proposer: Proposer | None = None,
) -> None:
    """All requests to their end, drafted by lookup unless otherwise, several at a time."""
    size = BLOCKS * BLOCK_TOKENS
    limits = Limits(MAX_POSITIONS, BATCH, DEPTH, DEPTH, 256, size, subject.size.vocabulary)
    engine = Engine(runner, proposer or NgramProposer(DEPTH, 1, 4), KVCache(BLOCKS, BLOCK_TOKENS), limits, acceptance)
    for request in asked:
        engine.submit(request)
    while not engine.idle:
        begun = engine.begin(0.0)
        if begun.plan is not None:
            engine.finish(begun.plan)


def eager_runner(subject: Subject, device: torch.device, record: Recorder | None) -> EagerRunner:
    """A runner of the subject's engine, with memory of its own."""
    config, dtype = DecoderConfig.from_json(subject.engine / NAME), subject.size.dtype
    model = eager_decoder(config, dense(load_weights(subject.engine, config), dtype, device), MAX_POSITIONS)
    pool = CachePool(config, BLOCKS * BLOCK_TOKENS, dtype, device)
    return EagerRunner(model, pool, BLOCK_TOKENS, subject.size.vocabulary, record)
