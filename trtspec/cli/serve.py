"""`trtspec serve`: an engine folder, or a model that is built first, becomes a server."""

from __future__ import annotations

import argparse
import asyncio
import atexit
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

from trtspec import manifest as manifests
from trtspec.cli.build_first import build
from trtspec.cli.options import add_options
from trtspec.cli.serve_settings import GROUPS, serve_options_of, settings_of, speculative_of
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.following import check_ranks, follow
from trtspec.generation import MARK
from trtspec.generation import NAME as GENERATION
from trtspec.manifest import NAME as MANIFEST
from trtspec.ranks import end_all, launched
from trtspec.service.model import ServedModel
from trtspec.settings import PREFIX
from trtspec.types import OutputLaw

_EXAMPLES = """\
examples:
  trtspec serve engines/SmolLM2-135M-Instruct-ngram-float32
  trtspec serve ~/models/SmolLM2-1.7B-Instruct --speculative-config '{"method": "ngram", "num_speculative_tokens": 6}'
  trtspec serve engines/mine --port 0 --speculative-config @speculation.json
  trtspec serve --print-config > serve.toml    # every setting, with its help, its value and who set it
  TRTSPEC_SERVE_PORT=8001 trtspec serve engines/mine --config serve.toml
"""

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
        "source", type=Path, nargs="?", metavar="ENGINE_OR_MODEL", help="engine folder, model folder or .gguf file"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"file of settings, TOML; variables {PREFIX}* go over it, and flags over both",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print every setting and who set it, as such a file, and end"
    )
    for title, kind in GROUPS.items():
        add_options(parser, kind, title)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; 1 if the engine failed for good."""
    settings = settings_of(options, os.environ)
    serve_options, engine = serve_options_of(settings), settings.build(EngineOptions)
    asked = speculative_of(settings)
    if options.print_config:
        print(settings.as_toml(), end="")
        return 0
    if options.source is None:
        raise ConfigError("no ENGINE_OR_MODEL was given; name an engine folder, a model folder or a .gguf file")
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
    engine_options = replace(engine, speculative=override)
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


def announce(address: str, model: ServedModel) -> None:
    """The one line that says that requests are answered."""
    info = model.info
    if (meaning := _LAWS.get(info.output_law)) is not None:
        print(f"output law {info.output_law.value}: {meaning}", file=sys.stderr)
    print(f"SERVING {address} model={info.model} method={info.method.value} engine={info.engine_id[:12]}", flush=True)
