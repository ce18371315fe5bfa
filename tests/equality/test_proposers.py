"""Every method leaves the text alone (float32): that of an independent engine, and with a seed that of plain decoding.

The drafters are random, but for a draft model that is the target itself: what is guessed must not matter.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders.build import main
from builders.drafts import native
from builders.drafts.card import Card
from tests import drafter_files
from tests.engines import collect, staggered
from tests.equality.conftest import Subject
from tests.models import tiny_llama
from trtspec.config import EngineOptions
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors import open_executor
from trtspec.executors.embedded import decoder_config
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FEATURES, FUSED_FEATURES, HEADS, DrafterConfig
from trtspec.types import Method, Request, SamplingParams

TOKENS = 64
TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [2]]
DYNAMIC = {"num_speculative_tokens": 4, "dynamic_tree": True, "max_tree_nodes": 9, "tree_width": 3}
SHAPES = {
    "draft_model": {"num_speculative_tokens": 4},
    "medusa": {"num_speculative_tokens": 3, "tree": TREE},
    "eagle": {"num_speculative_tokens": 3, "tree": TREE},
    "eagle3": DYNAMIC,
    "mtp": {"num_speculative_tokens": 4, "ngram_first": 2},
}
METHODS = list(SHAPES)
SETTINGS = (
    SamplingParams(),
    SamplingParams(0.8, top_p=0.95),
    SamplingParams(1.0, top_k=20, repetition_penalty=1.2),
    SamplingParams(1.2, min_p=0.02, frequency_penalty=0.3),
    SamplingParams(repetition_penalty=1.1, logit_bias=((7, 2.0),)),
)


def drafter(method: str, target: DecoderConfig) -> DrafterConfig:
    """A small drafter of each kind for a target; vocabularies whole and reduced."""
    one = replace(target, num_layers=1, tie_word_embeddings=True)
    shared = DrafterConfig(
        kind=FEATURES,
        decoder=one,
        features=(LAST_HIDDEN,),
        vocabulary_size=260,
        own_embedding=False,
        own_head=False,
    )
    return {
        "medusa": replace(shared, kind=HEADS, decoder=None, modules=3),
        "eagle": replace(shared, first_input_norm=False, final_norm=False, vocabulary_size=100),
        "eagle3": replace(
            shared, kind=FUSED_FEATURES, features=(0, 1, LAST_HIDDEN), own_head=True, vocabulary_size=120
        ),
        "mtp": replace(shared, modules=2, normalised_inputs=True, normalised_states=True),
    }[method]


def draft_folder(root: Path, method: str, model: Path) -> Path:
    """What `--draft` names: for a draft model the target itself."""
    if method == "draft_model":
        return model
    plain = root / "plain"
    assert main(["--method", "none", "--dtype", "float32", "--target", str(model), "--output", str(plain)]) == 0
    target = DecoderConfig.from_json(plain / decoder_config.NAME)
    config = drafter(method, target)
    tensors = drafter_files.drafter_tensors(config, target, torch.Generator().manual_seed(2))
    native.write(root / "draft", config, tensors, Card(Method(method)))
    return root / "draft"


def make_subject(root: Path, method: str, runner: str) -> Subject:
    model = tiny_llama(root / "model", seed=4)
    directory = root / "engine"
    argv = ["--method", method, "--target", str(model), "--draft", str(draft_folder(root, method, model))]
    argv += ["--dtype", "float32", "--runner", runner, "--output", str(directory), "--allow-unverified-target"]
    assert main([*argv, "--speculative-config", json.dumps({"method": method, **SHAPES[method]})]) == 0
    values = torch.Generator().manual_seed(11)
    lengths = [1, 2, 3, 8, 15, 16, 17, 31, 33, 64, 65, 100, 5, 7, 40, 90]
    prompts = [tuple(torch.randint(3, 260, (length,), generator=values).tolist()) for length in lengths]
    eos = frozenset(json.loads((directory / "generation.json").read_text())["eos_token_ids"])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    return Subject(directory, prompts, eos, reference, threads=1)


def subjects() -> list[object]:
    """Every method on the reference runner, and two on the compiled one. By default compiled ones stand for some."""
    eager = [
        pytest.param((method, "eager"), id=f"{method} eager", marks=[pytest.mark.slow] if "eagle" in method else [])
        for method in METHODS
    ]
    return [*eager, *(pytest.param((name, "openvino"), id=f"{name} openvino") for name in ("eagle3", "mtp"))]


@pytest.fixture(scope="module", params=subjects())
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    method, runner = request.param
    return make_subject(tmp_path_factory.mktemp(method), method, runner)


async def test_greedy_text_is_that_of_transformers(subject: Subject) -> None:
    """All prompts at once, each joining while others run; one alone."""
    expected = subject.references(TOKENS)
    executor = await open_executor(subject.directory, EngineOptions(kv_cache_mib=64, threads=1), in_process=True)
    depth = executor.info().limits.max_draft_tokens
    asked = [
        Request(str(i), prompt, TOKENS, eos_ids=subject.eos_ids, max_draft_tokens=depth)
        for i, prompt in enumerate(subject.prompts)
    ]
    try:
        together = await staggered(executor, asked)
        alone = await collect(executor, replace(asked[9], request_id="alone"))
    finally:
        await executor.aclose()
    assert [result.ids for result in together] == expected and alone.ids == expected[9]
    assert sum(result.stats.accepted for result in together) > 0
    if subject.directory.parent.name.startswith("draft_model"):
        assert alone.stats.acceptance_rate == 1.0


def mixed(subject: Subject, depth: int) -> list[Request]:
    """Sixteen requests whose settings all differ: sampling, seed, length, depth, and some that must not draft."""
    common = subject.prompts[11][:70]
    return [
        Request(
            str(i),
            prompt=(prompt, (prompt * 190)[:190], (prompt * 180)[:180], (*common, *prompt))[i % 4],
            max_tokens=40 - i,
            sampling=SETTINGS[i % len(SETTINGS)],
            seed=40 + i,
            eos_ids=subject.eos_ids,
            max_draft_tokens=(depth, 0, depth, 1)[i % 4] if depth else 0,
        )
        for i, prompt in enumerate(subject.prompts)
    ]


async def texts(subject: Subject, **options: object) -> tuple[list[list[int]], int, int]:
    """Ids of each request, how many drafted tokens were accepted, and how often a sequence was preempted."""
    settings = EngineOptions(threads=1, **{"kv_cache_mib": 64, **options})  # type: ignore[arg-type]
    executor = await open_executor(subject.directory, settings, in_process=True)
    asked = mixed(subject, executor.info().limits.max_draft_tokens)
    try:
        results = await asyncio.gather(*(collect(executor, request) for request in asked))
        stats = await executor.stats()
    finally:
        await executor.aclose()
    assert stats.free_blocks == stats.total_blocks
    return [result.ids for result in results], sum(result.stats.accepted for result in results), stats.preemptions


async def test_a_mixed_batch_says_what_plain_decoding_says(subject: Subject) -> None:
    """With prefixes that are found, prompts in chunks, and so little memory that sequences are computed again."""
    expected, _, _ = await texts(subject, speculative={"method": "none"})
    for options in ({"max_pass_tokens": 48}, {"kv_cache_mib": 1}):
        found, accepted, preemptions = await texts(subject, **options)
        assert found == expected and accepted > 0
        assert bool(preemptions) == ("kv_cache_mib" in options)
