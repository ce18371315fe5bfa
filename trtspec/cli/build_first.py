"""A model that is served before it was built: the builder runs first, into the cache."""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from trtspec import speculative
from trtspec.cache import cache_directory
from trtspec.errors import ConfigError, EngineFolderError, TrtspecError
from trtspec.manifest import NAME as MANIFEST
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method

_BAD_USAGE = 2
"""The builder's exit code for what another command line would avoid, as it is ours."""
_GRACE_SECONDS = 5.0
"""Time that an interrupted builder has to remove what it began."""


def build(source: Path, asked: Mapping[str, Any] | None) -> Path:
    """Build a model into the cache; the builder makes a rerun with equal input instant."""
    if not (source.is_file() and source.suffix == ".gguf") and not (source / "config.json").is_file():
        raise EngineFolderError(
            f"{source} is no engine folder (it has no {MANIFEST}) and no model (a folder with config.json, or a .gguf "
            "file); make an engine with `python -m builders.build --method ngram`"
        )
    config = SpeculativeConfig(Method.NONE) if asked is None else speculative.from_dict(dict(asked))
    output = cache_directory() / "engines" / _name(source, config)
    command = [sys.executable, "-m", "builders.build", "--method", config.method.value]
    command += ["--target", str(source.resolve()), "--output", str(output)]
    if asked is None:
        print("no --speculative-config: the engine is built with method none, without speculation", file=sys.stderr)
    else:
        command += ["--speculative-config", json.dumps(dict(asked))]
    output.parent.mkdir(parents=True, exist_ok=True)
    code = run_builder(command)
    if code == _BAD_USAGE:
        raise ConfigError(f"{source} cannot be built; see above{_by_hand(config, command, output)}")
    if code:
        raise TrtspecError(f"the build of {source} failed with exit code {code}; see above")
    return output


def _by_hand(config: SpeculativeConfig, command: Sequence[str], output: Path) -> str:
    """The way out of a refusal that only a flag of the builder lifts, for methods that have a drafter."""
    if "model" not in speculative.known_keys(config.method):
        return ""
    line = shlex.join(["python", *command[1:], "--allow-unverified-target"])
    return f". Where the drafter's target is not verified and you know it, build with `{line}` and serve {output}"


def run_builder(command: Sequence[str]) -> int:
    """Run the builder and give its exit code. SIGTERM ends it as Ctrl-C does, so that it removes what it began."""
    builder: subprocess.Popen[bytes] | None = None
    terminated = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        if not terminated and builder is not None:
            terminated = True
            builder.send_signal(signal.SIGINT)
            raise SystemExit(128 + number)
        terminated = True

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        builder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if terminated:  # while it was being started
            raise SystemExit(128 + signal.SIGTERM)
        return builder.wait()
    finally:
        if builder is not None:
            _end(builder)
        signal.signal(signal.SIGTERM, before)


def _end(builder: subprocess.Popen[bytes]) -> None:
    """Wait for a builder that was interrupted or has ended; one that goes on is terminated."""
    try:
        builder.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        builder.terminate()
        builder.wait()


def _name(source: Path, config: SpeculativeConfig) -> str:
    digest = hashlib.sha256(f"{source.resolve()}\n{config}".encode()).hexdigest()
    stem = source.stem if source.suffix == ".gguf" else source.resolve().name
    return f"{stem}-{config.method.value}-{digest[:8]}"
