"""Tokens per second and CPU time with one front-end process and with several, over one engine.

    chrt -r 10 python -m scripts.bench.frontends --tiny --engine DIR --output FILE

A server for each number of front-ends is up all the time, and they take turns, so that what disturbs the machine
disturbs all. CPU time is that of each kind of process for 1,000 tokens, by what the kernel counts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from builders.build import main as build
from scripts.bench.peers.machine import cpu_name
from tests.models import tiny_llama
from trtspec import manifest

CONCURRENCY = (8, 16)
WARM_UP_TOKENS = 8
PARTS = {"trtspec.executors.worker": "engine", "trtspec.service.front_process": "front-ends"}
"""Kinds of processes by the module that they run; the rest is the main one."""
MAIN = "main"
CLIENT = "client"
_CLOCK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    frontends: int
    session: int
    address: str

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each kind of its processes."""
        seconds = dict.fromkeys((*PARTS.values(), MAIN), 0.0)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                arguments = (stat.parent / "cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            if int(fields[3]) == self.session:
                part = next((name for module, name in PARTS.items() if module in arguments), MAIN)
                seconds[part] += (int(fields[11]) + int(fields[12])) / _CLOCK
        return seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the load."""

    tokens: int
    seconds: float
    cpu_seconds: Mapping[str, float]

    def per_thousand(self, part: str) -> float:
        """CPU milliseconds for 1,000 tokens."""
        return 1e6 * self.cpu_seconds[part] / self.tokens


@contextmanager
def server(engine: Path, frontends: int) -> Iterator[Server]:
    """`trtspec serve` of its own session."""
    command = [sys.executable, "-m", "trtspec", "serve", str(engine), "--port", "0", "--frontends", str(frontends)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout
        try:
            yield Server(frontends, process.pid, process.stdout.readline().split()[1])
        finally:
            process.send_signal(signal.SIGTERM)


def load(target: Server, concurrency: int, tokens: int) -> Measured:
    """Run a client process against a server."""
    command = [sys.executable, "-m", "scripts.bench.frontends.load", target.address, str(concurrency), str(tokens)]
    before, children = target.cpu_seconds(), os.times()
    got = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    after, cpu = os.times(), {part: seconds - before[part] for part, seconds in target.cpu_seconds().items()}
    cpu[CLIENT] = after.children_user + after.children_system - children.children_user - children.children_system
    return Measured(got["tokens"], got["seconds"], cpu)


def measure(engine: Path, frontends: Sequence[int], tokens: int, rounds: int) -> dict[tuple[int, int], list[Measured]]:
    """All runs on an engine, by concurrency and front-ends."""
    runs: dict[tuple[int, int], list[Measured]] = {}
    with ExitStack() as running:
        servers = [running.enter_context(server(engine, count)) for count in frontends]
        for target in servers:
            load(target, max(CONCURRENCY), WARM_UP_TOKENS)
        for _ in range(rounds):
            for concurrency in CONCURRENCY:
                for target in servers:
                    runs.setdefault((concurrency, target.frontends), []).append(load(target, concurrency, tokens))
    return runs


def table(runs: dict[tuple[int, int], list[Measured]]) -> str:
    """One row for each load."""
    parts = ("engine", "front-ends", MAIN, CLIENT)
    header = ["streams", "front-ends", "tokens per second", *(f"CPU ms, {part}" for part in parts)]
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    for (concurrency, count), measured in sorted(runs.items()):
        rates = [run.tokens / run.seconds for run in measured]
        cells = [str(concurrency), str(count), f"{statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})"]
        cells += [f"{statistics.median(run.per_thousand(part) for run in measured):.0f}" for part in parts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tiny(folder: Path, method: str = "none") -> Path:
    """An engine so small that the front-ends are the limit."""
    model = tiny_llama(folder / "tiny", seed=1, max_positions=4096)
    argv = ["--method", method, "--dtype", "float32", "--target", str(model), "--output", str(folder / "engine")]
    if build(argv):
        raise SystemExit("the tiny engine cannot be built")
    return folder / "engine"


def report(engines: Sequence[Path], options: argparse.Namespace, command: str) -> str:
    cores = len(os.sched_getaffinity(0))
    text = [
        "# Front-ends",
        f"`{command}` on {cpu_name()}, {cores} cores. Median of {options.rounds} rounds, the least and the most in "
        f"brackets; {options.tokens} tokens a stream without speculation, a message and a connection each; the client "
        "runs on the same cores. CPU ms are for 1,000 tokens. One front-end is the main process itself.",
    ]
    for engine in engines:
        what = manifest.read(engine)
        runs = measure(engine, options.frontends, options.tokens, options.rounds)
        text += [f"## {what.model}, {what.runner}, {what.dtype}", table(runs)]
    return "\n\n".join(text) + "\n"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.frontends", description=__doc__)
    parser.add_argument("--engine", type=Path, action="append", default=[], metavar="DIR", help="engine folder")
    parser.add_argument("--tiny", action="store_true", help="also a tiny engine, made on the spot")
    parser.add_argument("--frontends", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers to compare")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is measured")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the report")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        engines = [*([tiny(Path(folder))] if options.tiny else []), *options.engine]
        text = report(engines, options, " ".join(["python -m scripts.bench.frontends", *argv]))
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
