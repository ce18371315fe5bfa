"""The order in which TensorRT-LLM is checked, and the report of it."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
import transformers

from scripts.bench.peers.report import ABSENT, table
from scripts.gpu_check.checks import Check, Progress, exit_code
from scripts.gpu_check.equality import parting
from scripts.gpu_check.report import machine, render
from scripts.gpu_check.running import extent_of
from scripts.gpu_check.subject import Size
from scripts.gpu_check.tensorrt_llm.methods import CASES, Case, Outcome, make_targets, try_case
from scripts.gpu_check.tensorrt_llm.signatures import Found, compare
from trtspec.executors.tensorrt_llm.probe import PINNED, gpus, probe

SIZE = Size("small", torch.bfloat16, vocabulary=512, hidden=256, layers=8, heads=4, kv_heads=2, spread=0.3)
"""Heads of 64, for which there are kernels, and layers enough for EAGLE-3 to read three."""
_SHARE = 0.9
"""So much of a text must be equal: in half precision it may part at near-ties, and all that follows is another text."""


def run(options: argparse.Namespace) -> int:
    """TensorRT-LLM beside the table of what we call, and every method of it; the exit code."""
    progress, extent = Progress(), extent_of(options)
    snapshot = None if options.output is None else options.output.with_suffix(".signatures.json")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    checks, seen = check(
        prompts=extent.prompts, tokens=extent.tokens, dtype=options.dtype, snapshot=snapshot, say=progress.say
    )
    progress.tell(checks)
    report = render(machine(torch.device("cpu")), checks, [], progress.seconds, "TensorRT-LLM on this machine")
    report += f"\n{seen}\n"
    print("\n" + report)
    if options.output is not None:
        options.output.write_text(report, encoding="utf-8")
    return exit_code(checks)


def check(
    *, prompts: int, tokens: int, dtype: str, snapshot: Path | None, say: Callable[[str], None]
) -> tuple[list[Check], str]:
    """All checks, and the report without its head."""
    found = probe()
    checks = [Check("TensorRT-LLM is the version that this is written for", found.version == PINNED, found.summary)]
    if found.reason is not None:
        return checks, found.summary
    say("comparing the installed signatures with ours")
    symbols = compare()
    checks.append(_signatures(symbols))
    if snapshot is not None:
        snapshot.write_text(json.dumps([asdict(item) for item in symbols], indent=1) + "\n")
    outcomes = _methods(prompts, tokens, dtype, say)
    checks += [_works(item) for item in outcomes] + _equal(outcomes)
    return checks, _report(symbols, outcomes)


def _signatures(symbols: Sequence[Found]) -> Check:
    wrong = [item for item in symbols if item.differences]
    silent = sum(item.told is None for item in symbols)
    detail = f"{len(symbols)} symbols, {len(wrong)} differ, {silent} tell no signature"
    return Check("what we call is as its table has it", not wrong, detail)


def _methods(prompts: int, tokens: int, dtype: str, say: Callable[[str], None]) -> list[Outcome]:
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        targets, asked = make_targets(replace(SIZE, dtype=getattr(torch, dtype)), root, prompts)
        for case in CASES:
            say(f"building and running {case}")
            outcomes.append(try_case(case, targets[case.target], root, asked, tokens, _dtype(case, dtype)))
            say(outcomes[-1].error or f"{outcomes[-1].tokens_per_second:.0f} tokens/s")
    return outcomes


def _dtype(case: Case, dtype: str) -> str:
    """EAGLE engines are of half precision, whatever the others are."""
    return "bfloat16" if case.method == "eagle" else dtype


def _works(outcome: Outcome) -> Check:
    return Check(f"{outcome.case} builds and answers", outcome.error is None, outcome.error or "yes")


def _equal(outcomes: Sequence[Outcome]) -> list[Check]:
    """Greedy text with speculation beside that of the same flow and target without."""
    checks = []
    for outcome in outcomes:
        case = outcome.case
        plain = next(item for item in outcomes if (item.case.flow, item.case.target) == (case.flow, case.target))
        if outcome is plain or outcome.error or plain.error:
            continue
        pairs = list(zip(plain.texts, outcome.texts, strict=True))
        same = sum(parting(a.ids, b.ids) for a, b in pairs)
        total = sum(len(a.ids) for a, _ in pairs)
        name = f"{case} says what none says"
        checks.append(Check(name, same >= _SHARE * total, f"{same} of {total} tokens before the texts part"))
    return checks


def _report(symbols: Sequence[Found], outcomes: Sequence[Outcome]) -> str:
    devices = [f"{item.name} ({item.compute_capability}), driver {item.driver}" for item in gpus()] or ["no GPU found"]
    wrong = [[item.symbol, "; ".join(item.differences)] for item in symbols if item.differences]
    parts = [
        "; ".join(devices),
        "## Methods",
        table(["engine", "tokens/s", "tokens a pass", "accepted"], _rows(outcomes)),
    ]
    if wrong:
        parts += ["## Signatures that differ", table(["symbol", "how"], wrong)]
    return "\n\n".join(parts)


def _rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    rows = []
    for item in outcomes:
        stats, failed = item.stats, item.error is not None
        tokens = stats.tokens_per_pass
        rows.append(
            [
                str(item.case),
                ABSENT if failed else f"{item.tokens_per_second:.1f}",
                ABSENT if failed or tokens is None else f"{tokens:.2f}",
                ABSENT if failed else str(stats.accepted),
            ]
        )
    return rows
