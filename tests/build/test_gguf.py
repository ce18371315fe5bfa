"""GGUF files: the weights of transformers' reader, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from builders import demo_model
from builders.checkpoint import expected_shapes, open_checkpoint
from tests.checkpoint_files import HIDDEN, VOCABULARY, gguf_of, write_gguf
from tests.models import tiny_model
from trtspec.errors import CheckpointError


def test_header_becomes_the_config(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf", eot=7))
    config = checkpoint.config
    assert (config.hidden_size, config.intermediate_size, config.num_layers, config.head_dim) == (64, 96, 1, 16)
    assert (config.num_heads, config.num_kv_heads, config.vocab_size) == (4, 2, 40)
    assert config.max_position_embeddings == 128 and config.tie_word_embeddings
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert checkpoint.eos_token_ids == {3, 7}


def test_adjacent_rotary_rows_are_split_into_halves(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf"))
    keys = checkpoint.read("model.layers.0.self_attn.k_proj.weight")
    rows = (keys[:, 0] / HIDDEN).int().tolist()
    assert rows == [*range(0, 16, 2), *range(1, 16, 2), *range(16, 32, 2), *range(17, 32, 2)]
    values = checkpoint.read("model.layers.0.self_attn.v_proj.weight")
    assert (values[:, 0] / HIDDEN).int().tolist() == list(range(32))


@pytest.mark.parametrize(
    ("model", "architecture", "options"),
    [
        ("LlamaForCausalLM", gguf.MODEL_ARCH.LLAMA, {"tie": False}),
        ("MistralForCausalLM", gguf.MODEL_ARCH.LLAMA, {"sliding_window": None, "head_dim": 24}),
        ("Qwen2ForCausalLM", gguf.MODEL_ARCH.QWEN2, {"rope_theta": 1e6}),
        # the reader of transformers knows only this width of Qwen3's heads
        ("Qwen3ForCausalLM", gguf.MODEL_ARCH.QWEN3, {"head_dim": 128, "layers": 1}),
    ],
)
def test_file_says_what_the_folder_says(
    tmp_path: Path, model: str, architecture: gguf.MODEL_ARCH, options: dict[str, Any]
) -> None:
    folder = tiny_model(tmp_path / "model", model, spread=0.5, **options)
    path = gguf_of(folder, tmp_path / "a.gguf", architecture)
    original, checkpoint = open_checkpoint(folder), open_checkpoint(path)
    shapes = expected_shapes(original.config)
    assert replace(checkpoint.config, rms_norm_eps=original.config.rms_norm_eps) == original.config  # float32 there
    assert [name for name in shapes if not torch.equal(checkpoint.read(name), original.read(name))] == []
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    assert [name for name in shapes if not torch.equal(checkpoint.read(name), reference[name])] == []
    text = "the thin man's café"  # transformers 4 adds a beginning of its own to those of Llama's GGUF files
    ids = [item.tokenizer().encode(text, add_special_tokens=False) for item in (checkpoint, original)]
    assert ids[0] == ids[1]


def test_window_of_attention_is_read(tmp_path: Path) -> None:
    assert open_checkpoint(write_gguf(tmp_path / "a.gguf", window=32)).attention_window == 32
    assert open_checkpoint(write_gguf(tmp_path / "b.gguf")).attention_window is None


def test_output_tensor_unties_the_head(tmp_path: Path) -> None:
    head = np.ones((VOCABULARY, HIDDEN), np.float32)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf", extra={"output.weight": head}))
    assert not checkpoint.config.tie_word_embeddings
    assert torch.equal(checkpoint.read("lm_head.weight"), torch.ones(VOCABULARY, HIDDEN))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "gemma2"}, "GGUF architecture is 'gemma2'; supported is one of llama, qwen2, qwen3"),
        ({"architecture": "qwen3moe"}, "GGUF architecture is 'qwen3moe'; supported"),
        ({"architecture": "qwen2"}, "tensor model.layers.0.self_attn.q_proj.bias is missing, one of 3"),
        ({"architecture": "qwen3"}, "tensor model.layers.0.self_attn.q_norm.weight is missing, one of 2"),
        ({"window": 0}, "llama.attention.sliding_window is 0; it must be a whole number"),
        ({"rope_scaling": "yarn"}, "rope scaling is 'yarn'; supported in GGUF files is 'none'"),
        ({"rotated": 8}, "8 of 16 dimensions are rotated"),
        ({"experts": 8}, "8 experts"),
        ({"extra": {"rope_freqs.weight": np.ones(8, np.float32)}}, "rope_freqs.weight scales the rotary frequencies"),
        (
            {"extra": {"blk.0.attn_q.bias": np.ones(64, np.float32)}},
            "layers.0.self_attn.q_proj.bias has no place in LlamaForCausalLM",
        ),
        ({"extra": {"output_norm.weight": np.ones(32, np.float32)}}, r"shape [32] and the config says [64]"),
        ({"extra": {"blk.0.ffn_up.weight": np.ones((96, 64), np.int8)}}, "ffn_up.weight is stored as I8"),
    ],
)
def test_unsupported_file_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", **options)
    with pytest.raises(CheckpointError) as refusal:
        open_checkpoint(path)
    assert message in str(refusal.value) and str(path) in str(refusal.value)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    kept = int(path.stat().st_size * share)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=f"truncated or damaged: its {kept} bytes"):
        open_checkpoint(path)


def replace_in(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1 and len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def test_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", rope_scaling="none")
    replace_in(path, b"\x04\0\0\0\0\0\0\0none", b"\x04\0\0\0\0\0\0\0no\xffe")
    with pytest.raises(CheckpointError, match=rf"{path}: llama\.rope\.scaling\.type is damaged"):
        open_checkpoint(path)


def test_list_that_is_longer_than_the_file_is_refused_at_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", token_types=[1, 1, 3])
    replace_in(path, b"\x05\0\0\0\x03\0\0\0\0\0\0\0", b"\x05\0\0\0" + (2**60).to_bytes(8, "little"))
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        open_checkpoint(path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    content = bytearray(path.read_bytes())
    offset = content.index(b"blk.0.ffn_down.weight") + len(b"blk.0.ffn_down.weight") + 4 + 2 * 8 + 4
    content[offset : offset + 8] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tensors token_embd\.weight and blk\.0\.ffn_down\.weight overlap"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos": "</s>"}, "eos_token_id is ['</s>']; it must be a token id"),
        ({"head_count_kv": [2]}, "llama.attention.head_count_kv is [2]; it must be a whole number"),
        ({"epsilon": float("nan")}, "llama.attention.layer_norm_rms_epsilon is nan; it must be a finite number"),
    ],
)
def test_value_of_the_wrong_kind_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", **options)
    with pytest.raises(CheckpointError) as refusal:
        open_checkpoint(path)
    assert message in str(refusal.value) and str(path) in str(refusal.value)


def test_other_file_with_that_ending_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(CheckpointError, match="is no GGUF file"):
        open_checkpoint(path)


@pytest.fixture
def quick_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gguf package slice plain arrays: transformers reads the whole vocabulary twice."""
    mapped = np.memmap
    monkeypatch.setattr(np, "memmap", lambda *args, **kwargs: np.asarray(mapped(*args, **kwargs)))


@pytest.mark.demo_model
@pytest.mark.timeout(300)  # the reference reader takes a minute on a busy machine
@pytest.mark.usefixtures("quick_reading")
def test_demo_weights_equal_those_of_transformers() -> None:
    path = demo_model.fetch()
    checkpoint = open_checkpoint(path)
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    weights = reference.state_dict()
    shapes = expected_shapes(checkpoint.config)
    different = [name for name in shapes if not torch.equal(checkpoint.read(name), weights[name])]
    assert len(shapes) == 272 and different == []
    assert set(weights) - set(shapes) == {"lm_head.weight"} and checkpoint.config.tie_word_embeddings
    assert checkpoint.config.rms_norm_eps == reference.config.rms_norm_eps
    rope = getattr(reference.config, "rope_parameters", reference.config.to_dict())  # by the version of transformers
    assert checkpoint.config.rope_theta == rope["rope_theta"] == 100000.0
