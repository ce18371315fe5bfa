"""What an engine takes of each GPU, estimated from shapes: weights, keys and values. Work space comes on top."""

from __future__ import annotations

from math import prod

from builders.checkpoint import layer_shapes
from builders.tensorrt_llm.additions import Additions
from builders.tensorrt_llm.tensors import padded_vocabulary
from trtspec.executors.embedded.decoder_config import DecoderConfig

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_QUANTIZED_BITS = {"int8": 8, "int4": 4}
_WHOLE = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
)
"""Every rank holds these."""
_SHARED_HEADS = ("self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
"""Split by key-value heads, which are copied where there are fewer of them than ranks."""


def weights_bytes(
    config: DecoderConfig, additions: Additions | None, dtype: str, quantization: str, tp: int, pp: int
) -> int:
    """The largest rank's weights: all of the embedding (it is not split), its share of the rest."""
    item = ITEM_BYTES[dtype]
    layers = -(-config.num_layers // pp) * _layer_bytes(config, item, quantization, tp)
    embedding = config.vocab_size * config.hidden_size * item
    head = (padded_vocabulary(config.vocab_size, tp) // tp + 1) * config.hidden_size * item  # with the last norm
    ends = embedding + head if pp == 1 else max(embedding, head)
    added = sum(tensor.rank_bytes(tp, item) for tensor in additions.tensors) if additions else 0
    return layers + ends + added


def kv_bytes_per_token(config: DecoderConfig, cached_layers: int, dtype: str, tp: int, pp: int) -> int:
    """Keys and values of a position on the largest rank; `cached_layers` are a drafter's, shaped as the target's."""
    layers = -(-config.num_layers // pp) + cached_layers
    return 2 * layers * kv_heads(config, tp) * config.head_dim * ITEM_BYTES[dtype]


def kv_heads(config: DecoderConfig, tp: int) -> int:
    """Key-value heads of a rank: at least one."""
    return max(config.num_kv_heads // tp, 1)


def _layer_bytes(config: DecoderConfig, item: int, quantization: str, tp: int) -> int:
    total = 0
    for name, shape in layer_shapes(config).items():
        if "norm" in name:  # every rank holds these
            count = prod(shape)
        elif name in _SHARED_HEADS:
            count = prod((kv_heads(config, tp) * config.head_dim, *shape[1:]))
        else:
            count = prod(shape) // tp
        bits = _QUANTIZED_BITS.get(quantization, 8 * item) if len(shape) > 1 else 8 * item
        total += count * bits // 8
    return total
