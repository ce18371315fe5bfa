"""How ranks share a model."""

from __future__ import annotations

from tensorrt_llm._table import Declared, declare


class Mapping(Declared):
    def _check(self) -> None:
        sizes = self._values
        if sizes["world_size"] != sizes["tp_size"] * sizes["pp_size"] * sizes["cp_size"]:
            raise ValueError(f"world_size must equal tp_size * pp_size * cp_size, but got {self!r}")
        if not 0 <= sizes["rank"] < sizes["world_size"]:
            raise ValueError(f"rank must be within world_size, but got {self!r}")


globals().update(declare(__name__, Mapping))
