"""Compiled engines from builder to client, with the strict double in TensorRT-LLM's place.

The double runs our embedded engine behind TensorRT-LLM's interface, from the files that the builder gave it, so that
text and acceptance must be those of an embedded engine of the same target, drafter and tree.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from builders.build import main
from scripts.gpu_check.drafters import seen_texts, write_eagle, write_medusa
from tests.fakes.installed import tensorrt_llm_double
from tests.live.conftest import ATTENTION_SHARE
from tests.live.servers import LiveServer
from tests.models import tiny_llama, tiny_tokenizer
from trtspec.client import Client, Completion

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
CONFIGS = {
    "none": {"method": "none"},
    "medusa": {"method": "medusa", "num_speculative_tokens": 3, "tree": TREE},
    "eagle": {"method": "eagle", "num_speculative_tokens": 3, "tree": TREE},
    "lookahead": {"method": "lookahead"},
}
PROMPTS = ("the answer is the answer", "one two three one two three one two")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose text comes back to where it was, and drafters for it."""
    root = tmp_path_factory.mktemp("tensorrt_llm")
    weights = tiny_llama(root / "target", seed=5, max_positions=512) / "model.safetensors"
    tensors = load_file(weights)
    quiet = {name: tensor * ATTENTION_SHARE for name, tensor in tensors.items() if name.endswith("o_proj.weight")}
    save_file(tensors | quiet, weights, metadata={"format": "pt"})
    tokenizer = tiny_tokenizer()
    seen = seen_texts(root / "target", [tokenizer(prompt).input_ids for prompt in PROMPTS])
    write_medusa(root / "medusa", root / "target", seen, heads=3)
    write_eagle(root / "eagle", root / "target", seen)
    return root


def build(root: Path, method: str, backend: str, *flags: str) -> Path:
    output = root / f"{method}-{backend}"
    argv = ["--method", method, "--target", str(root / "target"), "--output", str(output), "--backend", backend]
    if (root / method).is_dir():
        argv += ["--draft", str(root / method), "--allow-unverified-target"]
    assert main([*argv, *flags]) == 0
    return output


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@dataclass(frozen=True)
class Pair:
    """The same method on both backends."""

    method: str
    compiled: LiveServer
    embedded: LiveServer


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request: pytest.FixtureRequest, root: Path) -> Iterator[Pair]:
    """Both must end without a word on standard error."""
    method = request.param
    config = ["--speculative-config", json.dumps(CONFIGS[method])]
    dtype = [] if method == "eagle" else ["--dtype", "float32"]  # its kernels are for half precision
    compiled = build(root, method, "tensorrt_llm", *config, *dtype, "--timing-cache", str(root / "timings"))
    same, config = SAME.get(method, (method, config))
    embedded = build(root, same, "embedded", *config, "--runner", "eager", "--dtype", "float32")
    servers = [
        LiveServer(compiled, root / f"{method}.log"),
        LiveServer(embedded, root / "embedded.log", "--threads", "1"),
    ]
    try:
        yield Pair(method, *servers)
        for server in servers:
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert server.log == ""
    finally:
        for server in servers:
            server.close()


SAME = {"lookahead": ("ngram", ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'])}
"""What the double runs for a method that our own engine lacks."""


async def answers(server: LiveServer) -> list[Completion]:
    async with Client(server.address) as client:
        return [await client.complete(prompt, max_tokens=40, ignore_eos=True, temperature=0.0) for prompt in PROMPTS]


async def test_text_and_acceptance_are_those_of_the_embedded_engine(pair: Pair) -> None:
    expected, found = await answers(pair.embedded), await answers(pair.compiled)
    assert [item.token_ids for item in found] == [item.token_ids for item in expected]
    for mine, theirs in zip(found, expected, strict=True):
        ours, others = mine.finished.stats, theirs.finished.stats
        assert ours is not None and others is not None
        for name in ("decode_passes", "emitted", "accepted"):  # TensorRT-LLM drafts all of a tree to the last
            assert getattr(ours, name) == getattr(others, name), name
    accepted = sum(item.finished.stats.accepted for item in found if item.finished.stats)
    assert (accepted > 5) is (pair.method != "none")
