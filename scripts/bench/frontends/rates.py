"""Messages per second of the front-end and of others over the same scripted engine, in one run.

    chrt -r 10 python -m scripts.bench.frontends.rates --engine DIR --output FILE

All servers are up all the time and take turns, forth and back, so that what disturbs the machine disturbs all. The
client is the same for all: one that costs next to nothing (`wire`), and gRPC's own (`calls`). CPU time is what the
kernel counts of a server, threads of gRPC included, for each message.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.peers.machine import cpu_name

STREAMS = 256
CLIENTS = {"wire": "one that only counts", "calls": "gRPC's own"}
_CLOCK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Contender:
    """A server, by the arguments of `answering`."""

    name: str
    kind: str
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class Answering:
    """A server that answers."""

    process: int
    port: int
    messages: int
    """Of each stream."""
    request: bytes
    """What `wire` reads."""

    def cpu_seconds(self) -> float:
        """CPU time so far."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the load, by message."""

    rate: float
    server_microseconds: float
    client_microseconds: float


@contextmanager
def answering(contender: Contender, load: Sequence[str]) -> Iterator[Answering]:
    command = [contender.python, "-m", "scripts.bench.frontends.answering", contender.kind, *load]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            told = json.loads(process.stdout.readline())
            yield Answering(
                process.pid,
                told["port"],
                told["messages"],
                told["path"].encode() + b"\n" + bytes.fromhex(told["request"]),
            )
        finally:
            process.terminate()


def measure(server: Answering, client: str, connections: int) -> Measured:
    """One run of the client, which is a module beside this one."""
    numbers = (server.port, STREAMS, connections, server.messages)
    command = [sys.executable, "-m", f"scripts.bench.frontends.{client}", *map(str, numbers)]
    before = server.cpu_seconds()
    got = json.loads(subprocess.run(command, input=server.request, stdout=subprocess.PIPE, check=True).stdout)
    count = STREAMS * server.messages
    spent = server.cpu_seconds() - before
    return Measured(count / got["seconds"], 1e6 * spent / count, 1e6 * got["cpu_seconds"] / count)


def compare(
    contenders: Sequence[Contender], load: Sequence[str], client: str, connections: int, rounds: int
) -> list[list[Measured]]:
    """The runs of each, taken in turns; a first one of each warms up."""
    with ExitStack() as running:
        servers = [running.enter_context(answering(contender, load)) for contender in contenders]
        runs: list[list[Measured]] = [[] for _ in servers]
        for server in servers:
            measure(server, client, connections)
        for number in range(rounds):
            order = range(len(servers)) if number % 2 == 0 else reversed(range(len(servers)))
            for index in order:
                runs[index].append(measure(servers[index], client, connections))
        return runs


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> str:
    """The median of the rounds' ratios, with the least and the most."""
    ratios = [one / other for one, other in zip(numerator, denominator, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def table(contenders: Sequence[Contender], runs: Sequence[Sequence[Measured]]) -> str:
    header = ["server", "messages per second", "of bare", "server CPU, µs a message", "of bare", "client CPU, µs"]
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    base = runs[0]
    for contender, measured in zip(contenders, runs, strict=True):
        rates = [run.rate for run in measured]
        costs = [run.server_microseconds for run in measured]
        cells = [
            contender.name,
            f"{statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})",
            ratio(rates, [run.rate for run in base]),
            f"{statistics.median(costs):.1f}",
            ratio(costs, [run.server_microseconds for run in base]),
            f"{statistics.median(run.client_microseconds for run in measured):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(options: argparse.Namespace, command: str) -> str:
    """Both loads: a token in each message, and a pass of speculation."""
    contenders = [Contender("bare", "bare"), Contender("trtspec", "trtspec")]
    if options.smg:
        contenders.append(Contender("SMG", "smg", str(options.smg)))
    text = [
        "# What a front-end costs",
        f"`{command}` on {cpu_name()}, {len(os.sched_getaffinity(0))} cores. {STREAMS} streams at once over "
        f"{options.connections} connections, {options.tokens} tokens each; medians of {options.rounds} rounds in which "
        "the servers take turns, the least and the most in brackets. `bare` is a grpc.aio server that streams the "
        "messages that trtspec sends, made before; `SMG` the vLLM servicer of the Shepherd Model Gateway, which sends "
        "ids without text. All but `bare` read the same scripted engine, which always has the next step.",
    ]
    for accepted, client in itertools.product(options.accepted, CLIENTS):
        load = ["--engine", str(options.engine), "--tokens", str(options.tokens), "--accepted", str(accepted)]
        load += ["--streams", str(STREAMS)]
        runs = compare(contenders, load, client, options.connections, options.rounds)
        text += [f"## Tokens in each message: {accepted + 1}; client: {CLIENTS[client]}", table(contenders, runs)]
    return "\n\n".join(text) + "\n"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.frontends.rates", description=__doc__)
    parser.add_argument("--engine", type=Path, required=True, metavar="DIR", help="engine whose tokenizer is used")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="how often each is measured")
    parser.add_argument("--connections", type=int, default=8, metavar="N", help="connections of the streams")
    parser.add_argument("--tokens", type=int, default=100, metavar="N", help="tokens of each stream")
    parser.add_argument("--accepted", type=int, nargs="+", default=[0, 2], metavar="N", help="drafted and accepted")
    parser.add_argument("--smg", type=Path, metavar="PYTHON", help="of an environment with smg-grpc-servicer and vLLM")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the report")
    options = parser.parse_args(argv)
    text = report(options, " ".join(["python -m scripts.bench.frontends.rates", *argv]))
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
