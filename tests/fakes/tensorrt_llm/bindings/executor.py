"""The executor of compiled engines, and the values that go in and out of it."""

from __future__ import annotations

from tensorrt_llm._double import results, values
from tensorrt_llm._double.executor import Executor
from tensorrt_llm._table import declare

globals().update(
    declare(
        __name__,
        values.SamplingConfig,
        values.OutputConfig,
        values.ExternalDraftTokensConfig,
        values.LookaheadDecodingConfig,
        values.EagleConfig,
        values.DecodingMode,
        values.DecodingConfig,
        values.Request,
        values.ExecutorConfig,
        values.KvCacheConfig,
        results.Response,
        results.IterationStats,
        Executor,
    )
)
