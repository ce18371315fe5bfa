"""`python -m scripts.mutation`: are the tests of decoding any good? Small changes are made to the code, one at a time.

A mutant that no test notices survives. What is known of survivors is told in `explained.json`; the report shows both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scripts.mutation import mutants, reach, running
from scripts.mutation.mutants import Mutant, Source
from scripts.mutation.reach import Reach
from scripts.mutation.report import SAME, Finding, explanations, written
from scripts.mutation.running import Outcome, Task, Trial
from scripts.mutation.session import Session

ROOT = Path(__file__).parents[2]
PACKAGE = "trtspec/decoding"
TESTS = ("tests/unit", "tests/cases", "tests/law", "--ignore-glob=tests/unit/test_tensorrt_llm_*")
"""The double of TensorRT-LLM decodes with the engine, too, but those tests are not about it."""

SHARE, LEAST, SEED, BUDGET = 0.2, 8, 7, 8.0


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    session = Session(options.session)
    sample = list(_sample(options))
    unknown = () if session.reach_file.exists() else options.tests
    measured = options.measure or unknown
    if measured and not _measured(session.reach_file, measured):
        print(f"the tests fail before anything is changed: {session.reach_file.with_suffix('.log')} tells why")
        return 2
    _try_all(session, reach.load(session.reach_file), sample, options)
    findings = [Finding(mutant, session.first[mutant.key], session.last[mutant.key]) for _, mutant in sample]
    text = written(findings, " ".join(["python -m scripts.mutation", *argv]), _about(options), explanations())
    if options.output:
        options.output.write_text(text)
    print(text)
    return 0


def _about(options: argparse.Namespace) -> str:
    return (
        f"The sample: {options.share:.0%} of the places of each module, {options.least} at least as far as there are "
        f"any, with seed {options.seed}. For each mutant those of `{' '.join(options.tests)}` that run its line, as "
        f"many as take {options.budget:g} s, the first case of each test function first."
    )


def _sample(options: argparse.Namespace) -> Iterator[tuple[Source, Mutant]]:
    for source in mutants.sources(ROOT, PACKAGE):
        if not options.modules or source.path.stem in options.modules:
            for mutant in mutants.sample(source, options.share, options.least, options.seed):
                yield source, mutant


def _measured(file: Path, tests: Sequence[str]) -> bool:
    print(f"running {' '.join(tests)} under coverage, once", file=sys.stderr, flush=True)
    process = multiprocessing.get_context("spawn").Process(target=reach.measure, args=(ROOT, PACKAGE, tests, file))
    process.start()
    process.join()
    return process.exitcode == 0


def _try_all(session: Session, reached: Reach, sample: Sequence[tuple[Source, Mutant]], options: Any) -> None:
    """Those without an outcome; each outcome is kept at once."""
    same = {place for place, known in explanations().items() if known.kind in SAME}
    waiting = [
        (source, mutant)
        for source, mutant in sample
        if not session.is_settled(mutant, options.again and (mutant.file, mutant.after) not in same)
    ]
    tasks = [_task(reached, source, mutant, options.budget) for source, mutant in waiting]
    for task in tasks:
        if not task.tests:
            session.keep(task.mutant, Trial(Outcome.UNREACHED))
    tasks = [task for task in tasks if task.tests]
    columns = TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(tasks))

        def keep(task: Task, trial: Trial) -> None:
            session.keep(task.mutant, trial)
            progress.advance(bar)

        running.run_all(ROOT, tasks, options.jobs, keep)


def _task(reached: Reach, source: Source, mutant: Mutant, budget: float) -> Task:
    tests = reached.tests(source, mutant.line, budget)
    return Task(mutant, tests, reached.total(tests))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutation", description=__doc__)
    parser.add_argument("--modules", nargs="*", default=(), metavar="NAME", help=f"of {PACKAGE} (default: all)")
    add = parser.add_argument
    add("--share", type=float, default=SHARE, help="of a module's sites (default: %(default)s)")
    add("--least", type=int, default=LEAST, help="mutants of a module (default: %(default)s)")
    add("--seed", type=int, default=SEED, help="of the sample (default: %(default)s)")
    add("--budget", type=float, default=BUDGET, metavar="SECONDS", help="of tests, for a mutant (default: %(default)s)")
    add("--jobs", type=int, default=max(1, (os.cpu_count() or 1)), help="runs at once (default: %(default)s)")
    add(
        "--session",
        type=Path,
        default=ROOT / ".mutation",
        metavar="FOLDER",
        help="keeps outcomes; a run that was interrupted goes on there (default: .mutation)",
    )
    add("--tests", nargs="*", default=TESTS, metavar="ARGUMENT", help="of pytest (default: %(default)s)")
    add("--measure", nargs="*", default=(), metavar="ARGUMENT", help="of pytest: new tests, of which nothing is known")
    add("--again", action="store_true", help="try those once more that survived and are not said to be the same")
    add("--output", type=Path, metavar="FILE", help="write the report there too, as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
