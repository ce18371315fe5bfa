"""`python -m scripts.bench.frontends.answering KIND ...`: a server over the scripted engine.

Prints where it answers, what to ask, and how many messages each stream will bring. Each kind needs the environment of
its own packages only.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KINDS = {"bare": "ours", "trtspec": "ours", "smg": "smg"}
"""The module of each."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is streamed."""

    engine: Path
    """Its tokenizer is used."""
    streams: int
    tokens: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a client must know."""

    port: int
    path: str
    """Of the method."""
    request: str
    """In hexadecimal; `wire` puts a number where it holds its mark."""
    messages: int


Serve = Callable[[Load, Callable[[Told], None]], Coroutine[Any, Any, None]]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.frontends.answering", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--engine", type=Path, required=True, help="its tokenizer is used")
    parser.add_argument("--streams", type=int, required=True, help="streams at once; none begins before all are there")
    parser.add_argument("--tokens", type=int, required=True, help="tokens of each stream")
    parser.add_argument("--accepted", type=int, required=True, help="drafted tokens that are accepted in each pass")
    options = vars(parser.parse_args(argv))
    kind = options.pop("kind")
    serve: Serve = getattr(importlib.import_module(f"scripts.bench.frontends.{KINDS[kind]}"), kind)
    asyncio.run(serve(Load(**options), lambda told: print(json.dumps(asdict(told)), flush=True)))


if __name__ == "__main__":
    main(sys.argv[1:])
