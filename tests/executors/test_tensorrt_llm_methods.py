"""Shapes and splits of compiled engines, from builder to executor over the double, beside the embedded backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from builders.build import main
from scripts.gpu_check.drafters import Seen, seen_texts, write_eagle, write_medusa
from tests.engines import Collected, collect
from tests.fakes.installed import mpi_world, tensorrt_llm_double
from tests.live.conftest import ATTENTION_SHARE
from tests.models import tiny_llama, tiny_tokenizer
from trtspec import manifest as manifests
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError
from trtspec.executors import open_executor
from trtspec.executors.tensorrt_llm import engine_spec
from trtspec.types import OutputLaw, Request, SamplingParams

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
PROMPTS = ("the answer is the answer", "one two three one two three one two")
ALLOW = "--allow-unverified-target"
CHAIN3 = {"num_speculative_tokens": 3}
CASES = {
    "medusa, two ranks": ({"method": "medusa", **CHAIN3, "tree": TREE}, ("--tp", "2")),
    "medusa, a chain": ({"method": "medusa", **CHAIN3}, ()),
    "eagle, two ranks": ({"method": "eagle", **CHAIN3, "tree": TREE}, ("--tp", "2")),
}


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("methods")
    weights = tiny_llama(root / "target", seed=5, max_positions=512) / "model.safetensors"
    tensors = load_file(weights)
    quiet = {name: tensor * ATTENTION_SHARE for name, tensor in tensors.items() if name.endswith("o_proj.weight")}
    save_file(tensors | quiet, weights, metadata={"format": "pt"})
    return root


@pytest.fixture(scope="module")
def seen(root: Path) -> list[Seen]:
    tokenizer = tiny_tokenizer()
    found = seen_texts(root / "target", [tokenizer(prompt).input_ids for prompt in PROMPTS])
    write_medusa(root / "medusa", root / "target", found, heads=3)
    write_eagle(root / "eagle", root / "target", found)
    return found


def build(root: Path, backend: str, output: Path, config: dict[str, object], *flags: str) -> Path:
    method = str(config["method"])
    argv = ["--method", method, "--target", str(root / "target"), "--output", str(output), "--backend", backend]
    if (root / method).exists():
        argv += ["--draft", str(root / method), ALLOW]
    assert main([*argv, "--speculative-config", json.dumps(config), *flags]) == 0
    return output


async def said(engine: Path, seen: list[Seen], depth: int, options: EngineOptions) -> list[Collected]:
    executor = await open_executor(engine, options)
    try:
        asked = [Request(str(i), tuple(text.tokens[:16].tolist()), 40) for i, text in enumerate(seen)]
        return [
            await collect(executor, Request(item.request_id, item.prompt, 40, max_draft_tokens=depth)) for item in asked
        ]
    finally:
        await executor.aclose()


@pytest.mark.parametrize(
    "name", [name if name == "medusa, two ranks" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_text_and_acceptance_are_those_of_the_embedded_engine(
    name: str, root: Path, seen: list[Seen], tmp_path: Path
) -> None:
    config, flags = CASES[name]
    timings = ("--timing-cache", str(root / "timings"))
    compiled = build(root, "tensorrt_llm", tmp_path / "engine", config, *timings, *flags)
    embedded = build(root, "embedded", tmp_path / "embedded", config, "--runner", "eager", "--dtype", "float32")
    depth = int(str(config.get("num_speculative_tokens", 0)))
    expected = asyncio.run(said(embedded, seen, depth, EngineOptions(threads=1, kv_cache_mib=16)))
    with mpi_world(2) if "--tp" in flags else contextlib.nullcontext():
        found = asyncio.run(said(compiled, seen, depth, EngineOptions()))
    assert [item.ids for item in found] == [item.ids for item in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.finish == theirs.finish
        assert mine.stats.accepted == theirs.stats.accepted
        assert mine.stats.decode_passes == theirs.stats.decode_passes
    assert sum(item.stats.accepted for item in found) > 5


@pytest.mark.parametrize(
    ("flags", "algorithm", "ranks"),
    [
        pytest.param(("--pp", "2", "--quantization", "int4"), "W4A16", 2, marks=pytest.mark.slow),
        pytest.param(("--pp", "2", "--tp", "2"), None, 4, marks=pytest.mark.slow),
        pytest.param(("--quantization", "int8"), "W8A16", 1, marks=pytest.mark.slow),
    ],
)
def test_stages_and_quantized_weights(
    flags: tuple[str, ...], algorithm: str | None, ranks: int, root: Path, seen: list[Seen], tmp_path: Path
) -> None:
    """Each rank is compiled for its place, with its quantization; the double computes with the weights as they are."""
    plain = {"method": "none"}
    compiled = build(root, "tensorrt_llm", tmp_path / "engine", plain, "--timing-cache", str(root / "timings"), *flags)
    embedded = build(root, "embedded", tmp_path / "embedded", plain, "--runner", "eager", "--dtype", "float32")
    found, folder = manifests.read(compiled, verify=True), engine_spec.read(compiled)
    asked = dict(zip(flags[::2], flags[1::2], strict=True))
    assert found.quantization == asked.get("--quantization", "none")
    assert (folder.pp, folder.tp) == (int(asked.get("--pp", "1")), int(asked.get("--tp", "1")))
    engines = sorted(name for name in found.artifacts if name.endswith(".engine"))
    assert engines == [f"target/rank{rank}.engine" for rank in range(ranks)]
    built = json.loads((compiled / "target" / "config.json").read_text())["pretrained_config"]
    assert built["quantization"]["quant_algo"] == algorithm
    assert built["mapping"]["pp_size"] == folder.pp and built["mapping"]["world_size"] == ranks
    assert ("skipped" in found.smoke) is (ranks > 1)
    expected = asyncio.run(said(embedded, seen, 0, EngineOptions(threads=1, kv_cache_mib=16)))
    with mpi_world(ranks) if ranks > 1 else contextlib.nullcontext():
        served = asyncio.run(said(compiled, seen, 0, EngineOptions()))
    assert [item.ids for item in served] == [item.ids for item in expected]


@pytest.mark.slow
def test_typical_acceptance_is_greedy_where_a_request_is(root: Path, seen: list[Seen], tmp_path: Path) -> None:
    """The text of a greedy request is that of the embedded engine; at a temperature, it is drawn and labelled."""
    shape = {"method": "eagle", **CHAIN3, "tree": TREE}
    compiled = build(root, "tensorrt_llm", tmp_path / "engine", {**shape, "acceptance": "typical"})
    embedded = build(root, "embedded", tmp_path / "embedded", shape, "--runner", "eager", "--dtype", "float32")
    expected = asyncio.run(said(embedded, seen, 3, EngineOptions(threads=1, kv_cache_mib=16)))
    found = asyncio.run(said(compiled, seen, 3, EngineOptions()))
    assert [item.ids for item in found] == [item.ids for item in expected]
    assert sum(item.stats.accepted for item in found) > 5

    async def drawn() -> tuple[OutputLaw, list[list[int]]]:
        executor = await open_executor(compiled, EngineOptions())
        try:
            warm = SamplingParams(temperature=2.0)
            prompt = tuple(seen[0].tokens[:16].tolist())
            asked = [Request(str(i), prompt, 40, warm, i, max_draft_tokens=3) for i in (1, 2)]
            return executor.info().output_law, [(await collect(executor, item)).ids for item in asked]
        finally:
            await executor.aclose()

    law, texts = asyncio.run(drawn())
    assert law is OutputLaw.TYPICAL and texts[0] != texts[1] != expected[0].ids


@pytest.mark.parametrize(
    "asked",
    [
        {"num_speculative_tokens": 2},
        pytest.param({"dynamic_tree": True, "max_tree_nodes": 6, "tree_width": 2}, marks=pytest.mark.slow),
    ],
)
def test_the_shape_of_an_eagle_engine_stays(
    asked: dict[str, object], root: Path, seen: list[Seen], tmp_path: Path
) -> None:
    compiled = build(root, "tensorrt_llm", tmp_path / "engine", {"method": "eagle", **CHAIN3, "tree": TREE})
    with pytest.raises(ConfigError, match="was compiled for"):
        asyncio.run(said(compiled, seen, 3, EngineOptions(speculative={"method": "eagle", **asked})))
