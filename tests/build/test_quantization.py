"""`--quantization int8`: what is stored, how far it is from the checkpoint, and that it is another engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builders.build import main
from tests.models import tiny_model
from trtspec import manifest
from trtspec.executors.embedded.decoder_config import NAME as CONFIG
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.weights import NAME, Int8Weight, dense, load_weights


def test_every_row_uses_the_whole_range_and_errs_by_half_a_step_at_most() -> None:
    matrix = torch.randn(7, 33) * torch.tensor([1e-6, 1.0, 3.0, 10.0, 1e3, 0.5, 2.0]).unsqueeze(1)
    packed = Int8Weight.of(matrix)
    assert packed.values.dtype is torch.int8 and packed.values.abs().amax(dim=1).tolist() == [127] * 7
    error = (packed.dense(torch.float32) - matrix).abs()
    assert bool((error <= 0.5001 * packed.scales.unsqueeze(1)).all())


def test_a_row_of_zeros_stays_zero() -> None:
    packed = Int8Weight.of(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    assert packed.scales.tolist() == pytest.approx([0.0, 2 / 127])
    assert packed.values.tolist() == [[0, 0], [64, -127]]


def test_matrices_are_integers_and_vectors_stay(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model", "Qwen2ForCausalLM", spread=0.5)
    plain, small = tmp_path / "plain", tmp_path / "small"
    common = ["--method", "none", "--target", str(folder), "--dtype", "float32", "--runner", "eager"]
    assert main([*common, "--output", str(plain)]) == 0
    assert main([*common, "--output", str(small), "--quantization", "int8"]) == 0
    stored = load_file(small / NAME)
    assert {name.split(".")[-1]: tensor.dtype for name, tensor in stored.items()} == {
        **dict.fromkeys(("embedding", "qkv", "output", "gate_up", "down"), torch.int8),
        **dict.fromkeys(("scales", "norm", "input_norm", "post_norm", "qkv_bias"), torch.float32),
    }
    facts = [manifest.read(path) for path in (plain, small)]
    assert [found.quantization for found in facts] == ["none", "int8"]
    assert facts[0].engine_id != facts[1].engine_id
    assert (small / NAME).stat().st_size < 0.35 * (plain / NAME).stat().st_size
    config, cpu = DecoderConfig.from_json(small / CONFIG), torch.device("cpu")
    exact, rounded = (dense(load_weights(path, config), torch.float32, cpu) for path in (plain, small))
    assert 0 < (exact.layers[1].down - rounded.layers[1].down).abs().max() < 0.01
    assert torch.equal(exact.norm, rounded.norm) and rounded.head is rounded.embedding
