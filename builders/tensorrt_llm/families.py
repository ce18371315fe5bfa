"""Which class of TensorRT-LLM compiles an architecture, and what its speculative models are built on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.errors import ConfigError
from trtspec.types import Method


@dataclass(frozen=True, slots=True)
class Family:
    """A model class of `tensorrt_llm.models`."""

    model_class: str
    medusa_type: str | None
    """`model_type` of a Medusa checkpoint on it, by which `MedusaConfig` chooses its base; None where it has none."""
    eagle: bool
    """`EagleForCausalLM` is built on it."""


_LLAMA = Family("LLaMAForCausalLM", "llama", eagle=True)
_QWEN = Family("QWenForCausalLM", "qwen2", eagle=False)
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": Family("QWenForCausalLM", None, eagle=False),
}
"""`MODEL_MAP` of tensorrt_llm/models/__init__.py, as far as our checkpoints go."""


def family_of(architecture: str, method: Method) -> Family:
    """The family, if TensorRT-LLM has the method for it."""
    family = FAMILIES[architecture]
    if method is Method.MEDUSA and family.medusa_type is None:
        raise _refused(architecture, method, "MedusaForCausalLm is built on Llama's and Qwen2's classes")
    if method is Method.EAGLE and not family.eagle:
        raise _refused(architecture, method, "EagleForCausalLM is built on Llama's class")
    return family


def _refused(architecture: str, method: Method, reason: str) -> ConfigError:
    return ConfigError(
        f"--method {method.value} --backend tensorrt_llm with a target of architecture {architecture}: {reason}; use "
        "--method ngram or draft_model, or --backend embedded"
    )
