"""Whether an engine will fit the GPUs that are here. Where none is told, nothing is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from builders.tensorrt_llm.compiled import Compiled
from plugins.aot import nearest_architecture, triton_version
from trtspec.errors import ConfigError, TrtspecError
from trtspec.executors.tensorrt_llm.probe import Gpu
from trtspec.speculative import FLAG

_MIB = 2**20


def check_fits(compiled: Compiled, gpus: Sequence[Gpu]) -> str | None:
    """Refuse weights that a GPU cannot hold. Returns a warning where requests will wait for room."""
    told = [gpu for gpu in gpus if gpu.memory_mib]
    if not told:
        return None
    smallest = min(told, key=lambda gpu: gpu.memory_mib)
    weights = sum(engine.weights_bytes for engine in compiled.engines) / _MIB
    asked = compiled.asked
    if weights > smallest.memory_mib:
        raise ConfigError(
            f"the weights of a rank take {weights:.0f} MiB and {smallest.name} has {smallest.memory_mib} MiB; give "
            f"--tp more than {asked.tp} (or --pp, more than {asked.pp}), or --quantization int8"
        )
    pool = sum(prod((asked.max_batch_size, item.spec.max_seq_len, item.kv_bytes)) for item in compiled.engines) / _MIB
    work = sum(item.top_logits_bytes for item in compiled.engines) / _MIB
    if weights + pool + work <= smallest.memory_mib:
        return None
    beside = f" and {work:.0f} MiB for the logits of {compiled.target.max_num_tokens} tokens" if work else ""
    return (
        f"{asked.max_batch_size} requests of full length need {pool:.0f} MiB for keys and values beside "
        f"{weights:.0f} MiB of weights{beside}, and {smallest.name} has {smallest.memory_mib} MiB: some will wait for "
        f"others; a smaller --max-batch-size{', --max-num-tokens' if work else ''} or --max-seq-len, or more ranks, "
        "would keep them all"
    )


def check_kernels(compiled: Compiled, gpus: Sequence[Gpu]) -> None:
    """Refuse what the plugins of our own loop could not be compiled with, or for, before minutes are spent."""
    if compiled.target.top_logits is None:
        return
    try:
        triton_version()
        for gpu in gpus:
            nearest_architecture(*map(int, gpu.compute_capability.split(".")))
    except TrtspecError as error:
        raise ConfigError(
            f"--method {compiled.speculative.method.value} --flow engine: {error}. Or let TensorRT-LLM verify drafts "
            f'itself ({FLAG} with "acceptance": "engine"), or build with --flow pytorch, or with --backend embedded'
        ) from error
