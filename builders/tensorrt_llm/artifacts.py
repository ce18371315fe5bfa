"""A folder for TensorRT-LLM's PyTorch flow, planned: nothing is compiled, checkpoints are served as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.model_config import read_json, size
from builders.tensorrt_llm.asked import Asked
from trtspec.capabilities import PYTORCH
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executors.tensorrt_llm.acceptance_watch import warning
from trtspec.executors.tensorrt_llm.engine_spec import DRAFT, TARGET, FolderSpec
from trtspec.executors.tensorrt_llm.probe import PINNED
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method

MTP_LAYERS = "num_nextn_predict_layers"
_NO_OVERLAP = (Method.NGRAM, Method.DRAFT_MODEL)
"""Their drafts are made between passes, which the overlap scheduler has no room for."""
_ONE_MODEL = (
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV3ForCausalLM",
    "GptOssForCausalLM",
)
"""Classes of tensorrt_llm/_torch/models that draft inside their own passes (`SpecDecOneEngineForCausalLM`); beside the
others an EAGLE-3 drafter is a model of its own."""
_POOL_FRACTION = 0.9


@dataclass(frozen=True, slots=True)
class Model:
    """A Hugging Face folder, as far as this flow must know it; TensorRT-LLM knows more architectures than we do."""

    path: Path
    architecture: str
    dtype: str
    max_positions: int
    vocabulary_size: int
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Collected:
    """The checkpoints, and what `tensorrt_llm.LLM` gets."""

    speculative: SpeculativeConfig
    asked: Asked
    target: Model
    draft: Model | None
    dtype: str
    max_seq_len: int

    @property
    def folder(self) -> FolderSpec:
        """What a server reads."""
        return FolderSpec(
            version=PINNED,
            flow=PYTORCH,
            tp=self.asked.tp,
            pp=self.asked.pp,
            max_prompt_tokens=self.max_prompt_tokens,
            max_batch_size=self.asked.max_batch_size,
            logits_size=self.target.vocabulary_size,
            llm=self.llm,
        )

    @property
    def max_prompt_tokens(self) -> int:
        """Without chunked prefill a prompt is one pass."""
        return min(self.asked.max_input_len or self.max_seq_len - 1, self.asked.max_num_tokens)

    @property
    def llm(self) -> dict[str, Any]:
        """Arguments of the LLM; the folders are those inside the engine's."""
        return {
            "model": TARGET,
            "skip_tokenizer_init": True,
            "tensor_parallel_size": self.asked.tp,
            "pipeline_parallel_size": self.asked.pp,
            "dtype": self.dtype,
            "max_batch_size": self.asked.max_batch_size,
            "max_seq_len": self.max_seq_len,
            "max_num_tokens": self.asked.max_num_tokens,
            "disable_overlap_scheduler": self.speculative.method in _NO_OVERLAP or not self.one_model,
            "enable_chunked_prefill": False,
            "enable_iter_perf_stats": True,
            "kv_cache_config": {"enable_block_reuse": True, "free_gpu_memory_fraction": _POOL_FRACTION},
            "speculative_config": _speculative(self.speculative, one_model=self.one_model),
        }

    @property
    def one_model(self) -> bool:
        """False where an EAGLE-3 drafter runs beside the target, because of the target's class or to be limited."""
        return self.speculative.method is not Method.EAGLE3 or (self._drafts_inside and not self.speculative.limits)

    @property
    def _drafts_inside(self) -> bool:
        return self.target.architecture in _ONE_MODEL

    @property
    def notes(self) -> list[str]:
        """What must not be overlooked in the plan."""
        found = []
        if (permanent := warning(self.speculative)) is not None:
            found.append(f"WARNING: {permanent}")
        if self.speculative.method is Method.EAGLE3 and self._drafts_inside and not self.one_model:
            limits = ", ".join(self.speculative.limits)
            found.append(f"NOTE: the drafter runs beside the target, because {limits} cannot be followed in its passes")
        return found

    def arguments(self) -> dict[str, Any]:
        """Everything that will be passed."""
        return {
            "plan": {
                "backend": "tensorrt_llm",
                "flow": PYTORCH,
                "method": self.speculative.method.value,
                "tensorrt_llm": PINNED,
                "world_size": self.asked.tp * self.asked.pp,
            },
            "artifacts": {TARGET: str(self.target.path), **({DRAFT: str(self.draft.path)} if self.draft else {})},
            "llm": self.llm,
            "limits": {
                "max_context_tokens": self.max_seq_len,
                "max_prompt_tokens": self.max_prompt_tokens,
                "max_batch_size": self.asked.max_batch_size,
                "max_draft_tokens": self.speculative.draft_tokens,
                "max_tree_nodes": self.speculative.draft_nodes,
            },
        }


def _speculative(config: SpeculativeConfig, *, one_model: bool) -> dict[str, Any] | None:
    """Class and fields of the decoding configuration. Limits have the names of its fields."""
    depth = {"max_draft_len": config.num_speculative_tokens, **config.limits}
    match config.method:
        case Method.NGRAM:  # a pool of all requests would let one tenant's text show up in another's drafts
            pool = {"is_keep_all": True, "is_use_oldest": True, "is_public_pool": False}
            return {
                "class": "NGramDecodingConfig",
                **depth,
                "max_matching_ngram_size": config.prompt_lookup_max,
                **pool,
            }
        case Method.DRAFT_MODEL:
            return {"class": "DraftTargetDecodingConfig", **depth, "speculative_model": DRAFT}
        case Method.EAGLE3:
            return {"class": "EagleDecodingConfig", **depth, "speculative_model": DRAFT, "eagle3_one_model": one_model}
        case Method.MTP:
            return {"class": "MTPDecodingConfig", MTP_LAYERS: config.num_speculative_tokens}
    return None


def open_model(path: Path, flag: str) -> Model:
    """Read a folder's config, and see that weights are there."""
    where = path / "config.json"
    if not path.is_dir():
        raise ConfigError(f"{flag} {path}: no such folder; the PyTorch flow serves Hugging Face folders as they are")
    raw = read_json(where)
    if not any(path.glob("*.safetensors")):
        raise CheckpointError(f"{path} has no *.safetensors; the PyTorch flow serves Hugging Face folders as they are")
    names = raw.get("architectures") or []
    return Model(
        path=path,
        architecture=names[0] if names else str(raw.get("model_type")),
        dtype=str(raw.get("torch_dtype") or raw.get("dtype") or "auto"),
        max_positions=size(raw, "max_position_embeddings", where),
        vocabulary_size=size(raw, "vocab_size", where),
        raw=raw,
    )


def mtp_depth(target: Model) -> int:
    """Depth that the target's own modules reach."""
    layers = target.raw.get(MTP_LAYERS)
    if not isinstance(layers, int) or layers < 1:
        raise ConfigError(
            f"--method mtp --flow pytorch: {target.path} is {target.architecture} and its config.json has no "
            f"{MTP_LAYERS}; give a target with modules of its own, such as DeepSeek-V3, or train some for --backend "
            "embedded"
        )
    return layers


def check_parallel(method: Method, asked: Asked, target: Model) -> None:
    """Refuse what the workers would stop at."""
    if asked.pp > 1 and method is not Method.NONE:
        raise ConfigError(
            f"--pp is {asked.pp} and --method is {method.value}: no such engine has been tried; use --tp, or --method "
            "none with --pp"
        )
    heads = target.raw.get("num_attention_heads")
    if isinstance(heads, int) and heads % asked.tp:
        raise ConfigError(f"--tp {asked.tp}: {target.path} has {heads} heads; give a divisor")
