"""An engine folder with a drafter opens with it: the text stays, the memory is shared out, damage is told."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

from builders.build import main
from tests.drafter_files import DRAFTERS, drafter_tensors
from tests.models import tiny_llama
from tests.scripted import drive
from trtspec import manifest as manifests
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError, EngineFolderError
from trtspec.executors.embedded import decoder_config, drafter_config, drafter_weights
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.device import CUDA
from trtspec.executors.embedded.opening import open_engine
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method, Request, SamplingParams

PROMPTS = [tuple(range(5, 5 + length)) for length in (3, 40)]
SETTINGS = {
    "eagle": SpeculativeConfig(Method.EAGLE, num_speculative_tokens=3, dynamic_tree=True, max_tree_nodes=6),
    "mtp": SpeculativeConfig(Method.MTP, num_speculative_tokens=4),
    "eagle3": SpeculativeConfig(Method.EAGLE3, num_speculative_tokens=2, tree=((0,), (1,), (0, 0))),
    "medusa": SpeculativeConfig(Method.MEDUSA, num_speculative_tokens=2, tree=((0,), (1,), (1, 0))),
    "pruned model": SpeculativeConfig(Method.DRAFT_MODEL, num_speculative_tokens=3),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plain")
    folder = tiny_llama(root / "model", hidden=32, seed=4)
    argv = ["--method", "none", "--target", str(folder), "--output", str(root / "engine"), "--runner", "eager"]
    assert main([*argv, "--dtype", "float32"]) == 0
    return root / "engine"


def with_drafter(plain: Path, folder: Path, name: str, **settings: Any) -> Path:
    """The same engine, built for a random drafter."""
    shutil.copytree(plain, folder)
    target = DecoderConfig.from_json(folder / decoder_config.NAME)
    config = DRAFTERS[name]
    if config.decoder is not None:
        config = replace(config, decoder=replace(config.decoder, vocab_size=target.vocab_size))
    config.to_json(folder / drafter_config.NAME)
    save_file(drafter_tensors(config, target, torch.Generator().manual_seed(2)), folder / drafter_weights.NAME)
    manifest = manifests.read(folder)
    names = (drafter_config.NAME, drafter_weights.NAME)
    artifacts = {**manifest.artifacts, **{item: manifests.hash_file(folder / item) for item in names}}
    manifests.write(replace(manifest, speculative=replace(SETTINGS[name], **settings), artifacts=artifacts), folder)
    return folder


def texts(
    folder: Path, speculative: Mapping[str, Any] | None = None, sampling: SamplingParams | None = None
) -> tuple[list[list[int]], int, int]:
    """What is generated, how many tokens were drafted, and how many the cache holds."""
    options = EngineOptions(threads=1, kv_cache_mib=8, speculative=speculative)
    opened = open_engine(folder, manifests.read(folder), options)
    depth = opened.info.limits.max_draft_tokens
    requests = [
        Request(str(i), prompt, 12, sampling or SamplingParams(), max_draft_tokens=depth)
        for i, prompt in enumerate(PROMPTS)
    ]
    results = drive(opened.engine, requests, join_every=2)
    drafted = sum(sum(record.nodes_by_depth) for result in results.values() for record in result.passes)
    return [results[str(i)].ids for i in range(len(PROMPTS))], drafted, opened.info.limits.kv_cache_tokens


@pytest.mark.parametrize("name", SETTINGS)
def test_an_engine_opens_with_its_drafter(plain: Path, tmp_path: Path, name: str) -> None:
    folder = with_drafter(plain, tmp_path / "engine", name)
    (expected, none, alone), (found, drafted, shared) = texts(plain), texts(folder)
    assert found == expected
    assert none == 0 and drafted > 20
    layers = sum(cache.num_layers for cache in DRAFTERS[name].caches)
    assert shared * (2 + layers) == pytest.approx(alone * 2, abs=16 * (2 + layers))  # layers are alike in size


@pytest.mark.parametrize(("name", "rule"), [("pruned model", "rejection"), ("medusa", "typical")])
def test_an_engine_opens_with_another_rule_of_acceptance(plain: Path, tmp_path: Path, name: str, rule: str) -> None:
    """Drafts are drawn, or judged by likelihood; greedy text is that of plain decoding all the same."""
    folder = with_drafter(plain, tmp_path / "engine", name, acceptance=rule)
    assert texts(folder)[0] == texts(plain)[0]
    found, drafted, _ = texts(folder, sampling=SamplingParams(1.0, top_k=30))
    assert drafted > 10 and all(len(ids) == 12 for ids in found)


def test_without_speculation_the_drafter_takes_no_memory(plain: Path, tmp_path: Path) -> None:
    folder = with_drafter(plain, tmp_path / "engine", "mtp")
    assert texts(folder, speculative={"method": "none"}) == texts(plain)


def test_an_engine_without_its_drafter_is_built_again(plain: Path, tmp_path: Path) -> None:
    folder = with_drafter(plain, tmp_path / "engine", "eagle")
    manifest = manifests.read(folder)
    (folder / drafter_config.NAME).unlink()
    with pytest.raises(EngineFolderError, match=r"drafter\.json is damaged .*build the engine again"):
        open_engine(folder, manifest, EngineOptions())


def test_a_gpu_must_have_room_for_the_drafter(plain: Path, tmp_path: Path) -> None:
    folder = with_drafter(plain, tmp_path / "engine", "eagle")
    refused = pytest.raises(ConfigError, match=r"\(1 for weights, 8 for keys and values, .* has 20 MiB free")
    with (
        patch(f"{open_engine.__module__}.choose_device", return_value=CUDA),
        patch("torch.cuda.mem_get_info", return_value=(20 << 20, 0)),
        refused,
    ):
        open_engine(folder, manifests.read(folder), EngineOptions(kv_cache_mib=8))
