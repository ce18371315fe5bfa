"""Models: from Hugging Face's files or from a checkpoint, and back to a checkpoint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tensorrt_llm._double import checkpoint, conversion, network
from tensorrt_llm._double.hugging_face import LLAMA, QWEN, Source
from tensorrt_llm._table import Declared
from tensorrt_llm._types import lookup
from torch import Tensor

_NEAR = "tensorrt_llm.models."
_LOADING = ("load_by_shard", "load_model_on_cpu", "quant_ckpt_path", "use_autoawq")
_EMBEDDING = ("use_parallel_embedding", "embedding_sharding_dim")


class PretrainedConfig(Declared):
    """Known fields are typed; others are kept, as upstream does with a warning."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self.__dict__.get("_values", {}):
            return self._values[name]
        return super().__getattr__(name)

    def _check(self) -> None:
        for name, kind in (("mapping", "Mapping"), ("quantization", "QuantConfig")):
            given, made = self._values[name], _class(kind)
            if not isinstance(given, made):
                self._values[name] = made(**{key: _read(key, value) for key, value in (given or {}).items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as config.json has them."""
        return {name: plain(value) for name, value in self._values.items()}


def plain(value: Any) -> Any:
    """A value as JSON has it; what the table does not describe is empty."""
    if isinstance(value, Declared):
        return {name: plain(item) for name, item in value._values.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    simple = value is None or isinstance(value, str | int | float)
    return getattr(value, "value", value if simple else {})


def _read(key: str, value: Any) -> Any:
    """A value of config.json as the constructor takes it."""
    return _class("QuantAlgo")(value) if key.endswith("quant_algo") and value is not None else value


def _class(name: str) -> Any:
    return lookup(name, _NEAR)


class PretrainedModel(Declared):
    """What the double keeps of a model: its config, and the tensors of its rank."""

    _tensors: dict[str, Tensor]

    @classmethod
    def _made(cls, config: PretrainedConfig, tensors: dict[str, Tensor]) -> Any:
        model = cls.__new__(cls)
        model._values, model._tensors = {"config": config}, tensors
        return model

    def __init__(self) -> None:
        raise TypeError("models are made by from_hugging_face and from_checkpoint")

    @classmethod
    def from_checkpoint(cls, ckpt_dir: str, rank: int | None, config: Any, preprocess_weights_hook: Any) -> Any:
        if config is not None or preprocess_weights_hook is not None:
            raise NotImplementedError("the double reads the checkpoint's own config, and no hook")
        rank, where = rank or 0, Path(ckpt_dir) / "config.json"
        assert where.is_file(), f"{where} does not exist"
        raw = json.loads(where.read_text())
        architecture = raw["architecture"]
        assert architecture in _ARCHITECTURES[cls.__name__], f"{cls.__name__} does not load {architecture}"
        read = PretrainedConfig(**raw)
        mapping = read.mapping
        assert rank < mapping.world_size, f"rank {rank} of a checkpoint for {mapping.world_size}"
        mapping.rank = rank
        checkpoint.check_settings(raw)
        tensors = checkpoint.read_rank(Path(ckpt_dir), rank)
        checkpoint.check_tensors(tensors, raw, rank, mapping.tp_size, mapping.pp_size)
        return cls._made(read, tensors)

    def save_checkpoint(self, output_dir: str, save_config: bool) -> None:
        directory, mapping = Path(output_dir), self.config.mapping
        if save_config:
            written = self.config.to_dict()
            del written["mapping"]["rank"]
            (directory / "config.json").write_text(json.dumps(written, indent=4))
        save_file(self._tensors, directory / f"rank{mapping.rank}.safetensors")

    @property
    def _hashes(self) -> dict[str, str]:
        """What stands for the compiled weights in an engine file."""
        flat = {name: tensor.flatten().view(-1).contiguous() for name, tensor in self._tensors.items()}
        return {name: hashlib.sha256(_bytes(tensor)).hexdigest() for name, tensor in flat.items()}


def _bytes(tensor: Tensor) -> bytes:
    import torch

    return bytes(tensor.view(torch.uint8).numpy().tobytes())


def convert(cls: type[PretrainedModel], architectures: tuple[str, ...], arguments: dict[str, Any]) -> Any:
    """`from_hugging_face` of a plain model."""
    path, dtype, mapping, quant_config = (
        arguments.pop(name) for name in ("hf_model_or_dir", "dtype", "mapping", "quant_config")
    )
    if unknown := sorted(set(arguments) - {*_LOADING, *_EMBEDDING}):
        raise TypeError(f"from_hugging_face() does not read {unknown[0]!r}; upstream would keep it in the config")
    source = Source(Path(path))
    assert source.architecture in architectures, f"{cls.__name__} does not convert {source.architecture}"
    mapping = mapping or _class("Mapping")()
    raw = conversion.config_of(source, dtype)
    conversion.check_shared(raw, mapping.tp_size, mapping.pp_size)
    embedding = {key: arguments[key] for key in _EMBEDDING if key in arguments}
    config = PretrainedConfig(**raw, **embedding, mapping=mapping, quantization=quant_config)
    tensors = conversion.base_tensors(source, raw, mapping.rank, mapping.tp_size, mapping.pp_size)
    return cls._made(config, tensors)


class DecoderModelForCausalLM(PretrainedModel):
    """Its network has ends and no middle: what comes out of the layers, and what the output head makes of it."""

    @property
    def lm_head(self) -> Any:
        return network.logits

    def forward(self, **inputs: Any) -> Any:
        hidden = network.hidden_states(network.TOKENS, self.config.hidden_size)
        if self.config.mapping.rank // self.config.mapping.tp_size < self.config.mapping.pp_size - 1:
            hidden.mark_output("hidden_states_output", self.config.dtype)
            return hidden
        last = network.hidden_states(network.ROWS, self.config.hidden_size)
        logits = self.lm_head(last)
        logits.mark_output("logits", self.config.logits_dtype)
        return logits, last, hidden


class LLaMAForCausalLM(DecoderModelForCausalLM):
    @classmethod
    def from_hugging_face(cls, **arguments: Any) -> Any:
        return convert(cls, LLAMA, arguments)


class QWenForCausalLM(DecoderModelForCausalLM):
    @classmethod
    def from_hugging_face(cls, **arguments: Any) -> Any:
        return convert(cls, QWEN, arguments)


class MedusaForCausalLm(PretrainedModel):
    @classmethod
    def from_hugging_face(cls, **arguments: Any) -> Any:
        raise NotImplementedError("upstream casts the heads to float16 and drops rotary settings; use from_checkpoint")


class EagleForCausalLM(PretrainedModel):
    @classmethod
    def from_hugging_face(cls, **arguments: Any) -> Any:
        raise NotImplementedError("upstream converts EAGLE with four layers alone; use from_checkpoint")


_ARCHITECTURES = {
    "LLaMAForCausalLM": LLAMA,
    "QWenForCausalLM": QWEN,
    "MedusaForCausalLm": (checkpoint.MEDUSA,),
    "EagleForCausalLM": (checkpoint.EAGLE,),
}
