"""`trtspec serve`: an engine folder, or a model that is built first, becomes a server."""

from __future__ import annotations

import argparse
import asyncio
import atexit
import hashlib
import json
import logging
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from trtspec import manifest as manifests
from trtspec import speculative
from trtspec.cache import cache_directory
from trtspec.cli.options import add_options, from_options
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError, EngineFolderError, TrtspecError
from trtspec.executors.tensorrt_llm.following import check_ranks, follow
from trtspec.generation import MARK
from trtspec.generation import NAME as GENERATION
from trtspec.manifest import NAME as MANIFEST
from trtspec.ranks import end_all, launched
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method, OutputLaw

_EXAMPLES = """\
examples:
  trtspec serve engines/SmolLM2-135M-Instruct-ngram-float32
  trtspec serve ~/models/SmolLM2-1.7B-Instruct --speculative-config '{"method": "ngram", "num_speculative_tokens": 6}'
  trtspec serve engines/mine --port 0 --speculative-config @speculation.json
"""

_BAD_USAGE = 2
"""The builder's exit code for what another command line would avoid, as it is ours."""
_GRACE_SECONDS = 5.0
"""Time that an interrupted builder has to remove what it began."""

_LAWS = {
    OutputLaw.TYPICAL: "sampled text is not that of the model alone; this is not lossless",
    OutputLaw.UNPROVEN: "right by construction, and no test has shown it on this backend itself",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="serve an engine or a model over gRPC",
        description="Serve an engine folder. A plain model folder or .gguf file is built into the cache first.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", type=Path, metavar="ENGINE_OR_MODEL", help="engine folder, model folder or .gguf file"
    )
    parser.add_argument(
        "--speculative-config",
        metavar="JSON",
        help='JSON or @FILE, such as \'{"method": "ngram"}\'; a built engine is changed within what it was built for',
    )
    add_options(parser, ServeOptions, "server")
    add_options(parser, EngineOptions, "engine")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; 1 if the engine failed for good."""
    asked = None if options.speculative_config is None else speculative.parse(options.speculative_config)
    serve_options = from_options(ServeOptions, options)
    source: Path = options.source.expanduser()
    ranks = launched()
    if ranks.size > 1:
        atexit.register(end_all)
    # A folder of ours without a manifest is an unfinished engine: to be refused, and no model to build from.
    if any((source / name).is_file() for name in (MANIFEST, MARK, GENERATION)):
        directory, override = source, asked
    elif ranks.size > 1:
        raise ConfigError(f"{ranks.size} processes were launched on {source}, which is no engine yet; build one first")
    else:
        directory, override = build(source, asked), None
    engine_options = from_options(EngineOptions, options, speculative=override)
    check_ranks(directory, manifests.read(directory), ranks)
    if not ranks.leads:
        return _ended(follow(directory, engine_options, ranks))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    # Here and not above: the other commands need neither gRPC's server nor a tokenizer.
    if serve_options.frontends > 1:
        from trtspec.service.front_ends import serve
    else:
        from trtspec.service.server import serve
    opened = False

    def announced(address: str, model: ServedModel) -> None:
        nonlocal opened
        opened = True
        announce(address, model)

    orderly = asyncio.run(serve(directory, serve_options, engine_options, announced))
    # The others would wait for a rank 0 that was stopped while it opened: so that is an error there.
    return _ended(0 if orderly and (opened or ranks.size == 1) else 1)


def _ended(code: int) -> int:
    """The exit code of this rank. In order, the others end by themselves."""
    if code == 0:
        atexit.unregister(end_all)
    return code


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


def announce(address: str, model: ServedModel) -> None:
    """The one line that says that requests are answered."""
    info = model.info
    if (meaning := _LAWS.get(info.output_law)) is not None:
        print(f"output law {info.output_law.value}: {meaning}", file=sys.stderr)
    print(f"SERVING {address} model={info.model} method={info.method.value} engine={info.engine_id[:12]}", flush=True)


def _name(source: Path, config: SpeculativeConfig) -> str:
    digest = hashlib.sha256(f"{source.resolve()}\n{config}".encode()).hexdigest()
    stem = source.stem if source.suffix == ".gguf" else source.resolve().name
    return f"{stem}-{config.method.value}-{digest[:8]}"
