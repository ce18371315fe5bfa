"""Runs of tests in which one function, or one module, is a mutant: many, short, each in a process of its own.

Most mutants change what is in a function. For them all tests are imported once, and each run is a fork of that process
in which functions have other code. What changes when a module is imported, such as a default, takes longer: a fork of
a process that has only heavy packages loaded, in which Python finds the mutant where it looks for its module.
No file changes, so that runs beside each other and beside an editor do no harm.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from scripts.mutation.mutants import Mutant
from scripts.mutation.planting import Planter, patch

PRELOADED = (
    *("tests.conftest", "torch", "numpy", "scipy.stats", "transformers", "triton", "numba", "openvino", "grpc"),
    *("rich.progress", "hypothesis", "pytest"),
)
"""In this order: the first one sets variables that others read when they are imported."""
OPTIONS = (
    *("-q", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of plugins that are among the packages above, or below them
)
MOST_MEMORY = 24 << 30
"""Of addresses, in bytes: an endless list is ended before it takes the machine."""


class Outcome(Enum):
    KILLED = "killed"
    """A test failed."""
    BROKEN = "broken"
    """Its module, or tests, could not be imported, or the process crashed; counts as killed."""
    TIMEOUT = "timeout"
    """It took many times as long as the tests do; counts as killed."""
    SURVIVED = "survived"
    UNREACHED = "unreached"
    """No test of those that are looked at runs the code; counts as survived."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a mutant."""

    outcome: Outcome
    killer: str = ""
    """The test that failed."""
    seconds: float = 0.0

    @property
    def survived(self) -> bool:
        return self.outcome in (Outcome.SURVIVED, Outcome.UNREACHED)


@dataclass(frozen=True, slots=True)
class Task:
    """A mutant, the tests that may notice it, in their order, and the seconds that they take as it is."""

    mutant: Mutant
    tests: Sequence[str]
    seconds: float


@dataclass(slots=True)
class _Run:
    task: Task
    process: Any
    pipe: Connection
    start: float

    @property
    def overdue(self) -> bool:
        """In real time, of a machine that others use too. Processor time is bounded in the process itself."""
        return time.monotonic() > self.start + 1200 + 60 * self.task.seconds

    def trial(self) -> Trial:
        self.process.join()
        seconds = time.monotonic() - self.start
        try:
            told = self.pipe.recv() if self.pipe.poll() else None
        except EOFError:
            told = None
        if told is not None:
            outcome, killer = told
            return Trial(outcome, killer, seconds)
        return Trial(_silent_outcome(self.process.exitcode, self.task.mutant), "", seconds)


def run_all(root: Path, tasks: Sequence[Task], jobs: int, keep: Callable[[Task, Trial], None]) -> None:
    """Try all mutants, `jobs` at once, after a run in which nothing is changed and all their tests must pass."""
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.devnull  # examples that failed once would be tried again
    _let_examples_take_their_time()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(PRELOADED))
    imported = [task for task in tasks if task.mutant.at_import]
    patched = [task for task in tasks if not task.mutant.at_import]

    def try_them(items: dict[str, pytest.Item]) -> None:
        forks = multiprocessing.get_context("fork")
        _run(forks, _patch_and_test, (items,), [_unchanged(patched)], 1, _must_pass)
        _run(forks, _patch_and_test, (items,), patched, jobs, keep)

    with _own_temporary_files():
        if patched:
            files = sorted({test.partition("::")[0] for task in patched for test in task.tests})
            code = pytest.main([*OPTIONS, "-s", "-q", *files], plugins=[_Loop(try_them)])
            if code != pytest.ExitCode.OK:
                raise RuntimeError(f"pytest ended with {code!r} before it ran a test")
        if imported:
            _run(server, _import_and_test, (root,), [_unchanged(imported)], 1, _must_pass)
            _run(server, _import_and_test, (root,), imported, jobs, keep)


def _unchanged(tasks: Sequence[Task]) -> Task:
    """All tests of some tasks, with a module as it is."""
    tests = dict.fromkeys(test for task in tasks for test in task.tests)
    mutant = replace(tasks[0].mutant, text=tasks[0].mutant.original)
    return Task(mutant, list(tests), sum(task.seconds for task in tasks))


def _must_pass(task: Task, trial: Trial) -> None:
    if not trial.survived:
        raise RuntimeError(f"{trial.killer or trial.outcome.value}: a test fails here although nothing is changed")


def _let_examples_take_their_time() -> None:
    """Hypothesis fails what takes longer than it should, which on a busy machine would look like a killed mutant."""
    hypothesis.settings.register_profile("mutation", deadline=None)
    hypothesis.settings.load_profile("mutation")


@contextmanager
def _own_temporary_files() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        yield


def _run(
    context: Any,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    tasks: Iterable[Task],
    jobs: int,
    keep: Callable[[Task, Trial], None],
) -> None:
    waiting, runs = list(reversed(list(tasks))), list[_Run]()
    while waiting or runs:
        while waiting and len(runs) < jobs:
            task = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=target, args=(*arguments, task, theirs))
            process.start()
            theirs.close()
            runs.append(_Run(task, process, ours, time.monotonic()))
        ended = wait([run.process.sentinel for run in runs], timeout=10)
        for run in [run for run in runs if run.process.sentinel in ended or run.overdue]:
            if run.process.sentinel not in ended:
                run.process.kill()
            keep(run.task, run.trial())
            runs.remove(run)


def _silent_outcome(code: int, mutant: Mutant) -> Outcome:
    """Of a process that told of no failure."""
    if code == 0:
        return Outcome.SURVIVED
    if code in (-signal.SIGKILL, -signal.SIGXCPU):
        return Outcome.TIMEOUT
    if code < 0 or code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
        return Outcome.BROKEN
    raise RuntimeError(f"{mutant.file}:{mutant.line} could not be tried: its process ended with {code}")


class _Loop:
    """Instead of running what was collected, hands it to a function."""

    def __init__(self, use: Callable[[dict[str, pytest.Item]], None]) -> None:
        self._use = use

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._use({item.nodeid: item for item in session.items})
        return True


def _patch_and_test(items: dict[str, pytest.Item], task: Task, pipe: Connection) -> None:
    patch(task.mutant)
    _confine(task)
    chosen = [items[test] for test in task.tests]
    failures = _Failures(pipe)
    chosen[0].config.pluginmanager.register(failures)
    for item, after in zip(chosen, [*chosen[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if failures.seen:
            sys.exit(pytest.ExitCode.TESTS_FAILED)


def _import_and_test(root: Path, task: Task, pipe: Connection) -> None:
    _confine(task)
    _let_examples_take_their_time()
    os.chdir(root)
    sys.meta_path.insert(0, Planter(task.mutant))
    files = list(dict.fromkeys(test.partition("::")[0] for test in task.tests))
    sys.exit(pytest.main(["-x", *OPTIONS, *files], plugins=[_Chosen(task.tests), _Failures(pipe)]))


def _confine(task: Task) -> None:
    be_quiet()
    seconds = int(30 + 4 * task.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def be_quiet(log: Path = Path(os.devnull)) -> None:
    """What is printed goes to a file, and nothing is read."""
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for standard in range(3):
        os.dup2(descriptor, standard)


class _Failures:
    """Tells of the first test that fails, or of the first file that cannot be imported."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.seen = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report, Outcome.KILLED)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._tell(report, Outcome.BROKEN)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport, outcome: Outcome) -> None:
        if report.failed and not self.seen:
            self.seen = True
            self._pipe.send((outcome, report.nodeid))


class _Chosen:
    """Runs chosen tests only, in the order in which they were chosen."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])
