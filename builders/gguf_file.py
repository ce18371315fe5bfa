"""`.gguf` files of the supported architectures, translated to Hugging Face's names and layout, and dequantized."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from builders.architectures import GGUF_ARCHITECTURES, LLAMA, Architecture
from builders.checkpoint import EMBEDDING, HEAD
from builders.model_config import check_heads, eos_ids, number, size
from builders.safetensors_file import TensorInfo
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.decoder_config import DecoderConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

_MAGIC = b"GGUF"
_ROPE_FACTORS = "rope_freqs.weight"
_WHOLE = {"token_embd": EMBEDDING, "output_norm": "model.norm.weight", "output": HEAD}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""End of text, of a turn, and of a message: a model may close its answer with any of them."""


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """A GGUF file whose header has been read; the data is mapped, not loaded."""

    path: Path
    architecture: str
    config: DecoderConfig
    attention_window: int | None
    tensors: Mapping[str, TensorInfo]
    stored: Mapping[str, gguf.ReaderTensor]
    """The reader's tensors, under Hugging Face's names."""
    eos_token_ids: frozenset[int]
    generation: Mapping[str, Any] | None = None
    """GGUF has none."""

    def read(self, name: str) -> torch.Tensor:
        import torch

        tensor = self.stored[name]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(self.tensors[name].shape)
        if self.architecture == LLAMA.name and name.endswith("self_attn.q_proj.weight"):
            values = _halves(values, self.config.num_heads)
        elif self.architecture == LLAMA.name and name.endswith("self_attn.k_proj.weight"):
            values = _halves(values, self.config.num_kv_heads)
        return torch.from_numpy(np.array(values, dtype=np.float32))  # a copy: the file's own pages are read-only

    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            self.path.parent, gguf_file=self.path.name, local_files_only=True, trust_remote_code=False
        )
        return tokenizer


