"""`python -m scripts.gpu_check`: the command line, and the order in which the embedded engine is checked."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from scripts.gpu_check.choices import choices_agree, kernels_run
from scripts.gpu_check.equality import (
    SAMPLED,
    SCHEDULES,
    Check,
    all_equal,
    drafts_pass,
    equal_within_margin,
    references,
    texts,
)
from scripts.gpu_check.passes import recorded_passes
from scripts.gpu_check.report import Section, machine, render
from scripts.gpu_check.speed import measure
from scripts.gpu_check.subject import TINY, TINY_HALF, USEFUL, Subject, make
from scripts.gpu_check.tensorrt_llm import checking
from trtspec.config import EngineOptions
from trtspec.errors import TrtspecError

FAILED, WRONG, NO_GPU = 1, 2, 3
"""Exit codes: something differs, a wrong command line or engine, nothing to check on."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run."""

    prompts: int
    tokens: int
    measured_tokens: int


FULL = Extent(prompts=16, tokens=64, measured_tokens=128)
QUICK = Extent(prompts=3, tokens=16, measured_tokens=8)


class Progress:
    """Says what is going on, with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)

    def tell(self, checks: Sequence[Check]) -> list[Check]:
        for check in checks:
            self.say(f"{'ok    ' if check.passed else 'FAILED'} {check.name}: {check.detail}")
        return list(checks)


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    if options.tensorrt_llm:
        return _tensorrt_llm(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            f"gpu-check: PyTorch {torch.__version__} finds no GPU, so nothing was checked; install an NVIDIA driver "
            "and a PyTorch built for CUDA (TRTSPEC_TORCH_INDEX names its index), or check on the CPU: --device cpu",
            file=sys.stderr,
        )
        return NO_GPU
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("trtspec").setLevel(logging.ERROR)
    try:
        return _run(torch.device(options.device), QUICK if options.quick else FULL, options)
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG


def _tensorrt_llm(options: argparse.Namespace) -> int:
    """TensorRT-LLM beside the table of what we call, and every method of it."""
    progress, extent = Progress(), QUICK if options.quick else FULL
    snapshot = None if options.output is None else options.output.with_suffix(".signatures.json")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    checks, seen = checking.check(
        prompts=extent.prompts, tokens=extent.tokens, dtype=options.dtype, snapshot=snapshot, say=progress.say
    )
    progress.tell(checks)
    report = render(machine(torch.device("cpu")), checks, [], progress.seconds, "TensorRT-LLM on this machine")
    report += f"\n{seen}\n"
    print("\n" + report)
    if options.output is not None:
        options.output.write_text(report, encoding="utf-8")
    return 0 if all(item.passed for item in checks) else FAILED


def _run(device: torch.device, extent: Extent, options: argparse.Namespace) -> int:
    progress, where = Progress(), machine(device)
    progress.say(where)
    torch.set_float32_matmul_precision("highest")  # for transformers as for ours
    with tempfile.TemporaryDirectory() as folder:
        progress.say("making models and engines")
        exact, half = (make(size, Path(folder)) for size in (TINY, TINY_HALF))
        checks = progress.tell([kernels_run(exact, device)])
        checks += _float32(exact, device, extent, progress) + _bfloat16(half, device, extent, progress)
        measured = half if options.quick else make(USEFUL, Path(folder))
        checks += progress.tell([recorded_passes(measured, measured.prompts(extent.prompts), extent.tokens, device)])
        section = _speed(measured, device, extent, progress)
    report = render(where, checks, [section], progress.seconds)
    print("\n" + report)
    if options.output is not None:
        options.output.write_text(report, encoding="utf-8")
    return 0 if all(check.passed for check in checks) else FAILED


def _float32(subject: Subject, device: torch.device, extent: Extent, progress: Progress) -> list[Check]:
    """Text is exact."""
    progress.say("float32: every schedule against transformers, greedy and sampled")
    prompts, options = subject.prompts(extent.prompts), EngineOptions(device=device.type, threads=1)
    expected = references(subject.reference(device), prompts, extent.tokens)
    greedy = asyncio.run(texts(subject, prompts, extent.tokens, options))
    sampled = asyncio.run(texts(subject, prompts, extent.tokens, options, SAMPLED))
    plain = [text.ids for text in sampled[SCHEDULES[0]]]
    return progress.tell(
        [
            all_equal("float32 text is that of transformers", expected, greedy),
            drafts_pass("drafts are accepted where there are any", greedy),
            all_equal("seeded float32 text is the same by every schedule", plain, sampled),
            recorded_passes(subject, prompts, extent.tokens, device),
            choices_agree(subject, prompts, extent.tokens, device),
        ]
    )


def _bfloat16(subject: Subject, device: torch.device, extent: Extent, progress: Progress) -> list[Check]:
    """Text is exact up to near-ties."""
    progress.say("bfloat16: every schedule against transformers, up to near-ties")
    prompts, model = subject.prompts(extent.prompts), subject.reference(device)
    expected = references(model, prompts, extent.tokens)
    said = asyncio.run(texts(subject, prompts, extent.tokens, EngineOptions(device=device.type, threads=1)))
    name = "bfloat16 text is that of transformers up to near-ties"
    agree = choices_agree(subject, prompts, extent.tokens, device)
    return progress.tell([equal_within_margin(name, model, prompts, expected, said), agree])


def _speed(subject: Subject, device: torch.device, extent: Extent, progress: Progress) -> Section:
    """The same loads with graphs and without; a CPU has none."""
    speeds = []
    for graphs in (True, False) if device.type == "cuda" else (False,):
        progress.say(f"measuring {subject.size.name} {subject.dtype_name}, CUDA graphs {'on' if graphs else 'off'}")
        # What an earlier load cached would spare the next one its prefill.
        options = EngineOptions(device=device.type, cuda_graphs=graphs, prefix_sharing=False)
        speeds += asyncio.run(measure(subject, subject.prompts(extent.prompts), extent.measured_tokens, options))
    size = subject.size
    title = f"{size.name}: {size.layers} layers of {size.hidden}, vocabulary {size.vocabulary}, {subject.dtype_name}"
    return Section(title, speeds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check",
        description="Check on a GPU that engines say what they must, and measure them. Makes its own models.",
        epilog="exit codes: 0 all holds, 1 something differs, 2 wrong command line or engine, 3 no GPU or no "
        "TensorRT-LLM",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--embedded", action="store_true", help="the embedded engine, eager runner")
    what.add_argument(
        "--tensorrt-llm",
        action="store_true",
        help="the installed TensorRT-LLM: its signatures beside ours, and engines of every method; --output also keeps "
        "the signatures",
    )
    dtypes = ("bfloat16", "float16", "float32")
    parser.add_argument("--dtype", choices=dtypes, default="bfloat16", help="of TensorRT-LLM (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few prompts and tokens, with --embedded tiny models: whether it runs at all",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there too, as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
