"""What the builder knows of any checkpoint, and the checks that need no weights.

`builders.huggingface` and `builders.gguf_file` translate their formats into a `Checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from builders.safetensors_file import TensorInfo
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executors.embedded.llama_config import LlamaConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

ARCHITECTURE = "LlamaForCausalLM"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_FULL_PRECISION = ("F32", "F64")
_NOTHING_TO_READ = "rotary_emb.inv_freq"
"""Old Llama checkpoints hold these frequencies; they follow from the config."""


class Checkpoint(Protocol):
    """A model on disk, under Hugging Face's Llama tensor names. Only `read` and `tokenizer` read much."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> LlamaConfig: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Those of the model's files; the tokenizer may know another."""
        ...

    @property
    def generation(self) -> Mapping[str, Any] | None:
        """The generation config, where there is one."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor, in float."""
        ...

    def tokenizer(self) -> PreTrainedTokenizerBase: ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of a Hugging Face folder or a `.gguf` file, and check all that they say."""
    if path.suffix == ".gguf" and path.is_file():
        from builders.gguf_file import open_gguf

        checkpoint: Checkpoint = open_gguf(path)
    elif path.is_dir():
        from builders.huggingface import open_folder

        checkpoint = open_folder(path)
    else:
        raise ConfigError(f"--target {path}: no such folder, and no .gguf file; give a Hugging Face folder or a .gguf")
    check_tensors(checkpoint.config, checkpoint.tensors, path)
    return checkpoint


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of an engine, in the order of the model."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def parameter_count(config: LlamaConfig) -> int:
    total = 0
    for rows, *columns in expected_shapes(config).values():
        total += rows * (columns[0] if columns else 1)
    return total


def check_tensors(config: LlamaConfig, tensors: Mapping[str, TensorInfo], where: Path) -> None:
    """Refuse a checkpoint whose tensors are not the ones its config promises."""
    if config.num_layers > len(tensors):  # before they are all listed: a damaged count may be in the millions
        raise CheckpointError(
            f"{where}: the config says {config.num_layers} layers and there are {len(tensors)} tensors"
        )
    expected = expected_shapes(config)
    if missing := [name for name in expected if name not in tensors]:
        raise CheckpointError(
            f"{where}: tensor {missing[0]} is missing, one of {len(missing)}; copy the checkpoint again"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{where}: tensor {name} has shape {list(tensors[name].shape)} and the config says {list(shape)}"
            )
    spare = {HEAD} if config.tie_word_embeddings else set()
    unknown = [n for n in tensors if n not in expected and n not in spare and not n.endswith(_NOTHING_TO_READ)]
    if unknown:
        raise CheckpointError(
            f"{where}: tensor {unknown[0]} has no place in {ARCHITECTURE} without biases, the supported architecture"
        )


def stored_precision(tensors: Mapping[str, TensorInfo]) -> str:
    """The type of most of the weights, in the file format's word."""
    sizes: dict[str, int] = {}
    for info in tensors.values():
        sizes[info.dtype] = sizes.get(info.dtype, 0) + _numel(info.shape)
    return max(sizes, key=lambda dtype: sizes[dtype])


def is_full_precision(dtype: str) -> bool:
    return dtype in _FULL_PRECISION


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
