"""One compiled engine, planned: how its checkpoint is converted, what `BuildConfig` gets, and what will come out.

Everything is settled here, from headers alone; nothing is converted or compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builders.checkpoint import Checkpoint
from builders.tensorrt_llm.additions import Additions
from builders.tensorrt_llm.asked import Asked
from builders.tensorrt_llm.memory import ITEM_BYTES, kv_bytes_per_token, weights_bytes
from builders.tensorrt_llm.tensors import padded_vocabulary
from builders.tensorrt_llm.top_logits import TopLogits
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.engine_spec import EAGLE, EXTERNAL, NONE, TOP_LOGITS, EngineSpec

QUANT_ALGOS: Mapping[str, str | None] = {"none": None, "int8": "W8A16", "int4": "W4A16"}
"""`QuantAlgo` by `--quantization`: weights alone, which needs no calibration."""
MODE_NUMBERS = {"NONE": 1, "DRAFT_TOKENS_EXTERNAL": 2, "MEDUSA": 4, "LOOKAHEAD_DECODING": 8, "EAGLE": 32}
"""Values of `SpeculativeDecodingMode`, as the engine's config.json has them."""
_TOKENS_PER_BLOCK = 32
_OPTIMAL_BATCH = 8
_EAGLE_LIMITS = {"--max-batch-size": ("max_batch_size", 512), "--max-draft-len": ("max_draft_len", 256)}
"""Beyond these, upstream's build stops with an assertion, after the conversion."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine of the folder."""

    name: str
    checkpoint: Checkpoint
    model_class: str
    dtype: str
    quantization: str
    asked: Asked
    max_seq_len: int
    mode: str = NONE
    draft_len: int = 0
    additions: Additions | None = None
    top_logits: TopLogits | None = None
    """What the network tells of every position, where our own loop verifies drafts."""

    @property
    def max_input_len(self) -> int:
        return self.asked.max_input_len or self.max_seq_len - 1

    @property
    def max_num_tokens(self) -> int:
        """What `check_max_num_tokens` of tensorrt_llm/_common.py makes of the number that was asked for."""
        most = min(self.asked.max_num_tokens, self.max_seq_len * self.asked.max_batch_size)
        return max(most, _TOKENS_PER_BLOCK if self.fused else self.max_input_len)

    @property
    def fused(self) -> bool:
        """Fused attention over prompts (FMHA) is there in half precision alone."""
        return self.dtype != "float32"

    @property
    def convert(self) -> dict[str, Any]:
        """The target's, or the draft model's, way from Hugging Face's files."""
        algo, tp, pp = QUANT_ALGOS[self.quantization], self.asked.tp, self.asked.pp
        return {
            "call": f"{self.model_class}.from_hugging_face",
            "hf_model_or_dir": str(self.checkpoint.path),
            "dtype": self.dtype,
            "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
            "quant_config": None if algo is None else {"quant_algo": algo},
        }

    @property
    def build(self) -> dict[str, Any]:
        """`BuildConfig`, whose unknown keywords upstream ignores: a test compares these with the known ones."""
        timings = self.asked.timings
        return {
            "max_input_len": self.max_input_len,
            "max_seq_len": self.max_seq_len,
            "max_batch_size": self.asked.max_batch_size,
            "opt_batch_size": min(_OPTIMAL_BATCH, self.asked.max_batch_size),
            "max_beam_width": 1,
            "max_num_tokens": self.max_num_tokens,
            "max_draft_len": self.draft_len,
            "speculative_decoding_mode": self.mode,
            "kv_cache_type": "PAGED",
            "gather_context_logits": False,
            "gather_generation_logits": False,
            "input_timing_cache": str(timings) if timings.is_file() else None,
            "output_timing_cache": str(timings),
            "plugin_config": {
                "gemm_plugin": "auto",
                "remove_input_padding": True,
                "context_fmha": self.fused,
                "use_paged_context_fmha": self.fused,
                "tokens_per_block": _TOKENS_PER_BLOCK,
            },
        }

    @property
    def spec(self) -> EngineSpec:
        """The engine as `builder.build` will leave it: speculative modes add to two of the lengths."""
        layers = self.additions.settings.get("num_eagle_layers", 0) if self.additions else 0
        speculative = self.mode != NONE
        added = self.additions.outputs if self.additions else ()
        return EngineSpec(
            mode=self.mode,
            max_batch_size=self.asked.max_batch_size,
            max_seq_len=self.max_seq_len + self.draft_len + (layers if self.mode == EAGLE else 0),
            max_num_tokens=max(
                self.max_num_tokens, self.asked.max_batch_size * (self.draft_len + 1) if speculative else 0
            ),
            max_draft_len=self.draft_len,
            outputs=("logits", *added, *((TOP_LOGITS,) if self.top_logits else ())),
            kv_bytes_per_token=self.kv_bytes * self.asked.tp * self.asked.pp,
            paged_context=self.fused,
            block_tokens=_TOKENS_PER_BLOCK,
        )

    @property
    def weights_bytes(self) -> int:
        """Of the largest rank."""
        return weights_bytes(
            self.checkpoint.config, self.additions, self.dtype, self.quantization, self.asked.tp, self.asked.pp
        )

    @property
    def kv_bytes(self) -> int:
        """Of a position, on the largest rank."""
        cached = self.additions.cached_layers if self.additions else 0
        return kv_bytes_per_token(self.checkpoint.config, cached, self.dtype, self.asked.tp, self.asked.pp)

    @property
    def top_logits_bytes(self) -> int:
        """Of a pass over as many tokens as there may be; every rank has the logits of the whole vocabulary."""
        if self.top_logits is None:
            return 0
        width = padded_vocabulary(self.checkpoint.config.vocab_size, self.asked.tp)
        return self.spec.max_num_tokens * self.top_logits.bytes_per_token(width, ITEM_BYTES[self.dtype])

    def check(self) -> None:
        """Refuse what the conversion or the build would stop at, minutes later, or what would be wrong at run time."""
        self._check_parallel()
        if not self.fused and (self.mode in (EAGLE, EXTERNAL) or self.top_logits):
            raise ConfigError(
                "--dtype is float32, for which TensorRT-LLM has no paged attention over prompts, and this method needs "
                "it; give --dtype bfloat16 or float16"
            )
        if not 1 <= self.max_input_len < self.max_seq_len:
            raise ConfigError(
                f"--max-input-len is {self.max_input_len} and the context --max-seq-len is {self.max_seq_len}; "
                f"give 1 to {self.max_seq_len - 1}"
            )
        values = {"max_batch_size": self.asked.max_batch_size, "max_draft_len": self.draft_len}
        for flag, (key, most) in _EAGLE_LIMITS.items():
            if self.mode == EAGLE and values[key] > most:
                raise ConfigError(f"{flag} is {values[key]}; EAGLE engines have at most {most}")

    def _check_parallel(self) -> None:
        config, tp, pp = self.checkpoint.config, self.asked.tp, self.asked.pp
        shared = config.num_kv_heads % tp == 0 or tp % config.num_kv_heads == 0
        if config.num_heads % tp or config.intermediate_size % tp or not shared:
            raise ConfigError(
                f"--tp {tp}: the {self.name}'s {config.num_heads} heads, {config.num_kv_heads} key-value heads and "
                f"{config.intermediate_size} inner values cannot be shared evenly; give a divisor of all three"
            )
        if pp > config.num_layers:
            raise ConfigError(f"--pp {pp}: the {self.name} has {config.num_layers} layers; give at most as many")
