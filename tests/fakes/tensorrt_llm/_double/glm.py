"""GLM-4.5 as our own engine can run it: with dense layers it is a Qwen3, and a module whose experts add nothing is
its shared one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tensorrt_llm._double.hugging_face import Source

TYPE = "glm4_moe"
_DROPPED = ("model_type", "architectures", "partial_rotary_factor", "use_qk_norm", "attention_bias")
_ROUTED = re.compile(r"\.mlp\.(gate\.|experts\.\d+\.)")


def as_qwen3(source: Source, place: Path) -> Path:
    """The folder under our names."""
    _check(source.raw)
    source.copy(place)
    for file in place.glob("*.safetensors*"):
        file.unlink()
    raw = {key: value for key, value in source.raw.items() if key not in _DROPPED}
    raw |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (place / "config.json").write_text(json.dumps(raw))
    tensors = {}
    for name in source.names:
        if _ROUTED.search(name):
            if name.endswith("down_proj.weight") and source.read(name).any():
                raise RuntimeError(f"{name}: the double has no experts that add anything")
            continue
        tensors[name.replace(".shared_experts.", ".")] = source.read(name)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


def _check(raw: dict[str, Any]) -> None:
    dense = raw["first_k_dense_replace"] >= raw["num_hidden_layers"] and raw["n_shared_experts"] == 1
    whole = raw.get("partial_rotary_factor", 0.5) == 1.0 and raw["use_qk_norm"] and not raw["attention_bias"]
    if not (dense and whole):
        raise RuntimeError("the double runs GLM-4.5 with dense layers, norms of queries and keys, and full rotation")
