"""The LLM API's configurations and results."""

from __future__ import annotations

import tensorrt_llm.bindings.executor  # noqa: F401  (declares types of fields)
from tensorrt_llm._double import llm_values as values
from tensorrt_llm._double.request_output import CompletionOutput, RequestOutput
from tensorrt_llm._table import declare

globals().update(
    declare(
        __name__,
        values.DecodingBaseConfig,
        values.KvCacheConfig,
        values.EagleDecodingConfig,
        values.MTPDecodingConfig,
        values.NGramDecodingConfig,
        values.DraftTargetDecodingConfig,
        values.MedusaDecodingConfig,
        values.LookaheadDecodingConfig,
        CompletionOutput,
        RequestOutput,
    )
)
