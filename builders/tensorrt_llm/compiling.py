"""Runs the ranks of an engine, some at a time, and compares what came out with what was planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from builders.progress import working_on
from builders.tensorrt_llm.additions import Additions
from builders.tensorrt_llm.engine_plan import MODE_NUMBERS, QUANT_ALGOS, EnginePlan
from builders.tensorrt_llm.job import Job
from trtspec.errors import TrtspecError

_MPI = ("OMPI_", "PMIX_", "PMI_", "MPI_", "MPICH_", "UCX_", "SLURM_")
"""Variables of a launcher, without which a process starts MPI for itself alone."""
_LAST_LINES = 5


class CompileError(TrtspecError):
    """TensorRT-LLM stopped, or made another engine than was planned."""


def compile_engine(plan: EnginePlan, hf_model: Path, output: Path, scratch: Path) -> None:
    """Convert and compile every rank of one engine."""
    scratch.mkdir(parents=True)
    job = make_job(plan, hf_model, output, scratch)
    plan.asked.timings.parent.mkdir(parents=True, exist_ok=True)
    if plan.additions is not None:
        write_additions(plan.additions, job, plan)
    file = job.write(scratch / "job.json")
    size = job.world_size
    with (
        working_on(f"compiling the {plan.name}, ranks 0 to {size - 1}"),
        ThreadPoolExecutor(plan.asked.workers) as pool,
    ):
        list(pool.map(lambda rank: _run(file, rank, size), range(size)))
    check_engine(plan, output)


def make_job(plan: EnginePlan, hf_model: Path, output: Path, scratch: Path) -> Job:
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
    )


def write_additions(additions: Additions, job: Job, plan: EnginePlan) -> None:
    """Each rank's share of the drafter's tensors."""
    dtype: torch.dtype = getattr(torch, plan.dtype)
    for rank in range(job.world_size):
        shares = {item.name: item.of_rank(rank, plan.asked.tp, dtype) for item in additions.tensors}
        save_file(shares, job.additions(rank))


def _run(job: Path, rank: int, world_size: int) -> None:
    command = [sys.executable, "-m", "builders.tensorrt_llm.rank", str(job), str(rank)]
    log = job.with_name(f"rank{rank}.log")
    with log.open("w") as file:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=dict(_environment(rank))
        )
    if done.returncode:
        told = "\n  ".join(log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise CompileError(f"rank {rank} of {world_size} stopped with exit code {done.returncode}:\n  {told}")


def _environment(rank: int) -> Iterator[tuple[str, str]]:
    """A rank is compiled alone, on a GPU of its own where there are several."""
    for name, value in os.environ.items():
        if not name.startswith(_MPI):
            yield name, value
    visible = [item for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if item]
    if len(visible) > 1:
        yield "CUDA_VISIBLE_DEVICES", visible[rank % len(visible)]


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
    files = [f"rank{rank}.engine" for rank in range(plan.asked.tp * plan.asked.pp)]
    wrong += [f"{name} is missing" for name in files if not (output / name).is_file()]
    if wrong:
        raise CompileError(f"the {plan.name}'s engine is not the planned one: {'; '.join(wrong)}")
