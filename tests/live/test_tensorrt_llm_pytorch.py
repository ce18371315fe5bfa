"""The PyTorch flow from builder to client, with the strict double in TensorRT-LLM's place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.build import main
from scripts.gpu_check.drafters import seen_texts, write_eagle3
from scripts.gpu_check.modules import fitted_module, write_glm
from tests.checkpoint_files import edit_weights
from tests.fakes.installed import tensorrt_llm_double
from tests.live.pairs import PROMPTS, Pair, check_equal, quieten, served
from tests.models import tiny_llama, tiny_model, tiny_tokenizer

DEPTHS = {"none": 0, "ngram": 4, "draft_model": 3, "eagle3": 3, "mtp": 3}
QUICK = ("mtp",)


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


def prompts() -> list[list[int]]:
    tokenizer = tiny_tokenizer()
    return [tokenizer(prompt).input_ids for prompt in PROMPTS]


def write_llama(root: Path) -> tuple[Path, Path]:
    """A target of eight layers, of which EAGLE-3 can read three; it is its own draft model."""
    target = quieten(tiny_llama(root / "target", seed=5, layers=8, max_positions=512))
    write_eagle3(root / "eagle3", target, seen_texts(target, prompts()))
    (root / "draft_model").symlink_to(target, target_is_directory=True)
    return target, target


def write_with_module(root: Path) -> tuple[Path, Path]:
    """A target with a module of its own, as TensorRT-LLM takes it and as our own engine does."""
    plain = quieten(tiny_model(root / "plain", "Qwen3ForCausalLM", seed=5, head_dim=16, tie=False))
    module = fitted_module(plain, seen_texts(plain, prompts()))
    write_glm(root / "glm", plain, module)
    edit_weights(Path(shutil.copytree(plain, root / "qwen3")), module)
    return root / "glm", root / "qwen3"


def build(root: Path, target: Path, method: str, *flags: str) -> Path:
    output = root / "-".join((method, flags[1]))
    argv = ["--method", method, "--target", str(target), "--output", str(output), *flags]
    if (draft := root / method).is_dir():
        argv += ["--draft", str(draft), *(["--allow-unverified-target"] if method == "eagle3" else [])]
    depth = {"num_speculative_tokens": DEPTHS[method]} if DEPTHS[method] else {}
    assert main([*argv, "--speculative-config", json.dumps({"method": method, **depth})]) == 0
    return output


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DEPTHS],
)
def pair(request: pytest.FixtureRequest, double: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    method, root = request.param, tmp_path_factory.mktemp("pytorch")
    target, same = write_with_module(root) if method == "mtp" else write_llama(root)
    engine = build(root, target, method, "--backend", "tensorrt_llm", "--flow", "pytorch")
    embedded = build(root, same, method, "--backend", "embedded", "--runner", "eager", "--dtype", "float32")
    with served(method, engine, embedded, root) as found:
        yield found


async def test_text_and_acceptance_are_those_of_the_embedded_engine(pair: Pair) -> None:
    await check_equal(pair, ("decode_passes", "emitted", "accepted"))
