"""Model classes that compile."""

from __future__ import annotations

import tensorrt_llm.models.modeling_utils  # noqa: F401  (declares the base class)
from tensorrt_llm._double import pretrained
from tensorrt_llm._table import declare

globals().update(
    declare(
        __name__,
        pretrained.LLaMAForCausalLM,
        pretrained.QWenForCausalLM,
        pretrained.MedusaForCausalLm,
        pretrained.EagleForCausalLM,
    )
)
