"""What differs between architectures: defaults, attention windows, and tensors that one has and another lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from builders.architectures import ARCHITECTURES
from builders.build import main
from builders.checkpoint import open_checkpoint
from builders.model_config import model_config
from tests.checkpoint_files import edit_weights, gguf_of
from tests.models import tiny_model
from trtspec import manifest
from trtspec.errors import CheckpointError, EngineFolderError
from trtspec.executors.embedded.decoder_config import DecoderConfig

RAW: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "vocab_size": 267,
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_absent_keys_take_the_defaults_of_transformers(architecture: str) -> None:
    raw = {**RAW, "architectures": [architecture]}
    found = model_config(raw, Path("config.json"))
    reference = getattr(transformers, architecture).config_class(**raw)
    config, rope = found.decoder, getattr(reference, "rope_parameters", reference.to_dict())  # since transformers 5
    assert config.num_kv_heads == reference.num_key_value_heads
    assert config.head_dim == (getattr(reference, "head_dim", None) or 2)
    assert config.max_position_embeddings == reference.max_position_embeddings
    assert (config.rope_theta, config.rope_scaling) == (rope["rope_theta"], None)
    assert rope.get("rope_type", "default") == "default" and rope.get("rope_scaling") is None
    assert (config.rms_norm_eps, config.tie_word_embeddings) == (reference.rms_norm_eps, reference.tie_word_embeddings)
    assert found.attention_window == getattr(reference, "sliding_window", None)


@pytest.mark.parametrize(
    ("architecture", "changes", "window"),
    [
        ("MistralForCausalLM", {"sliding_window": None}, None),
        ("MistralForCausalLM", {"sliding_window": 64}, 64),
        ("Qwen2ForCausalLM", {"sliding_window": 64, "use_sliding_window": False}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 64, "use_sliding_window": True}, 64),
        ("Qwen3ForCausalLM", {"sliding_window": 64, "use_sliding_window": True}, 64),
    ],
)
def test_window_of_attention_is_read(architecture: str, changes: dict[str, Any], window: int | None) -> None:
    raw = {**RAW, "architectures": [architecture], **changes}
    assert model_config(raw, Path("config.json")).attention_window == window


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (
            "Qwen2ForCausalLM",
            {"self_attn.k_proj.bias": None},
            r"layers\.1\.self_attn\.k_proj\.bias is missing, one of 1",
        ),
        ("Qwen3ForCausalLM", {"self_attn.q_norm.weight": None}, r"self_attn\.q_norm\.weight is missing"),
        (
            "Qwen3ForCausalLM",
            {"self_attn.k_norm.weight": 64},
            r"k_norm\.weight has shape \[64\] and the config says \[128\]",
        ),
        ("Qwen2ForCausalLM", {"self_attn.o_proj.bias": 64}, r"o_proj\.bias has no place in Qwen2ForCausalLM"),
        ("Qwen3ForCausalLM", {"self_attn.q_proj.bias": 64}, r"q_proj\.bias has no place in Qwen3ForCausalLM"),
        ("MistralForCausalLM", {"self_attn.q_norm.weight": 16}, r"q_norm\.weight has no place in MistralForCausalLM"),
    ],
)
def test_tensors_are_those_of_the_architecture(
    tmp_path: Path, architecture: str, changes: dict[str, int | None], message: str
) -> None:
    folder = tiny_model(tmp_path, architecture)
    edit_weights(
        folder,
        {f"model.layers.1.{name}": None if size is None else torch.zeros(size) for name, size in changes.items()},
    )
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


@pytest.fixture
def windowed(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model", "MistralForCausalLM", sliding_window=64)


def test_context_longer_than_the_window_is_refused(windowed: Path, tmp_path: Path, fails: Callable[..., str]) -> None:
    argv = ("--method", "none", "--target", windowed, "--output", tmp_path / "engine")
    assert "--max-context-tokens is 512 and the model's sliding_window is 64" in fails(*argv)
    assert "give --max-context-tokens 2 to 64" in fails(*argv, "--max-context-tokens", 65)
    assert main([*map(str, argv), "--dry-run", "--max-context-tokens", "64"]) == 0


def test_engines_of_a_folder_and_of_a_gguf_file_have_the_same_weights(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model", "Qwen2ForCausalLM", spread=0.5)
    targets = {"a": folder, "b": gguf_of(folder, tmp_path / "a.gguf", gguf.MODEL_ARCH.QWEN2)}
    for name, target in targets.items():
        argv = ["--method", "none", "--dtype", "float32", "--target", str(target), "--output", str(tmp_path / name)]
        assert main(argv) == 0
        assert manifest.read(tmp_path / name, verify=True).architecture == "Qwen2ForCausalLM"
    contents = [(tmp_path / name / "weights.safetensors").read_bytes() for name in targets]
    assert contents[0] == contents[1]


def test_engine_of_an_older_release_is_to_be_built_again(tmp_path: Path) -> None:
    decoder = model_config({**RAW, "architectures": ["LlamaForCausalLM"]}, Path("config.json")).decoder
    path = tmp_path / "config.json"
    decoder.to_json(path)
    assert DecoderConfig.from_json(path) == decoder
    older = json.loads(path.read_text())
    del older["qkv_bias"], older["qk_norm"]
    path.write_text(json.dumps(older))
    with pytest.raises(EngineFolderError, match=r"keys differ .* in qk_norm, qkv_bias\); build the engine again"):
        DecoderConfig.from_json(path)
