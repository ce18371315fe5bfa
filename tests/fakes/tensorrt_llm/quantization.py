"""Names of quantizations."""

from __future__ import annotations

from tensorrt_llm._table import declare

globals().update(declare(__name__))
