"""From a Hugging Face folder to a checkpoint of TensorRT-LLM: its config, and the tensors of each rank.

Names and shares are those of upstream's converters (models/llama, models/qwen); what a checkpoint tells beside them,
the folder that it was made of, is the double's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensorrt_llm._double.hugging_face import QWEN, Source
from tensorrt_llm._double.splits import DTYPES, Attention, columns, padded_rows, qkv, rows
from torch import Tensor

SOURCE = "double_source"
"""Key of the config that names the folder which a checkpoint was made of: the double runs that one."""
_PLAIN = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "hidden_act"),
)
_QWEN_TYPES = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


def config_of(source: Source, dtype: str) -> dict[str, Any]:
    """Keyword arguments of the model's config, but for mapping and quantization."""
    chosen = source.dtype if dtype == "auto" else dtype
    if dtype == "auto" and chosen == "float32":
        chosen = "float16"  # upstream infers so
    if chosen not in DTYPES:
        raise AssertionError(f"dtype {chosen} is not one of {', '.join(DTYPES)}")
    plain = {key: source.raw[key] for key in _PLAIN}
    qwen = {"qwen_type": _QWEN_TYPES[source.architecture]} if source.architecture in QWEN else {}
    return {
        "architecture": source.architecture,
        "dtype": chosen,
        "logits_dtype": "float32",
        **plain,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": source.rotary_base,
        "rotary_scaling": source.rotary_scaling,
        "norm_epsilon": float(source.raw["rms_norm_eps"]),
        "head_size": source.head_size,
        "qk_layernorm": source.architecture == "Qwen3ForCausalLM",
        **qwen,
        SOURCE: str(source.path),
    }


def attention_of(config: dict[str, Any]) -> Attention:
    return Attention(config["num_attention_heads"], config["num_key_value_heads"], config["head_size"])


def check_shared(config: dict[str, Any], tp: int, pp: int) -> None:
    """The assertions of upstream's layers."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    assert heads % tp == 0, f"{heads} heads cannot be shared by {tp} ranks"
    assert kv_heads % tp == 0 or tp % kv_heads == 0, f"{kv_heads} key-value heads cannot be shared by {tp} ranks"
    assert config["intermediate_size"] % tp == 0, f"intermediate_size cannot be shared by {tp} ranks"
    assert config["num_hidden_layers"] >= pp, f"{config['num_hidden_layers']} layers cannot be shared by {pp} stages"


def base_tensors(source: Source, config: dict[str, Any], rank: int, tp: int, pp: int) -> dict[str, Tensor]:
    """What a rank holds of the model itself."""
    dtype = DTYPES[config["dtype"]]
    return {name: tensor.to(dtype).contiguous() for name, tensor in _tensors(source, config, rank, tp, pp)}


def _tensors(source: Source, config: dict[str, Any], rank: int, tp: int, pp: int) -> Iterator[tuple[str, Tensor]]:
    place, stage = rank % tp, rank // tp
    if stage == 0:
        yield "transformer.vocab_embedding.weight", source.embedding
    layers = torch.arange(config["num_hidden_layers"]).tensor_split(pp)[stage].tolist()  # the first stages get the rest
    for local, layer in enumerate(layers):
        for name, tensor in _layer(source, f"model.layers.{layer}.", attention_of(config), place, tp):
            yield f"transformer.layers.{local}.{name}", tensor
    if stage == pp - 1:
        yield "transformer.ln_f.weight", source.read("model.norm.weight")
        yield "lm_head.weight", rows(padded_rows(source.head, tp), place, tp)


def _layer(source: Source, prefix: str, shape: Attention, rank: int, tp: int) -> Iterator[tuple[str, Tensor]]:
    def read(name: str) -> Tensor:
        return source.read(f"{prefix}{name}")

    for kind in ("weight", "bias"):
        if source.has(f"{prefix}self_attn.q_proj.{kind}"):
            parts = [read(f"self_attn.{part}_proj.{kind}") for part in "qkv"]
            yield f"attention.qkv.{kind}", qkv(parts[0], parts[1], parts[2], shape, rank, tp)
    for part in "qk":
        if source.has(f"{prefix}self_attn.{part}_norm.weight"):
            yield f"attention.{part}_layernorm.weight", read(f"self_attn.{part}_norm.weight")
    yield "attention.dense.weight", columns(read("self_attn.o_proj.weight"), rank, tp)
    yield "mlp.fc.weight", rows(read("mlp.gate_proj.weight"), rank, tp)  # fc is what passes the activation
    yield "mlp.gate.weight", rows(read("mlp.up_proj.weight"), rank, tp)
    yield "mlp.proj.weight", columns(read("mlp.down_proj.weight"), rank, tp)
    yield "input_layernorm.weight", read("input_layernorm.weight")
    yield "post_layernorm.weight", read("post_attention_layernorm.weight")
