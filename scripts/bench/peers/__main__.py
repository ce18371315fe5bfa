"""`python -m scripts.bench.peers {setup,measure,report,all}`: the command line of the comparison.

Owns flags and what becomes of them; each step is a module of its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from scripts.bench.peers import machine, setup
from scripts.bench.peers.catalogue import CONCURRENCIES, ENGINES, chosen, slow_here
from scripts.bench.peers.jobs import Mode
from scripts.bench.peers.measure import Matrix, Runner, write
from scripts.bench.peers.records import Run, parse
from scripts.bench.peers.report import Label, render
from scripts.bench.peers.setup import ROOT, Places
from scripts.bench.peers.tokenizer import load_tokenizer
from scripts.bench.peers.workload import read_prompts
from trtspec.cache import cache_directory
from trtspec.cpu import cpu_flags
from trtspec.errors import ConfigError, TrtspecError

HERE = Path(__file__).parent
RESULTS, REPORT = "results.jsonl", "report.md"
COMMAND = "./scripts/bench/peers/run"


def main(argv: Sequence[str]) -> int:
    """Run a command, and return the exit code: 1 where something failed, 2 for wrong input."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that workers are ended then too
    try:
        return _run(options, argv)
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; `report` shows what is in {RESULTS} by now", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    places = Places(options.cache.expanduser().resolve())
    os.environ.setdefault("VLLM_CACHE_ROOT", str(places.cache / "vllm-compiled"))  # for the workers: all in one place
    status = 0
    if options.command in ("setup", "all"):
        failed = setup.set_up(chosen(options.engines), places)
        for name, reason in failed.items():
            print(f"setup: {name} cannot be measured: {reason}")
        status = 1 if failed else 0
    if options.command in ("measure", "all"):
        status = 0 if _measure(options, places, argv) else 1
    if options.command != "setup":
        write_report(options.output)
    return status


def _measure(options: argparse.Namespace, places: Places, argv: Sequence[str]) -> bool:
    """Write the results; returns whether every measurement that was begun succeeded."""
    engines = chosen(options.engines)
    skipped = slow_here(engines, options.engines, cpu_flags()) | setup.missing(engines, places)
    matrix = Matrix(list(engines), options.modes, options.concurrency, options.rounds)
    tokenizer = load_tokenizer(_own_folder(places))
    threads = len(os.sched_getaffinity(0))
    runner = Runner(places, read_prompts()[: options.prompts], tokenizer.message, tokenizer.eos_ids, threads)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    run = Run(shlex.join([COMMAND, *argv]), started, threads, _commit(), asdict(machine.describe()))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / RESULTS
    with path.open("w", encoding="utf-8") as file:
        write(file, run)
        runner.run(matrix, skipped, file)
    failures = parse(path.read_text(encoding="utf-8").splitlines()).failures
    return all(failure.mode is None for failure in failures)


def _own_folder(places: Places) -> Path:
    """One of our engine folders, whose tokenizer makes the ids for all."""
    folders = [places.form(engine.form) for engine in ENGINES.values() if engine.ours]
    if found := next((folder for folder in folders if folder.is_dir()), None):
        return found
    raise ConfigError(f"none of {', '.join(map(str, folders))} is there; {COMMAND} setup builds them")


def write_report(output: Path) -> None:
    """The report beside the results it is made from."""
    path = output / RESULTS
    if not path.is_file():
        raise ConfigError(f"{path} is not there; {COMMAND} measure --output {output} writes it")
    labels = {name: Label(engine.weights, engine.ours) for name, engine in ENGINES.items()}
    results = parse(path.read_text(encoding="utf-8").splitlines())
    (output / REPORT).write_text(render(results, labels), encoding="utf-8")
    print(f"report: {output / REPORT}")


def _commit() -> str | None:
    """The commit of this checkout, marked where files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _numbers(text: str) -> list[int]:
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text}: each must be 1 or more")
    return values


def _count(text: str) -> int:
    [value] = _numbers(text)
    return value


def _names(text: str) -> list[str]:
    return text.split(",")


def _modes(text: str) -> list[Mode]:
    return [Mode(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Measure our engines beside transformers, vLLM, OpenVINO GenAI and llama.cpp on this CPU.",
        epilog=f"engines: {', '.join(ENGINES)}",
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--cache",
        type=Path,
        default=cache_directory() / "peers",
        metavar="DIR",
        help="environments, models and logs (default: %(default)s)",
    )
    shared.add_argument("--engines", type=_names, default=[], metavar="NAME,...", help="only these (default: all)")
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument(
        "--output", type=Path, default=HERE, metavar="DIR", help=f"of {RESULTS} and {REPORT} (default: %(default)s)"
    )
    matrix = argparse.ArgumentParser(add_help=False)
    matrix.add_argument("--rounds", type=_count, default=3, metavar="N", help="default: %(default)s")
    matrix.add_argument(
        "--concurrency",
        type=_numbers,
        default=list(CONCURRENCIES),
        metavar="N,...",
        help=f"requests in flight (default: {','.join(map(str, CONCURRENCIES))})",
    )
    names = ",".join(mode.value for mode in Mode)
    matrix.add_argument(
        "--modes", type=_modes, default=list(Mode), metavar="MODE,...", help=f"of {names} (default: all)"
    )
    matrix.add_argument("--prompts", type=_count, metavar="N", help="only the first N prompts, for a quick look")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", parents=[shared], help="make environments and models, each once")
    commands.add_parser("measure", parents=[shared, output, matrix], help="run every engine in turn, then report")
    commands.add_parser("report", parents=[shared, output], help="write the report of the results again")
    commands.add_parser("all", parents=[shared, output, matrix], help="setup, measure, report")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
