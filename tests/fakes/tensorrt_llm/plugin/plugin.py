"""Which plugins an engine is compiled with."""

from __future__ import annotations

from typing import Any

from tensorrt_llm._table import Declared, ValidationError, declare

_GEMM = (None, "auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4")


class PluginConfig(Declared):
    def _check(self) -> None:
        if self._values["dtype"] == "auto":
            raise ValueError("Plugin dtype cannot be auto")
        if self._values["gemm_plugin"] not in _GEMM:
            raise ValidationError(f"gemm_plugin is {self._values['gemm_plugin']!r}, and must be one of {_GEMM}")

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return self._values["dtype"] if value == "auto" else value


globals().update(declare(__name__, PluginConfig))
