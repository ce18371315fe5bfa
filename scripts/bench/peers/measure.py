"""Runs the measurements: every engine in turn, a process each, again for every round.

By turns, so that a machine that slows down slows all alike. Results are lines of JSON, written as they come.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from scripts.bench.peers.catalogue import CONCURRENCIES, ENGINES, Engine
from scripts.bench.peers.jobs import Answer, Job, Mode
from scripts.bench.peers.records import Failure, Measurement, Record
from scripts.bench.peers.setup import ROOT, Places, environment, last_words
from scripts.bench.peers.workload import Tokenize, Workload, warm_up, workload

WORKER = ("-m", "scripts.bench.peers.worker")
LONGEST_SECONDS = 1200
"""For one measurement, loading included; then it has failed."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What to run."""

    engines: Sequence[str]
    modes: Sequence[Mode]
    concurrencies: Sequence[int] = CONCURRENCIES
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement to be made."""

    engine: str
    mode: Mode
    concurrency: int
    round: int


def turns(matrix: Matrix) -> Iterator[Turn]:
    """In running order: the engines of one setting stand together, and rounds follow each other."""
    for number, mode in itertools.product(range(1, matrix.rounds + 1), matrix.modes):
        for concurrency in concurrencies(mode, matrix):
            for engine in matrix.engines:
                if ENGINES[engine].can(mode, concurrency):
                    yield Turn(engine, mode, concurrency, number)


def concurrencies(mode: Mode, matrix: Matrix) -> Sequence[int]:
    """Prefill and context are measured with one request at a time."""
    return matrix.concurrencies if mode in (Mode.PLAIN, Mode.SPECULATION) else (1,)


@dataclass(frozen=True, slots=True)
class Runner:
    """Makes jobs of turns and has workers carry them out."""

    places: Places
    texts: Sequence[str]
    tokenize: Tokenize
    eos_ids: Sequence[int]
    threads: int

    def run(self, matrix: Matrix, skipped: Mapping[str, str], file: TextIO) -> None:
        """Write a record for every turn; engines in `skipped` cannot run, and their reasons are recorded too."""
        for name, reason in skipped.items():
            write(file, Failure(name, reason))
        loads = {mode: workload(mode, self.texts, self.tokenize) for mode in matrix.modes}
        usable = replace(matrix, engines=[name for name in matrix.engines if name not in skipped])
        everything = list(turns(usable))
        for number, turn in enumerate(everything, 1):
            job = self.job(ENGINES[turn.engine], turn, loads[turn.mode])
            for record in self._measure(job, turn):
                print(f"[{number}/{len(everything)}] {record}", flush=True)
                write(file, record)

    def job(self, engine: Engine, turn: Turn, load: Workload) -> Job:
        return Job(
            adapter=engine.adapter,
            model=str(self.places.form(engine.form)),
            options=engine.options,
            mode=turn.mode,
            concurrency=turn.concurrency,
            threads=self.threads,
            prompts=load.prompts,
            warm_up=warm_up(self.tokenize),
            max_new_tokens=load.max_new_tokens,
            eos_ids=list(self.eos_ids),
        )

    def _measure(self, job: Job, turn: Turn) -> list[Record]:
        engine = ENGINES[turn.engine]
        log = self.places.log(f"{turn.engine}-{turn.mode.value}-{turn.concurrency}-{turn.round}")
        try:
            answer = work(job, self.places.python(engine.environment), log)
        except WorkerFailed as error:
            return [Failure(turn.engine, str(error), turn.mode.value, turn.concurrency, turn.round)]
        return [
            Measurement(
                engine=turn.engine,
                mode=turn.mode.value,
                concurrency=turn.concurrency,
                round=turn.round,
                prompt_tokens=reading.prompt_tokens,
                tokens=reading.tokens,
                seconds=round(reading.seconds, 4),
                load_seconds=round(answer.load_seconds, 1),
                versions=answer.versions,
            )
            for reading in answer.readings
        ]


class WorkerFailed(Exception):
    """A worker gave no answer."""


def work(job: Job, python: Path, log: Path) -> Answer:
    """Carry a job out in a process of its own, whose output goes to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("w") as output:
        file = Path(folder) / "answer.json"
        process = subprocess.Popen(
            [str(python), *WORKER, str(file)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**environment(), "OMP_NUM_THREADS": str(job.threads)},
            start_new_session=True,
        )
        try:
            process.communicate(job.to_json(), timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(f"no answer after {LONGEST_SECONDS} s ({log.name})") from None
        finally:
            _end(process)
        if file.exists():
            return Answer.from_json(file.read_text())
    raise WorkerFailed(f"it ended with {process.returncode}: {last_words(log.read_text(errors='replace'), log)}")


def _end(process: subprocess.Popen[str]) -> None:
    """Nothing that the worker started may outlive it and slow the next one."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def write(file: TextIO, record: Record) -> None:
    """Append a line at once, so that an interrupted run keeps what it found."""
    file.write(json.dumps({"kind": record.kind, **asdict(record)}) + "\n")
    file.flush()
