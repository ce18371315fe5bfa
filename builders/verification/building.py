"""From what was asked for to a folder of engines, which appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trtspec
from builders.folder import VERIFIER, check_output, publish, staging
from builders.verification.kinds import Kind, Route
from builders.verification.limits import Limits
from builders.verification.networks import Network
from plugins import verifier_folder
from plugins.aot import triton_version
from plugins.contract import Array
from plugins.verifier_folder import EngineFile, VerifierRecord
from trtspec.manifest import hash_file

Report = Callable[[str], None]
"""Told what is being done."""


@dataclass(frozen=True, slots=True)
class Request:
    """All that decides what is built, and where."""

    kind: Kind
    route: Route
    limits: Limits
    architectures: tuple[int, ...]
    output: Path


def build(request: Request, report: Report) -> VerifierRecord:
    """Compile every network of the kind."""
    check_output(request.output, VERIFIER)
    module = request.route.compiler.load()
    with staging(request.output) as folder:
        engines = {}
        for network in request.kind.networks:
            report(f"compiling {network.name}")
            engines[network.name] = _compile(request, module, network, folder)
        record = _record(request, module, engines)
        verifier_folder.write(record, folder)
        publish(folder, request.output)
    return record


def _compile(request: Request, module: Any, network: Network, folder: Path) -> EngineFile:
    compiler = request.route.compiler
    path = folder / f"{network.name}.{compiler.suffix}"
    path.write_bytes(compiler.compile(module, network, request.limits, request.architectures))
    found = hash_file(path)
    inputs, outputs = (_described(items, request.limits) for items in (network.inputs, network.outputs))
    return EngineFile(path.name, found.bytes, found.sha256, inputs, outputs)


def _record(request: Request, module: Any, engines: dict[str, EngineFile]) -> VerifierRecord:
    limits = request.limits
    sizes = {name: (size.least, size.usual, size.most) for name, size in limits.dimensions.items()}
    versions = {"trtspec": trtspec.__version__}
    if any(network.launches for network in request.kind.networks):
        versions["triton"] = triton_version()
    return VerifierRecord(
        kind=request.kind.name,
        compiler=request.route.compiler.name,
        compiler_version=module.__version__,
        architectures=request.architectures,
        gpu=_gpu(),
        dimensions=sizes,
        vocabulary=limits.vocabulary,
        logits=limits.logits,
        versions=versions,
        engines=engines,
    )


def _described(items: Sequence[Array], limits: Limits) -> tuple[Array, ...]:
    return tuple(replace(item, dtype=limits.dtype(item)) for item in items)


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
