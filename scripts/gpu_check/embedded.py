"""The order in which the embedded engine is checked on a device, and measured."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from scripts.gpu_check.checks import NO_GPU, WRONG, Check, Progress, exit_code, no_gpu
from scripts.gpu_check.choices import choices
from scripts.gpu_check.equality import (
    SAMPLED,
    SCHEDULES,
    all_equal,
    drafts_pass,
    equal_within_margin,
    references,
    texts,
)
from scripts.gpu_check.passes import recorded_passes
from scripts.gpu_check.report import Section, machine, render
from scripts.gpu_check.running import Extent, extent_of
from scripts.gpu_check.speed import measure
from scripts.gpu_check.subject import TINY, TINY_HALF, USEFUL, Subject, make
from trtspec.config import EngineOptions
from trtspec.errors import TrtspecError


def run(options: argparse.Namespace) -> int:
    """All of it; the exit code."""
    if options.device == "cuda" and not torch.cuda.is_available():
        print(no_gpu(torch.__version__), file=sys.stderr)
        return NO_GPU
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("trtspec").setLevel(logging.ERROR)
    try:
        return _run(torch.device(options.device), extent_of(options), options)
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG


def _run(device: torch.device, extent: Extent, options: argparse.Namespace) -> int:
    progress, where = Progress(), machine(device)
    progress.say(where)
    torch.set_float32_matmul_precision("highest")  # for transformers as for ours
    with tempfile.TemporaryDirectory() as folder:
        progress.say("making models and engines")
        exact, half = (make(size, Path(folder)) for size in (TINY, TINY_HALF))
        checks = _float32(exact, device, extent, progress) + _bfloat16(half, device, extent, progress)
        measured = half if options.quick else make(USEFUL, Path(folder))
        checks += progress.tell([recorded_passes(measured, measured.prompts(extent.prompts), extent.tokens, device)])
        section = _speed(measured, device, extent, progress)
    report = render(where, checks, [section], progress.seconds)
    print("\n" + report)
    if options.output is not None:
        options.output.write_text(report, encoding="utf-8")
    return exit_code(checks)


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
            *choices(subject, prompts, extent.tokens, device),
        ]
    )


def _bfloat16(subject: Subject, device: torch.device, extent: Extent, progress: Progress) -> list[Check]:
    """Text is exact up to near-ties."""
    progress.say("bfloat16: every schedule against transformers, up to near-ties")
    prompts, model = subject.prompts(extent.prompts), subject.reference(device)
    expected = references(model, prompts, extent.tokens)
    said = asyncio.run(texts(subject, prompts, extent.tokens, EngineOptions(device=device.type, threads=1)))
    name = "bfloat16 text is that of transformers up to near-ties"
    chosen = choices(subject, prompts, extent.tokens, device)
    return progress.tell([equal_within_margin(name, model, prompts, expected, said), *chosen])


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
