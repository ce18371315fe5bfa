"""The compiled runner says what the reference runner says: pass by pass, through trees, chunks, copies and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from builders.build import main
from tests.models import tiny_model
from tests.scripted import ScriptedProposer, drive
from trtspec.decoding.draft import Draft
from trtspec.decoding.engine import Engine
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.plan import Runner, StepPlan, TargetOutput
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded import decoder_config
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.kernels.products import MOST_ROWS, fits
from trtspec.executors.embedded.openvino.few_rows import widths
from trtspec.executors.embedded.openvino.runner import OpenVinoRunner
from trtspec.executors.embedded.runners import RUNNERS, OpenVino, Shape
from trtspec.executors.embedded.weights import DecoderWeights, Weight, load_weights
from trtspec.types import Limits, Request

BLOCK_TOKENS = 32
TOKENS = 24
TOLERANCE = 2e-3
"""Of logits about 10, in float32: another order of summation moves them by some 1e-5."""
HALF = 0.1
"""Share of what is computed in bfloat16 that rounding may be."""
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "kv_heads": 1,
        "tie": False,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "MistralForCausalLM": {"head_dim": 24, "sliding_window": None, "tie": False},
    "Qwen2ForCausalLM": {"rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "Qwen3ForCausalLM": {"head_dim": 24, "rope_theta": 1e6, "tie": False},
}
Answers = dict[tuple[int, ...], Sequence[int]]
FORMS = {
    "float32": ("--dtype", "float32"),
    "bfloat16": ("--dtype", "bfloat16"),
    "int8": ("--dtype", "float32", "--quantization", "int8"),
}
CASES = [
    *((architecture, "float32") for architecture in MODELS),
    pytest.param("Qwen2ForCausalLM", "bfloat16", marks=pytest.mark.slow),
    pytest.param("Qwen2ForCausalLM", "int8", marks=pytest.mark.slow),
    ("LlamaForCausalLM", "int8"),
]
"""How weights are stored does not depend on the architecture; tied and untied heads differ."""


Near = Callable[[Tensor, Tensor], None]


def equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def alike(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).norm() <= HALF * expected.norm()


class Twins:
    """Runs every pass on two runners and compares what they say; the first one's word counts."""

    def __init__(self, reference: Runner, compiled: Runner, near: Near) -> None:
        self.reference = reference
        self.compiled = compiled
        self.near = near
        self.compared = 0
        self.copies = 0
        self.trees = 0
        self.few = self.many = 0
        """Passes that kernels run, and those that the graph runs."""

    def forward(self, plan: StepPlan, draft: Draft) -> TargetOutput:
        expected, found = self.reference.forward(plan, draft), self.compiled.forward(plan, draft)
        assert expected.features is not None and found.features is not None
        self.near(found.logits, expected.logits)
        self.near(found.features, expected.features)
        self.compared += len(expected.logits)
        rows = sum(row.fed for row in plan.rows) + int(draft.counts.sum())
        self.few += rows <= MOST_ROWS
        self.many += rows > MOST_ROWS
        self.copies += len(plan.copies)
        self.trees += sum(parents.count(-1) > 1 for parents in _parents(draft))
        return expected


def _parents(draft: Draft) -> list[list[int]]:
    counts = draft.counts.tolist()
    return [row[:count] for row, count in zip(draft.parents.tolist(), counts, strict=True)]


def twins(root: Path, architecture: str, form: str) -> tuple[Twins, int]:
    """Both runners over the same stored weights; the reference widens them to float32."""
    spread = {} if architecture == "LlamaForCausalLM" else {"spread": 0.5}
    folder = tiny_model(root / "model", architecture, seed=6, **spread, **MODELS[architecture])
    engine = root / "engine"
    assert main(["--method", "none", "--target", str(folder), "--output", str(engine), *FORMS[form]]) == 0
    shape, weights = opened(engine, torch.float32)
    made = [RUNNERS[name].create(shape, weights).runner for name in ("eager", "openvino")]
    return Twins(*made, equal), shape.vocabulary_size


def opened(engine: Path, dtype: torch.dtype) -> tuple[Shape, DecoderWeights[Weight]]:
    """What runners are created from."""
    config = DecoderConfig.from_json(engine / decoder_config.NAME)
    assert fits(*widths(config))
    shape = Shape(
        config=config,
        dtype=dtype,
        device=torch.device("cpu"),
        positions=256,
        vocabulary_size=260,  # fewer than the embedding has rows
        block_tokens=BLOCK_TOKENS,
        blocks=64,
        threads=1,
        features=(1, 2, LAST_HIDDEN),
    )
    return shape, load_weights(engine, config)


def forked(texts: dict[tuple[int, ...], Sequence[int]]) -> ScriptedProposer:
    """Trees around a known continuation: its tokens are second siblings, so that accepted nodes lie scattered."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        prompt = next(prompt for prompt in texts if tuple(tokens[: len(prompt)]) == prompt)
        coming = list(texts[prompt])[len(tokens) - len(prompt) :][: min(limit, 3)]
        nodes: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in coming:
            nodes += [(token + 1) % 260, token]
            parents += [parent, parent]
            parent = len(nodes) - 1
        return nodes, parents

    return ScriptedProposer(draw, 6)


@pytest.mark.parametrize(("architecture", "form"), CASES)
def test_every_pass_agrees_with_the_reference(tmp_path: Path, architecture: str, form: str) -> None:
    runner, vocabulary = twins(tmp_path, architecture, form)
    plain, drafted = compare(runner, vocabulary)
    assert drafted == plain


def test_kernels_and_graphs_of_a_bfloat16_engine_read_the_same_cache(tmp_path: Path) -> None:
    """In bfloat16 where the CPU multiplies it, so that they are as near as its rounding lets them."""
    folder, engine = tiny_model(tmp_path / "model", "Qwen2ForCausalLM", seed=6, spread=0.5), tmp_path / "engine"
    assert main(["--method", "none", "--target", str(folder), "--output", str(engine), *FORMS["bfloat16"]]) == 0
    shape, weights = opened(engine, torch.bfloat16)
    graphs, both = (OpenVino().create(shape, weights).runner for _ in range(2))
    assert isinstance(graphs, OpenVinoRunner)
    graphs._layers._few = None
    compare(Twins(graphs, both, alike), shape.vocabulary_size)


def compare(runner: Twins, vocabulary: int) -> tuple[Answers, Answers]:
    """Prompts of many lengths, in chunks and batches: what comes of them plainly, and with drafts that are accepted."""
    values = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(3, 260, (length,), generator=values).tolist()) for length in (1, 31, 32, 33, 100)]
    requests = [Request(str(i), prompt, TOKENS) for i, prompt in enumerate(prompts)]

    def run(proposer: ScriptedProposer, depth: int) -> Answers:
        limits = Limits(256, 4, 8, 8, 48, 64 * BLOCK_TOKENS, vocabulary)
        engine = Engine(runner, proposer, KVCache(64, BLOCK_TOKENS), limits)
        asked = [Request(r.request_id, r.prompt, TOKENS, max_draft_tokens=depth) for r in requests]
        results = drive(engine, asked, join_every=2)
        return {prompt: results[str(i)].ids for i, prompt in enumerate(prompts)}

    plain = run(ScriptedProposer(lambda tokens, limit: ([], [])), 0)
    assert runner.copies == runner.trees == 0
    drafted = run(forked(plain), 8)
    assert runner.few > 20 and runner.many > 10
    assert runner.compared > 2 * 5 * TOKENS and runner.copies > 20 and runner.trees > 20
    return plain, drafted
