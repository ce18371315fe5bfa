"""Compiles models into engines."""

from __future__ import annotations

from typing import Any

import tensorrt_llm.llmapi.kv_cache_type
import tensorrt_llm.models
import tensorrt_llm.plugin.plugin  # noqa: F401  (declare types of fields)
from tensorrt_llm._double import compiling
from tensorrt_llm._double.pretrained import plain
from tensorrt_llm._table import Declared, declare

_NOT_SAVED = ("dry_run", "visualize_network")


class EngineConfig(Declared):
    def to_dict(self) -> dict[str, Any]:
        build_config = {key: value for key, value in plain(self.build_config).items() if key not in _NOT_SAVED}
        return {
            "version": self.version,
            "pretrained_config": self.pretrained_config.to_dict(),
            "build_config": build_config,
        }


class Engine(Declared):
    def save(self, engine_dir: str) -> None:
        compiling.save(self, engine_dir)


def build(model: Any, build_config: Any) -> Any:
    return compiling.build(model, build_config)


globals().update(declare(__name__, EngineConfig, Engine, build))
