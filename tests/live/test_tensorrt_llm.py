"""Compiled engines from builder to client, with the strict double in TensorRT-LLM's place.

The double runs our embedded engine behind TensorRT-LLM's interface, from the files that the builder gave it, so that
text and acceptance must be those of an embedded engine of the same target, drafter and tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.build import main
from scripts.gpu_check.drafters import seen_texts, write_eagle, write_medusa
from tests.fakes.installed import need_plugins, tensorrt_llm_double
from tests.live.pairs import PROMPTS, Pair, check_equal, quieten, served
from tests.models import tiny_llama, tiny_tokenizer

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
CONFIGS = {
    "none": {"method": "none"},
    "medusa": {"method": "medusa", "num_speculative_tokens": 3, "tree": TREE},
    "eagle": {"method": "eagle", "num_speculative_tokens": 3, "tree": TREE},
    "lookahead": {"method": "lookahead"},
    "ngram": {"method": "ngram", "num_speculative_tokens": 4},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 3},
    "external": {"method": "ngram", "num_speculative_tokens": 4, "acceptance": "engine"},
}
OURS = ("ngram", "draft_model")
"""What our own loop verifies, over a network with plugins."""
ROUNDS = (*OURS, "external")
"""What drafts outside of the engine."""
LIKE_OTHERS = ("none", "medusa", "eagle", "lookahead", "draft_model", "external")
HALF = ("eagle", *ROUNDS)
"""Their kernels are for half precision."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose text comes back to where it was, and drafters for it."""
    root = tmp_path_factory.mktemp("tensorrt_llm")
    quieten(tiny_llama(root / "target", seed=5, max_positions=512))
    tokenizer = tiny_tokenizer()
    seen = seen_texts(root / "target", [tokenizer(prompt).input_ids for prompt in PROMPTS])
    write_medusa(root / "medusa", root / "target", seen, heads=3)
    write_eagle(root / "eagle", root / "target", seen)
    (root / "draft_model").symlink_to(root / "target", target_is_directory=True)
    return root


def build(root: Path, name: str, backend: str, *flags: str) -> Path:
    output, method = root / f"{name}-{backend}", CONFIGS[name]["method"]
    argv = ["--method", method, "--target", str(root / "target"), "--output", str(output), "--backend", backend]
    if (root / method).is_dir():
        argv += ["--draft", str(root / method), *(["--allow-unverified-target"] if method != "draft_model" else [])]
    if backend == "tensorrt_llm" and name in OURS:
        need_plugins()
    assert main([*argv, *flags]) == 0
    return output


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name in LIKE_OTHERS else name for name in CONFIGS],
)
def pair(request: pytest.FixtureRequest, root: Path) -> Iterator[Pair]:
    method = request.param
    config = ["--speculative-config", json.dumps(CONFIGS[method])]
    dtype = [] if method in HALF else ["--dtype", "float32"]
    compiled = build(root, method, "tensorrt_llm", *config, *dtype, "--timing-cache", str(root / "timings"))
    same, config = SAME.get(method, (method, config))
    embedded = build(root, same, "embedded", *config, "--runner", "eager", "--dtype", "float32")
    with served(method, compiled, embedded, root) as pair:
        yield pair


SAME = {
    "lookahead": ("ngram", ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}']),
    "external": ("ngram", ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}']),
}
"""What our own engine does in place of what it lacks."""


async def test_text_and_acceptance_are_those_of_the_embedded_engine(pair: Pair) -> None:
    """TensorRT-LLM drafts all of a tree to the last, and rounds are as deep as drafts have been of use."""
    await check_equal(pair, ("emitted",) if pair.method in ROUNDS else ("decode_passes", "emitted", "accepted"))
