"""What the builder knows of any checkpoint, and the checks that need no weights.

`builders.huggingface` and `builders.gguf_file` translate their formats into a `Checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from builders.packages import require_packages
from builders.safetensors_file import TensorInfo
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executors.embedded.decoder_config import DecoderConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
_FULL_PRECISION = ("F32", "F64")
_NOTHING_TO_READ = "rotary_emb.inv_freq"
"""Old Llama checkpoints hold these frequencies; they follow from the config."""
_LONGEST_INDEX = 9
"""Digits of a layer's number."""
MTP_PREFIX, MEDUSA_PREFIX = "mtp.", "medusa_head."
MTP_FUSION = "eh_proj.weight"
"""Drafters that lie beside their target: modules and heads by their prefix, a further layer by this part of it."""


class Checkpoint(Protocol):
    """A model on disk, under Hugging Face's tensor names. Only `read` and `tokenizer` read much."""

    @property
    def path(self) -> Path: ...
    @property
    def architecture(self) -> str:
        """The name that `transformers` has for the model's class."""
        ...

    @property
    def config(self) -> DecoderConfig: ...
    @property
    def attention_window(self) -> int | None:
        """How many tokens back a token sees, itself included; None where it sees all."""
        ...

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


def open_checkpoint(path: Path, flag: str = "--target") -> Checkpoint:
    """Read the headers of a Hugging Face folder or a `.gguf` file, and check all that they say; `flag` named it."""
    if path.suffix == ".gguf" and path.is_file():
        require_packages(("gguf",))
        from builders.gguf_file import open_gguf

        checkpoint: Checkpoint = open_gguf(path)
    elif path.is_dir():
        from builders.huggingface import open_folder

        checkpoint = open_folder(path)
    else:
        raise ConfigError(f"{flag} {path}: no such folder, and no .gguf file; give a Hugging Face folder or a .gguf")
    check_tensors(checkpoint)
    return checkpoint


def layer_tensor(index: int, name: str) -> str:
    """The checkpoint's name of a layer's tensor."""
    return f"model.layers.{index}.{name}"


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of an engine, in the order of the model."""
    layer = layer_shapes(config)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        shapes |= {layer_tensor(index, name): shape for name, shape in layer.items()}
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def layer_shapes(config: DecoderConfig, attention_inputs: int | None = None) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer; its attention reads `attention_inputs` values, by default the hidden size."""
    hidden, inner = config.hidden_size, config.intermediate_size
    inputs = hidden if attention_inputs is None else attention_inputs
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, inputs),
        "self_attn.k_proj.weight": (keys, inputs),
        "self_attn.v_proj.weight": (keys, inputs),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes |= {
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.bias": (keys,),
        }
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def parameter_count(config: DecoderConfig) -> int:
    total = 0
    for rows, *columns in expected_shapes(config).values():
        total += rows * (columns[0] if columns else 1)
    return total


def check_tensors(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose tensors are not the ones its config promises."""
    config, tensors, where = checkpoint.config, checkpoint.tensors, checkpoint.path
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
    unknown = [name for name in tensors if name not in expected and name not in spare]
    unknown = [name for name in unknown if not name.endswith(_NOTHING_TO_READ) and not _drafts(name, checkpoint)]
    if unknown:
        raise CheckpointError(
            f"{where}: tensor {unknown[0]} has no place in {checkpoint.architecture} as its config describes it; "
            "give a checkpoint of that architecture without additions"
        )


def _drafts(name: str, checkpoint: Checkpoint) -> bool:
    """Whether a tensor belongs to a drafter that lies beside its target."""
    if name.startswith((MTP_PREFIX, MEDUSA_PREFIX)):
        return True
    index = name.removeprefix("model.layers.").partition(".")[0]
    if len(index) > _LONGEST_INDEX:  # a damaged name: such a number takes long to read, or is refused
        return False
    beyond = index.isdecimal() and int(index) >= checkpoint.config.num_layers
    return beyond and layer_tensor(int(index), MTP_FUSION) in checkpoint.tensors


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
