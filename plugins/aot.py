"""Compiles kernels to PTX without a GPU, for TensorRT to bake into engines: `python -m plugins.aot`.

TensorRT holds the text in an engine and has it compiled for the chip it meets. PTX for an architecture runs
on that and on all later ones, so whoever builds decides: sm_80 runs everywhere that is supported here, and an engine
for one generation takes that one's, which may hold instructions that no other has (`target` tells). What TensorRT
launches has input pointers, int32 numbers and output pointers; `plugins.ptx` makes sure of it. Triton runs in a child
process (`plugins.aot_worker`), never in this one.

Results are kept in `cache_directory()/kernels`, named by a hash of all that they depend on: the sources beside the
kernel, its specification, the architecture, Triton's version. A kernel may import from its own folder only.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plugins.contract import KernelSpec
from trtspec.cache import cache_directory
from trtspec.errors import ConfigError, KernelError, MissingDependency

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
"""Ampere, its workstation chips, Ada, Hopper, and Blackwell's two."""
KERNELS_PACKAGE = "plugins.kernels"
OLDEST_TRITON, NEWEST_TRITON = (3, 5), (3, 9)
"""Tried; others may append other parameters, and name their assembler otherwise."""
MOST_SHARED_BYTES = 48 * 1024
"""What a launch may ask for without asking the driver for more first, which TensorRT does not promise."""

_FORMAT = 1
"""Of what is cached; raised when the same compiler is to give another result."""
_SECONDS = 300


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One launch's code, and how to launch it."""

    entry: str
    ptx: str
    block_x: int
    """Threads of a block."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    target: str
    """sm_90 runs on those chips and all later ones; sm_100a, where it uses what only they have, on those alone."""
    triton: str
    """The version that compiled it."""
    key: str
    """SHA-256 of all that it depends on."""


def compile_kernel(
    spec: KernelSpec,
    logits: str,
    architecture: int,
    *,
    multiples: Sequence[str] = (),
    package: str = KERNELS_PACKAGE,
) -> CompiledKernel:
    """A kernel for a type of logits, out of the cache or new.

    `multiples` are arguments of which it may rely on being multiples of 16, pointers by their address: rows of logits
    are then read 16 bytes at a time, and else one number at a time.
    """
    if architecture not in ARCHITECTURES:
        known = ", ".join(map(str, ARCHITECTURES))
        raise ConfigError(f"no kernels are compiled for architecture {architecture}; known are {known}")
    request = _request(spec, logits, architecture, multiples, package)
    version = triton_version()
    key = _key(request, version)
    path = cache_directory() / "kernels" / f"{key}.json"
    if (found := _read(path, key)) is not None:
        return found
    answer = _run_worker(request)
    if (needed := answer["shared_bytes"]) > MOST_SHARED_BYTES:
        raise KernelError(f"{spec.name} needs {needed} bytes of shared memory; at most {MOST_SHARED_BYTES}")
    compiled = CompiledKernel(**answer, triton=version, key=key)
    _write(path, compiled)
    return compiled


def nearest_architecture(major: int, minor: int) -> int:
    """The newest architecture that a chip of a compute capability runs."""
    capability = 10 * major + minor
    fitting = [item for item in ARCHITECTURES if item <= capability]
    if not fitting:
        raise ConfigError(f"this GPU's compute capability is {major}.{minor}; kernels need 8.0 or newer")
    return max(fitting)


def triton_version() -> str:
    """That of the installed Triton, or an error where it is none that was tried."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependency("compiling kernels needs Triton: pip install 'trtspec[plugins]'") from None
    parts = tuple(int(part) for part in version.split(".")[:2])
    if not OLDEST_TRITON <= parts <= NEWEST_TRITON:
        oldest, newest = (".".join(map(str, item)) for item in (OLDEST_TRITON, NEWEST_TRITON))
        raise MissingDependency(f"Triton {version} is installed; kernels are compiled with {oldest} to {newest}")
    return version


def _request(
    spec: KernelSpec, logits: str, architecture: int, multiples: Sequence[str], package: str
) -> dict[str, Any]:
    signature = spec.signature(logits)
    return {
        "module": f"{package}.{spec.module}",
        "function": spec.name,
        "signature": signature,
        "bits": [64 if kind.startswith("*") else 32 for kind in signature.values()],
        "constants": dict(spec.constants),
        "multiples": sorted(multiples),
        "num_warps": spec.num_warps,
        "architecture": architecture,
    }


def _key(request: Mapping[str, Any], version: str) -> str:
    found = importlib.util.find_spec(request["module"])
    if found is None or found.origin is None:
        raise KernelError(f"{request['function']} is said to be in {request['module']}, which is no module")
    files = sorted(Path(found.origin).parent.glob("*.py"))
    sources = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    facts = {"format": _FORMAT, "triton": version, "sources": sources, "order": list(request["signature"]), **request}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _run_worker(request: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "plugins.aot_worker", str(question), str(answer)]
        environment = _environment(folder)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode:
            where = f"{request['module']}.{request['function']}"
            raise KernelError(f"{where} does not compile for sm_{request['architecture']}:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "refused" in found:
        raise KernelError(found["refused"])
    return found


def _environment(folder: str) -> dict[str, str]:
    """This process's modules, and none of Triton's switches: they would change the result, and not the key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "TRITON_CACHE_DIR": str(Path(folder, "triton")),
        "TRITON_DISABLE_LINE_INFO": "1",  # else the engine holds paths of the machine that built it
    }


def _read(path: Path, key: str) -> CompiledKernel | None:
    try:
        found = CompiledKernel(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.key == key else None


def _write(path: Path, compiled: CompiledKernel) -> None:
    """All or nothing, whoever else writes the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as partial:
        json.dump(asdict(compiled), partial)
    os.replace(partial.name, path)


if __name__ == "__main__":
    from plugins.aot_command import main

    sys.exit(main())