def _halves(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo the order in which GGUF keeps the rotary rows of `llama`, and of no other architecture here.

    A pair of rows that rotate together is adjacent there; the decoder wants all first rows of a head's
    pairs, then all second rows.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    halves: np.ndarray[Any, Any] = pairs.swapaxes(1, 2).reshape(rows.shape)
    return halves


def open_gguf(path: Path) -> GgufCheckpoint:
    """Read the header and check everything that can be known without the data."""
    reader = _open_reader(path)
    header = _Header(reader, path)
    architecture = _architecture(header)
    _check_data(reader, path)
    stored = {_hugging_face_name(tensor.name, path): tensor for tensor in reader.tensors}
    tensors = {
        name: TensorInfo(tuple(int(extent) for extent in reversed(tensor.shape)), tensor.tensor_type.name)
        for name, tensor in stored.items()
    }
    ends = [header.value(f"tokenizer.ggml.{key}") for key in _ENDS]
    eos = eos_ids([end for end in ends if end is not None], path)
    config = _config(header, architecture, tensors)
    return GgufCheckpoint(path, architecture.name, config, _attention_window(header), tensors, stored, eos)


def _architecture(header: _Header) -> Architecture:
    name = header.value("general.architecture")
    if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
        raise CheckpointError(
            f"{header.path}: GGUF architecture is {name!r}; supported is one of {', '.join(GGUF_ARCHITECTURES)}"
        )
    return GGUF_ARCHITECTURES[name]


class _Reader(gguf.GGUFReader):
    """The package's reader, with another way to the bytes.

    Its own takes what lies behind the end of the file for empty, and then fills memory with it; and it slices the
    mapping as `numpy.memmap`, which takes several times as long for the hundred thousand entries of a vocabulary.
    """

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> npt.NDArray[Any]:
        kind = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        size = kind.itemsize * int(count)
        content = np.asarray(self.data)[offset : offset + size]
        if len(content) < size:
            raise IndexError(f"{size} bytes at {offset} lie behind the end")
        return content.view(kind)


@dataclass(frozen=True, slots=True)
class _Header:
    """The values of a header, checked as they are asked for."""

    reader: gguf.GGUFReader
    path: Path

    def value(self, key: str, default: object = None) -> Any:
        field = self.reader.get_field(key)
        try:
            return default if field is None else field.contents()
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {key} is damaged ({error}); copy the file again") from error

    def of_model(self, name: str, default: object = None) -> Any:
        """A value that the file keeps under the name of its architecture."""
        return self.value(self._key(name), default)

    def size(self, name: str, default: int | None = None) -> int:
        return size({self._key(name): self.of_model(name)}, self._key(name), self.path, default)

    def number(self, name: str, default: float) -> float:
        return number({self._key(name): self.of_model(name)}, self._key(name), self.path, default)

    def _key(self, name: str) -> str:
        return f"{self.value('general.architecture')}.{name}"


def _open_reader(path: Path) -> gguf.GGUFReader:
    with path.open("rb") as file:
        magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise CheckpointError(f"{path} is no GGUF file: it starts with {magic!r} and not with {_MAGIC!r}")
    try:
        with np.errstate(over="raise"):
            return _Reader(path)
    except (ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is truncated or damaged: its {path.stat().st_size} bytes do not hold "
            f"what its header promises ({error}); copy it again"
        ) from error


def _check_data(reader: gguf.GGUFReader, path: Path) -> None:
    """Refuse tensors that cannot be dequantized, or that share bytes."""
    for tensor in reader.tensors:
        if not _can_dequantize(tensor.tensor_type):
            raise CheckpointError(
                f"{path}: tensor {tensor.name} is stored as {tensor.tensor_type.name}, which the gguf package "
                "cannot dequantize; use a file quantized otherwise, such as Q8_0"
            )
    placed = sorted(reader.tensors, key=lambda tensor: tensor.data_offset)
    for left, right in itertools.pairwise(placed):
        if right.data_offset < left.data_offset + left.n_bytes:
            raise CheckpointError(f"{path}: tensors {left.name} and {right.name} overlap; copy the file again")


def _attention_window(header: _Header) -> int | None:
    name = "attention.sliding_window"
    return None if header.of_model(name) is None else header.size(name)


def _config(header: _Header, architecture: Architecture, tensors: Mapping[str, TensorInfo]) -> DecoderConfig:
    path = header.path
    if EMBEDDING not in tensors or not tensors[EMBEDDING].shape:
        raise CheckpointError(f"{path}: tensor token_embd.weight is missing; copy the file again")
    heads, hidden = header.size("attention.head_count"), header.size("embedding_length")
    config = DecoderConfig(
        hidden_size=hidden,
        intermediate_size=header.size("feed_forward_length"),
        num_layers=header.size("block_count"),
        num_heads=heads,
        num_kv_heads=header.size("attention.head_count_kv", heads),
        head_dim=header.size("attention.key_length", hidden // heads),
        rms_norm_eps=header.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope_theta=header.number("rope.freq_base", 10000.0),
        rope_scaling=None,
        vocab_size=tensors[EMBEDDING].shape[0],
        max_position_embeddings=header.size("context_length"),
        tie_word_embeddings=HEAD not in tensors,
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
    )
    check_heads(config, path)
    _check_supported(header, config)
    return config


def _check_supported(header: _Header, config: DecoderConfig) -> None:
    path = header.path
    if experts := header.of_model("expert_count", 0):
        raise CheckpointError(f"{path}: the model has {experts} experts; supported are models without experts")
    if (kind := header.of_model("rope.scaling.type", "none")) != "none":
        raise CheckpointError(f"{path}: rope scaling is {kind!r}; supported in GGUF files is 'none'")
    rotated = header.of_model("rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise CheckpointError(f"{path}: {rotated} of {config.head_dim} dimensions are rotated; supported is all")


def _hugging_face_name(name: str, path: Path) -> str:
    """The translated name; a name without a translation is kept, and refused with the other unknown tensors."""
    if name == _ROPE_FACTORS:
        raise CheckpointError(
            f"{path}: {name} scales the rotary frequencies as Llama 3.1 does, which is not read from GGUF; "
            "use the model's safetensors folder"
        )
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _LAYER:
        return f"model.layers.{block[1]}.{_LAYER[block[2]]}.{block[3]}"
    return _WHOLE.get(name.removesuffix(".weight"), name)


def _can_dequantize(kind: gguf.GGMLQuantizationType) -> bool:
    _, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
