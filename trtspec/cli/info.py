"""`trtspec info`: what is installed here, what can run, and what an engine folder holds."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata, util
from pathlib import Path
from typing import Any

from trtspec import __version__, manifest
from trtspec.cache import cache_directory
from trtspec.cpu import CPUINFO as _CPUINFO
from trtspec.cpu import cpu_flags
from trtspec.executors.tensorrt_llm.probe import DECODING_CLASSES, Gpu, Probe, gpus, probe

_PACKAGES = ("torch", "transformers", "tokenizers", "grpcio", "protobuf", "numpy", "tensorrt-llm")
_CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm", "sve")
"""Instruction sets that decide the speed of a pass and whether bfloat16 is native."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "info",
        help="versions, backends and CPU of this machine, or an engine folder",
        description="Say what is installed here and what can run; with an engine folder, what was built.",
    )
    parser.add_argument("engine", nargs="?", type=Path, metavar="ENGINE", help="an engine folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the facts."""
    facts = machine() if options.engine is None else engine(options.engine)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print("\n".join(_lines(facts)))
    return 0


def machine() -> dict[str, Any]:
    """Facts of this machine, without loading any of the packages it names: a child process looks into TensorRT-LLM."""
    tensorrt_llm = probe()
    return {
        "trtspec": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "backends": backends(tensorrt_llm),
        "kernels": kernels(),
        "tensorrt_llm": _flows(tensorrt_llm),
        "gpus": {str(index): _gpu(item) for index, item in enumerate(gpus())} or None,
        "cpu": {"cores": os.cpu_count(), "features": cpu_features()},
        "cache": str(cache_directory()),
    }


def engine(directory: Path) -> dict[str, Any]:
    """Facts of an engine folder, from its manifest."""
    found = manifest.read(directory)
    return {
        "engine_id": found.engine_id,
        "model": found.model,
        "backend": found.backend,
        "architecture": found.architecture,
        "dtype": found.dtype,
        "quantization": found.quantization,
        "max_context_tokens": found.max_context_tokens,
        "vocabulary_size": found.vocabulary_size,
        "speculative": found.speculative.facts(),
        "bytes": sum(item.bytes for item in found.artifacts.values()),
        "versions": dict(found.versions),
        "smoke": dict(found.smoke),
    }


def backends(tensorrt_llm: Probe) -> dict[str, str]:
    """Each backend: "available", or why it is not."""
    torch = util.find_spec("torch") is not None
    return {
        "embedded": "available: every method but lookahead"
        if torch
        else 'not available: PyTorch is missing; pip install "trtspec[embedded]"',
        "tensorrt_llm": tensorrt_llm.summary,
    }


def kernels() -> str:
    """Whether embedded engines choose tokens with kernels where they run on a GPU: "available", or why not."""
    if util.find_spec("triton") is None:
        return 'not available: Triton is missing; on a GPU, PyTorch chooses tokens; pip install "trtspec[plugins]"'
    return f"available: on a GPU, Triton {_version('triton')} chooses tokens of embedded engines, if it runs there"


def _flows(found: Probe) -> dict[str, Any] | None:
    if found.version is None:
        return None
    return {
        "engine_flow": found.engine_flow,
        "pytorch_flow": found.pytorch_flow,
        "decoding": list(found.decoding_classes),
        "decoding_absent": [name for name in DECODING_CLASSES if name not in found.decoding_classes],
    }


def _gpu(gpu: Gpu) -> str:
    memory = f"{gpu.free_mib} of {gpu.memory_mib} MiB free"
    return f"{gpu.name}, compute capability {gpu.compute_capability}, {memory}, driver {gpu.driver}"


def cpu_features() -> list[str]:
    """Instruction sets of this CPU that matter here; none where the system does not tell."""
    flags = cpu_flags(_CPUINFO)
    return [feature for feature in _CPU_FEATURES if feature in flags]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lines(facts: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in facts.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}", *_lines(value, indent + "  ")]
        else:
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{indent}{key:<{20 - len(indent)}} {'-' if shown is None else shown}")
    return lines
