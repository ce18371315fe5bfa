"""The base of models, and their configurations."""

from __future__ import annotations

import tensorrt_llm.mapping
import tensorrt_llm.quantization  # noqa: F401  (declares a type of a field)
from tensorrt_llm._double import pretrained
from tensorrt_llm._table import declare

globals().update(
    declare(__name__, pretrained.PretrainedConfig, pretrained.PretrainedModel, pretrained.DecoderModelForCausalLM)
)
