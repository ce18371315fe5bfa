"""Hugging Face folders: what is read, and what is refused before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders.checkpoint import expected_shapes, open_checkpoint, parameter_count, stored_precision
from builders.model_config import model_config
from builders.safetensors_file import read_header
from tests.checkpoint_files import edit_config, edit_weights, joined, split
from tests.models import tiny_llama, tiny_model
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executors.embedded.decoder_config import Llama3RopeScaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 267,
}


def edit_header(path: Path, **changes: object) -> None:
    """Change what the header says of model.norm.weight, F32 of shape [64] and the last in the file."""
    header, data = split(path)
    header["model.norm.weight"] |= changes
    path.write_bytes(joined(json.dumps(header).encode(), data))


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"tie": False, "shards": 3}),
        ("LlamaForCausalLM", {"rope_scaling": LLAMA3, "kv_heads": 1, "hidden": 48, "heads": 3}),
        ("LlamaForCausalLM", {"dtype": torch.bfloat16, "shards": 2}),
        ("MistralForCausalLM", {"sliding_window": None, "head_dim": 24, "shards": 5}),
        ("Qwen2ForCausalLM", {"shards": 4}),
        ("Qwen3ForCausalLM", {"head_dim": 24, "tie": False, "shards": 3}),
    ],
    ids=["tied", "untied-sharded", "llama3-mqa", "bfloat16-sharded", "mistral", "qwen2", "qwen3"],
)
def test_every_tensor_equals_that_of_transformers(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    folder = tiny_model(tmp_path / "model", architecture, spread=0.5, **options)
    checkpoint = open_checkpoint(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder)
    assert checkpoint.architecture == architecture == type(reference).__name__
    weights = reference.state_dict()
    for name, shape in expected_shapes(checkpoint.config).items():
        tensor = checkpoint.read(name)
        assert tuple(tensor.shape) == shape
        assert torch.equal(tensor, weights[name])
    assert parameter_count(checkpoint.config) == sum(parameter.numel() for parameter in reference.parameters())
    assert len(list(folder.glob("*.safetensors"))) >= options.get("shards", 1)


def test_config_holds_what_the_decoder_needs(tmp_path: Path) -> None:
    config = open_checkpoint(tiny_llama(tmp_path, tie=False, rope_scaling=LLAMA3)).config
    assert config.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 64)
    assert (config.rope_theta, config.rms_norm_eps, config.head_dim) == (10000.0, 1e-6, 16)
    assert (config.num_heads, config.num_kv_heads, config.vocab_size) == (4, 2, 267)
    assert not config.tie_word_embeddings


def test_old_and_new_spelling_of_rope_are_the_same() -> None:
    old = model_config({**RAW, "rope_theta": 5e5, "rope_scaling": LLAMA3}, Path("config.json")).decoder
    new = model_config({**RAW, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, Path("config.json")).decoder
    assert old == new
    assert old.rope_theta == 5e5
    assert old.rope_scaling is not None


@pytest.mark.parametrize(
    ("changes", "found", "supported"),
    [
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "Qwen2MoeForCausalLM", "Qwen2ForCausalLM, Qwen3ForCausalLM"),
        ({"architectures": ["LlamaForCausalLM", "Other"]}, "['LlamaForCausalLM', 'Other']", "one of LlamaForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2", "LlamaForCausalLM"),
        ({"architectures": 5}, "architectures is 5", "LlamaForCausalLM"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf", "finite"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta is 1000", "finite"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'", "'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'", "'llama3'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "0.5", "1.0"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'", "'llama3'"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'", "'llama3'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'", "'full_attention' in every"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention'", "in every layer"),
        ({"sliding_window": 0}, "sliding_window is 0", "1 or more"),
        ({"attention_bias": True}, "attention_bias is True", "False"),
        ({"mlp_bias": True}, "mlp_bias is True", "False"),
        ({"hidden_act": "gelu"}, "'gelu'", "'silu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq", "GGUF"),
        ({"num_key_value_heads": 3}, "4 heads", "3 key-value heads"),
        ({"head_dim": 15}, "15", "even"),
        ({"hidden_size": "64"}, "hidden_size is '64'", "1 or more"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0", "1 or more"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'", "token id"),
    ],
)
def test_unsupported_config_is_refused_before_weights_are_read(
    folder: Path, changes: dict[str, Any], found: str, supported: str
) -> None:
    edit_config(folder, **changes)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as refusal:
        open_checkpoint(folder)
    assert found in str(refusal.value) and supported in str(refusal.value) and "config.json" in str(refusal.value)


def test_truncated_weights_name_file_and_both_sizes(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(whole - 1)
    with pytest.raises(CheckpointError, match=rf"{path} is truncated: it has {whole - 1} bytes and needs {whole}"):
        open_checkpoint(folder)


@pytest.mark.parametrize("kept", [0, 7, 100])
def test_weights_cut_inside_their_header_are_refused(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match="truncated" if kept > 8 else "no safetensors file"):
        read_header(path)


def test_damaged_header_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"data_offsets"', b'"data_offset!"', 1))
    with pytest.raises(CheckpointError, match="header is damaged"):
        read_header(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [63]}, r"model\.norm\.weight has 256 bytes, and F32 of shape \[63\] needs 252"),
        ({"dtype": "BF16"}, r"model\.norm\.weight has 256 bytes, and BF16 of shape \[64\] needs 128"),
        ({"dtype": "F31"}, r"model\.norm\.weight has the unknown type 'F31'"),
        ({"shape": [-64]}, r"model\.norm\.weight has shape \[-64\]"),
        ({"shape": "64"}, r"model\.norm\.weight has shape '64'"),
        ({"data_offsets": [0, 256, 512]}, r"model\.norm\.weight has data_offsets \[0, 256, 512\]"),
        ({"data_offsets": [0.0, 256.0]}, r"model\.norm\.weight has data_offsets \[0\.0, 256\.0\]"),
        ({"data_offsets": [4, 260]}, r"norm\.weight begins at 4, and tensor \S+ ends at \d+"),
    ],
)
def test_header_that_contradicts_itself_is_refused(folder: Path, changes: dict[str, object], message: str) -> None:
    path = folder / "model.safetensors"
    edit_header(path, **changes)
    with pytest.raises(CheckpointError, match=message) as refusal:
        read_header(path)
    assert str(path) in str(refusal.value)


def test_overlapping_tensors_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    header, data = split(path)
    begin = header["model.norm.weight"]["data_offsets"][0] - 4
    edit_header(path, data_offsets=[begin, begin + 256])
    with pytest.raises(
        CheckpointError, match=rf"model\.norm\.weight begins at {begin}, and tensor \S+ ends at {begin + 4}"
    ):
        read_header(path)


def test_bytes_that_no_tensor_owns_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match=rf"has {len(whole) + 1} bytes and its header describes {len(whole)}"):
        read_header(path)


def test_weights_cut_after_their_header_was_read_are_refused(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{path}: cannot read tensor model\.norm\.weight"):
        checkpoint.read("model.norm.weight")


def test_number_of_layers_is_checked_before_they_are_listed(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=10**12)
    with pytest.raises(CheckpointError, match="the config says 1000000000000 layers and there are 20 tensors"):
        open_checkpoint(folder)


def test_missing_tensor_is_named(folder: Path) -> None:
    edit_weights(folder, {"model.layers.1.mlp.up_proj.weight": None, "model.norm.weight": None})
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing, one of 2"):
        open_checkpoint(folder)


def test_untied_config_needs_a_head(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        open_checkpoint(folder)


def test_wrong_shape_names_both_shapes(folder: Path) -> None:
    edit_weights(folder, {"model.layers.0.self_attn.k_proj.weight": torch.zeros(64, 64)})
    with pytest.raises(CheckpointError, match=r"k_proj\.weight has shape \[64, 64\] and the config says \[32, 64\]"):
        open_checkpoint(folder)


def test_bias_tensor_has_no_place(folder: Path) -> None:
    edit_weights(folder, {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    with pytest.raises(CheckpointError, match=r"q_proj\.bias has no place"):
        open_checkpoint(folder)


def test_old_rotary_buffers_and_a_repeated_tied_head_are_let_pass(folder: Path) -> None:
    edit_weights(
        folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": torch.zeros(267, 64)}
    )
    assert "lm_head.weight" not in expected_shapes(open_checkpoint(folder).config)


def test_integer_weights_are_refused(folder: Path) -> None:
    edit_weights(folder, {"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is stored as I8; supported are F32, BF16"):
        open_checkpoint(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*convert them first: python -c"):
        open_checkpoint(folder)


def test_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_config_that_is_no_json_object_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(folder)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*config\.json: No such file"):
        open_checkpoint(tmp_path)


def test_target_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--target .*nowhere: no such folder"):
        open_checkpoint(tmp_path / "nowhere")


def test_stored_precision_is_that_of_most_weights(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama(tmp_path, dtype=torch.bfloat16))
    edit_weights(tmp_path, {"model.norm.weight": torch.ones(64)})
    assert stored_precision(checkpoint.tensors) == "BF16" == stored_precision(open_checkpoint(tmp_path).tensors)
