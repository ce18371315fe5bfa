"""Where an engine computes, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from builders.build import main
from tests.models import tiny_llama
from trtspec.config import EmbeddedOptions, EngineOptions, TensorRtLlmOptions
from trtspec.errors import ConfigError
from trtspec.executors.embedded.decoder_config import NAME, DecoderConfig
from trtspec.executors.embedded.device import CPU, CUDA, WORKING_MIB, check_room, choose_device, dense_bytes
from trtspec.executors.embedded.weights import dense, load_weights
from trtspec.executors.opened import open_engine

MIB = 2**20


def build(root: Path, *options: str, tie: bool = True) -> Path:
    folder, engine = tiny_llama(root / "model", tie=tie), root / "engine"
    argv = ["--method", "none", "--target", str(folder), "--output", str(engine), "--runner", "eager"]
    assert main([*argv, "--dtype", "float32", *options]) == 0
    return engine


def test_auto_is_a_gpu_where_an_eager_engine_finds_one() -> None:
    for found, asked, runner, expected in (
        (True, "auto", "eager", CUDA),
        (True, "auto", "openvino", CPU),
        (True, "cpu", "eager", CPU),
        (True, "cuda", "eager", CUDA),
        (False, "auto", "eager", CPU),
        (False, "cpu", "openvino", CPU),
    ):
        with patch("torch.cuda.is_available", return_value=found):
            assert choose_device(asked, runner) == expected


def test_a_gpu_that_cannot_be_used_is_refused_with_the_way_out() -> None:
    with patch("torch.cuda.is_available", return_value=False), pytest.raises(ConfigError, match="no GPU; use --device"):
        choose_device("cuda", "eager")
    with (
        patch("torch.cuda.is_available", return_value=True),
        pytest.raises(ConfigError, match="openvino.*--runner eager"),
    ):
        choose_device("cuda", "openvino")
    with pytest.raises(ConfigError, match="--device is gpu; allowed is auto, cpu or cuda"):
        EngineOptions(device="gpu")


def test_an_engine_opens_only_where_it_was_asked_to(tmp_path: Path) -> None:
    engine = build(tmp_path)
    with patch("torch.cuda.is_available", return_value=False), pytest.raises(ConfigError, match="--device is cuda"):
        open_engine(engine, EngineOptions(device="cuda"))
    theirs = {item.name for item in fields(TensorRtLlmOptions)} - {item.name for item in fields(EmbeddedOptions)}
    for name in sorted(theirs):
        flag = "--" + name.replace("_", "-")
        with pytest.raises(ConfigError, match=f"^{flag} is for TensorRT-LLM, .* the embedded backend; leave it out"):
            open_engine(engine, EngineOptions(**{name: getattr(TensorRtLlmOptions(), name)}))


def test_an_engine_must_fit_into_free_memory() -> None:
    check_room(300 * MIB, 200 * MIB, (500 + WORKING_MIB) * MIB)
    with pytest.raises(
        ConfigError, match=rf"needs {501 + WORKING_MIB} MiB \(301 for weights, 200 .*--kv-cache-mib to 199"
    ):
        check_room(300 * MIB + 1, 200 * MIB, (500 + WORKING_MIB) * MIB)
    with pytest.raises(ConfigError, match="the GPU has 300 MiB free; use --device cpu"):
        check_room(300 * MIB, 200 * MIB, 300 * MIB)


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("tie", [True, False])
def test_the_size_of_weights_is_known_before_they_are_read(tmp_path: Path, tie: bool, quantization: str) -> None:
    engine = build(tmp_path, "--quantization", quantization, tie=tie)
    config = DecoderConfig.from_json(engine / NAME)
    weights = load_weights(engine, config)
    tensors = dense(weights, torch.bfloat16, CPU)
    plain = [tensors.embedding, tensors.norm, *([] if tie else [tensors.head])]
    plain += [getattr(layer, part) for layer in tensors.layers for part in layer.__slots__]
    assert dense_bytes(weights, torch.bfloat16) == sum(item.nbytes for item in plain if item is not None)
