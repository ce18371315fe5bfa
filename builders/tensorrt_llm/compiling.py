"""Runs the ranks of an engine, some at a time, and compares what came out with what was planned."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from builders.progress import working_on
from builders.tensorrt_llm.additions import Additions
from builders.tensorrt_llm.engine_plan import MODE_NUMBERS, QUANT_ALGOS, EnginePlan
from builders.tensorrt_llm.job import Job
from builders.tensorrt_llm.launching import compile_together
from builders.tensorrt_llm.rank_process import CompileError, run_rank
from trtspec.executors.tensorrt_llm.world import join
from trtspec.ranks import Ranks, launched


def compile_engine(plan: EnginePlan, hf_model: Path, output: Path, scratch: Path, vocabulary: int) -> None:
    """Convert and compile every rank of one engine. Where it tells logits, they are of the first `vocabulary` ids."""
    scratch.mkdir(parents=True)
    job = make_job(plan, hf_model, output, scratch, vocabulary)
    plan.asked.timings.parent.mkdir(parents=True, exist_ok=True)
    if plan.additions is not None:
        write_additions(plan.additions, job, plan)
    file = job.write(scratch / "job.json")
    size = job.world_size
    ranks = launched()
    with working_on(f"compiling the {plan.name}, ranks 0 to {size - 1}"):
        if ranks.size > 1:
            compile_together(file, join(ranks))
        else:
            _compile_here(file, size, plan.asked.workers)
    check_engine(plan, output)


def make_job(plan: EnginePlan, hf_model: Path, output: Path, scratch: Path, vocabulary: int) -> Job:
    """The plan in plain values."""
    additions = plan.additions
    return Job(
        model_class=plan.model_class,
        hf_model=str(hf_model),
        dtype=plan.dtype,
        world_size=plan.asked.tp * plan.asked.pp,
        tp=plan.asked.tp,
        pp=plan.asked.pp,
        quant_algo=QUANT_ALGOS[plan.quantization],
        build=plan.build,
        output=str(output),
        checkpoint=None if additions is None else str(scratch),
        loader=None if additions is None else additions.model_class,
        settings=None if additions is None else additions.settings,
        top_logits=None if plan.top_logits is None else {**asdict(plan.top_logits), "vocabulary": vocabulary},
    )


def write_additions(additions: Additions, job: Job, plan: EnginePlan) -> None:
    """Each rank's share of the drafter's tensors."""
    dtype: torch.dtype = getattr(torch, plan.dtype)
    for rank in range(job.world_size):
        shares = {item.name: item.of_rank(rank, plan.asked.tp, dtype) for item in additions.tensors}
        save_file(shares, job.additions(rank))


def _compile_here(job: Path, size: int, workers: int) -> None:
    """Compile all ranks in processes of this one. Where one fails, the others stop."""
    failed = threading.Event()

    def compile_one(rank: int) -> None:
        try:
            run_rank(job, Ranks(rank, size), stop=failed.is_set)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(compile_one, range(size)))
        except BaseException:  # an interruption, too
            failed.set()
            raise


def check_engine(plan: EnginePlan, output: Path) -> None:
    """The engine's own config must say what the plan expects: a server's limits are those of the plan."""
    found: Mapping[str, Any] = json.loads((output / "config.json").read_text())
    built, spec = found["build_config"], plan.spec
    expected = {
        "max_seq_len": spec.max_seq_len,
        "max_num_tokens": spec.max_num_tokens,
        "max_draft_len": spec.max_draft_len,
        "max_batch_size": spec.max_batch_size,
        "speculative_decoding_mode": MODE_NUMBERS[spec.mode],
    }
    differ = [key for key, value in expected.items() if built.get(key) != value]
    wrong = [f"{key} is {built.get(key)} and {expected[key]} was planned" for key in differ]
    ranks = range(plan.asked.tp * plan.asked.pp)
    files = [f"rank{rank}.engine" for rank in ranks]
    if plan.top_logits is not None:
        files += [f"kernels/rank{rank}/{spec.name}.ptx" for rank in ranks for spec in plan.top_logits.specs]
    wrong += [f"{name} is missing" for name in files if not (output / name).is_file()]
    if wrong:
        raise CompileError(f"the {plan.name}'s engine is not the planned one: {'; '.join(wrong)}")
