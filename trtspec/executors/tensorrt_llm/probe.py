"""What TensorRT-LLM offers here: whether it is installed, its flows and decoding classes, and which GPUs there are.

Importing TensorRT-LLM starts MPI and CUDA, takes seconds, and aborts on some machines. So it is looked into by a child
process, which prints one JSON object; what goes wrong in it becomes a sentence.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from trtspec.ranks import alone

PINNED = "1.2.1"
"""The version that this release is written for."""
PACKAGE, DISTRIBUTION = "tensorrt_llm", "tensorrt-llm"
INSTALL = (
    "on a Linux machine with an NVIDIA GPU and Python 3.10 or 3.12: "
    "pip install 'trtspec[tensorrt-llm]' --extra-index-url https://pypi.nvidia.com, or the image of "
    "scripts/deploy/Dockerfile"
)
"""What to do where it is missing."""
NEWER = {"dflash": "DFlashDecodingConfig", "pard": "PARDDecodingConfig", "sa": "SADecodingConfig"}
"""Methods that TensorRT-LLM has from 1.3 on, by the class that configures them. This release drives none of them."""
DECODING_CLASSES = (
    *("MedusaDecodingConfig", "EagleDecodingConfig", "LookaheadDecodingConfig", "NGramDecodingConfig"),
    *("DraftTargetDecodingConfig", "MTPDecodingConfig"),  # of 1.2.1; newer ones follow
    *("Eagle3DecodingConfig", *NEWER.values()),
)
_LOOK = f"from {__name__} import tell; tell()"
_SECONDS = 180.0
_GPU_FIELDS = "name,compute_cap,memory.total,memory.free,driver_version"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` tells it."""

    name: str
    compute_capability: str
    memory_mib: int
    free_mib: int
    driver: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found."""

    version: str | None = None
    """Of the installed package; None where there is none."""
    engine_flow: bool = False
    """It compiles engines and has the executor that runs them: up to the 1.2 line."""
    pytorch_flow: bool = False
    decoding_classes: tuple[str, ...] = ()
    error: str | None = None
    """Why it is installed and does not import."""

    @property
    def reason(self) -> str | None:
        """Why neither flow can be used here, and the way out; None where one can."""
        if self.version is None:
            return f"not available: the package is not installed; {INSTALL}"
        if self.error is not None:
            return f"not available: tensorrt-llm {self.version} is installed and does not import: {self.error}"
        if not (self.engine_flow or self.pytorch_flow):
            return f"not available: tensorrt-llm {self.version} has neither flow; this release is for {PINNED}"
        return None

    def lacks(self, method: str) -> str:
        """Why a newer method does not run, whatever is installed, and what would."""
        name, instead = NEWER[method], "use eagle3, mtp or ngram"
        if name in self.decoding_classes:
            return (
                f"tensorrt-llm {self.version} is installed and has {name}, which this release does not use: it is "
                f"written for {PINNED}, where there is none; {instead}"
            )
        here = f"tensorrt-llm {self.version} is installed and has no {name}: " if self.decoding_classes else ""
        return f"{here}TensorRT-LLM has {name} from 1.3 on, and this release is written for {PINNED}; {instead}"

    @property
    def summary(self) -> str:
        """One line for people."""
        flows = [name for name, there in (("engine", self.engine_flow), ("pytorch", self.pytorch_flow)) if there]
        pinned = "" if self.version == PINNED else f"; this release is written for {PINNED} and refuses others"
        return self.reason or f"available: tensorrt-llm {self.version}, flows {' and '.join(flows)}{pinned}"


def is_installed() -> bool:
    """Whether the package is there, without importing it."""
    return importlib.util.find_spec(PACKAGE) is not None


def probe() -> Probe:
    """Look into the installed package, in a child process; once in this one, since an import takes many seconds."""
    found = importlib.util.find_spec(PACKAGE)
    return Probe() if found is None else _probed(str(found.origin))


@functools.cache
def _probed(origin: str) -> Probe:
    """Of the package in a place."""
    version = _version()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            env=alone(),
        )
    except subprocess.TimeoutExpired:
        return Probe(version, error=f"the import took more than {_SECONDS:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Probe(version, error=lines[-1])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Probe(**{**found, "decoding_classes": tuple(found["decoding_classes"])})


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that NVIDIA's driver lists; none where there is no `nvidia-smi`."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return tuple(_gpu(line) for line in done.stdout.splitlines() if line.strip()) if done.returncode == 0 else ()


def visible_devices() -> tuple[str, ...]:
    """The GPUs that CUDA is to see here, as it names them: those of CUDA_VISIBLE_DEVICES, or else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return tuple(map(str, range(len(gpus()))))
    return tuple(item.strip() for item in named.split(",") if item.strip())


def visible_gpus() -> tuple[Gpu, ...]:
    """What is known of them; of those that are named otherwise than by their number, nothing."""
    found = gpus()
    return tuple(found[int(item)] for item in visible_devices() if item.isdecimal() and int(item) < len(found))


def _gpu(line: str) -> Gpu:
    name, capability, total, free, driver = (part.strip() for part in line.rsplit(",", 4))
    return Gpu(name, capability, _mib(total), _mib(free), driver)


def _mib(text: str) -> int:
    """Machines that share memory with the CPU answer [N/A]."""
    return int(text) if text.isdecimal() else 0


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def look() -> Probe:
    """Import it, here, and see what it has."""
    package = importlib.import_module(PACKAGE)
    classes = importlib.import_module(f"{PACKAGE}.llmapi")
    return Probe(
        version=getattr(package, "__version__", _version()),
        engine_flow=_has_engine_flow(),
        pytorch_flow=hasattr(package, "LLM"),
        decoding_classes=tuple(name for name in DECODING_CLASSES if hasattr(classes, name)),
    )


def _has_engine_flow() -> bool:
    """The builder and the executor of compiled engines were removed one after the other: both must be there."""
    try:
        executor: Any = importlib.import_module(f"{PACKAGE}.bindings.executor")
        builder: Any = importlib.import_module(f"{PACKAGE}.builder")
    except ImportError:
        return False
    return hasattr(executor, "Executor") and hasattr(builder, "build")


def tell() -> None:
    """What the child process does."""
    print(json.dumps(asdict(look())))
