"""One rank of an engine, converted and compiled: `python -m builders.tensorrt_llm.rank JOB RANK`.

A process of its own, because TensorRT-LLM starts MPI and CUDA when it is imported, and keeps the GPU's memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorrt_llm.models as models
import torch
from safetensors.torch import load_file, save_file
from tensorrt_llm.builder import BuildConfig, build
from tensorrt_llm.llmapi.kv_cache_type import KVCacheType
from tensorrt_llm.mapping import Mapping as Ranks
from tensorrt_llm.models.modeling_utils import QuantConfig, SpeculativeDecodingMode
from tensorrt_llm.plugin.plugin import PluginConfig
from tensorrt_llm.quantization import QuantAlgo

from builders.tensorrt_llm.job import Job
from builders.tensorrt_llm.top_logits import TopLogits
from plugins.aot import ARCHITECTURES, CompiledKernel, nearest_architecture

EAGLE_NET = "eagle_net_config"
KERNELS = "kernels"
"""The folder beside an engine for the PTX of its plugins; the table in it has the same name."""


def main(argv: Sequence[str]) -> int:
    """Compile the rank; whatever goes wrong ends the process with a trace, whose last line its parent shows."""
    job, rank = Job.read(Path(argv[0])), int(argv[1])
    kernels: dict[str, CompiledKernel] = {}
    engine = build(_model(job, rank, kernels), build_config(job.build))
    engine.save(job.output)
    write_kernels(Path(job.output), rank, kernels)
    return 0


def _model(job: Job, rank: int, kernels: dict[str, CompiledKernel]) -> Any:
    """The converted model, or the one that a checkpoint with additions gives; kernels of its network are put in."""
    ranks = Ranks(world_size=job.world_size, rank=rank, tp_size=job.tp, pp_size=job.pp)
    quantized = None if job.quant_algo is None else QuantConfig(quant_algo=QuantAlgo(job.quant_algo))
    kind = getattr(models, job.model_class)
    if job.top_logits is not None:
        kind = _tapped(kind, kernels, **job.top_logits)
    converted = kind.from_hugging_face(job.hf_model, dtype=job.dtype, mapping=ranks, quant_config=quantized)
    if not isinstance(converted, kind):
        raise TypeError(f"{job.model_class} converts to {type(converted)}; unset TRTLLM_DISABLE_UNIFIED_CONVERTER")
    if job.checkpoint is None or job.loader is None:
        return converted
    folder = Path(job.checkpoint) / f"rank{rank}"
    folder.mkdir()
    converted.save_checkpoint(str(folder), save_config=True)
    del converted
    add(folder, rank, job)
    return getattr(models, job.loader).from_checkpoint(str(folder), rank=rank)


def _tapped(kind: Any, kernels: dict[str, CompiledKernel], *, most: int, vocabulary: int) -> Any:
    """Its code is for the GPU that compiles the engine."""
    from builders.tensorrt_llm.tapped import tapped

    return tapped(
        kind,
        TopLogits(most),
        vocabulary=vocabulary,
        architecture=_architecture(),
        told=lambda spec, compiled: kernels.update({spec.name: compiled}),
    )


def _architecture() -> int:
    """That of the GPU which compiles the engine; without one, what runs on all."""
    return nearest_architecture(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else ARCHITECTURES[0]


def write_kernels(output: Path, rank: int, kernels: Mapping[str, CompiledKernel]) -> None:
    """The code of an engine's own plugins beside it, for people: the engine holds the same."""
    if not kernels:
        return
    folder = output / KERNELS / f"rank{rank}"
    folder.mkdir(parents=True)
    for name, item in kernels.items():
        (folder / f"{name}.ptx").write_text(item.ptx, encoding="utf-8")
    facts = {
        name: {key: value for key, value in asdict(item).items() if key != "ptx"} for name, item in kernels.items()
    }
    (folder / f"{KERNELS}.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def add(folder: Path, rank: int, job: Job) -> None:
    """Put a rank's share of the drafter, and what describes it, into a saved checkpoint."""
    file, config = folder / f"rank{rank}.safetensors", folder / "config.json"
    whole = folder / "whole.safetensors"
    save_file({**load_file(file), **load_file(job.additions(rank))}, whole)
    whole.replace(file)
    config.write_text(json.dumps(with_settings(json.loads(config.read_text()), job.settings or {}), indent=4))


def with_settings(base: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The target's config with a drafter's settings; an EAGLE net's is a copy of the target's with its own shape."""
    merged = {**base, **settings}
    if EAGLE_NET in settings:
        merged[EAGLE_NET] = {**base, **settings[EAGLE_NET]}
    return merged


def build_config(arguments: Mapping[str, Any]) -> BuildConfig:
    """Enums by their names, and the plugins' configuration inside."""
    made = dict(arguments)
    made["speculative_decoding_mode"] = SpeculativeDecodingMode[made["speculative_decoding_mode"]]
    made["kv_cache_type"] = KVCacheType[made["kv_cache_type"]]
    made["plugin_config"] = PluginConfig(**made["plugin_config"])
    return BuildConfig(**made)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
