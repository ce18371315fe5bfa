"""From an engine folder to TensorRT-LLM's executor, warm. Runs in the engine's own process, which imports it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from trtspec.capabilities import ENGINE
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError, EngineFolderError, MissingDependency
from trtspec.executors.messages import Report
from trtspec.executors.tensorrt_llm import engine_spec, gate
from trtspec.executors.tensorrt_llm.answers import Answer
from trtspec.executors.tensorrt_llm.engine_loop import EngineLoop
from trtspec.executors.tensorrt_llm.engine_spec import TARGET, FolderSpec
from trtspec.executors.tensorrt_llm.executor_arguments import choices, executor_arguments
from trtspec.executors.tensorrt_llm.failures import first_line
from trtspec.executors.tensorrt_llm.iteration_stats import idle, read_stats
from trtspec.executors.tensorrt_llm.probe import INSTALL, PINNED, is_installed
from trtspec.executors.tensorrt_llm.request_arguments import request_arguments
from trtspec.manifest import Manifest
from trtspec.narrowing import narrowed
from trtspec.speculative import TYPICAL, SpeculativeConfig
from trtspec.types import EngineInfo, EngineStats, Limits, Method, OutputLaw, Request

_OF_EMBEDDED = ("max_pass_tokens", "kv_block_tokens", "threads", "device", "cuda_graphs")
"""Options that TensorRT-LLM settles by itself, or when an engine is built."""
_WARM_UP_SECONDS = 300.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class OpenedExecutor:
    """Implements `Opened` over TensorRT-LLM's executor of compiled engines."""

    loop: EngineLoop
    info: EngineInfo

    def stats(self) -> EngineStats:
        return self.loop.stats

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        self.loop.run(inbox, publish)

    def check(self) -> None:
        self.loop.check()


def open_engine(directory: Path, manifest: Manifest, options: EngineOptions) -> OpenedExecutor:
    """Open the folder's engines. Raises what an operator can mend, with what to do."""
    folder = engine_spec.read(directory)
    _check_version(folder)
    check_options(options)
    if folder.flow != ENGINE:
        raise EngineFolderError(f"{directory} is of the {folder.flow} flow, which this release does not serve yet")
    speculative = narrowed(manifest.speculative, options.speculative)
    if speculative.method is Method.NONE and manifest.speculative.method not in (Method.NONE, Method.NGRAM):
        raise ConfigError(
            f"--speculative-config asks for none and the engine was compiled for {manifest.speculative.method.value}, "
            "which it cannot leave out; build one with --method none"
        )
    return _open(directory, manifest, folder, speculative, options)


def _open(
    directory: Path, manifest: Manifest, folder: FolderSpec, speculative: SpeculativeConfig, options: EngineOptions
) -> OpenedExecutor:
    from trtspec.executors.tensorrt_llm import bindings

    arguments = run_time_arguments(TARGET, folder, speculative, options)
    try:
        executor = bindings.open_executor(directory / TARGET, arguments)
    except RuntimeError as error:
        raise EngineFolderError(f"{directory}: TensorRT-LLM cannot open it: {first_line(str(error))}") from error
    stats, block = _warm_up(executor, bindings, manifest)
    info = engine_info(manifest, folder, speculative, arguments["max_batch_size"], stats.total_blocks * block)
    nodes = nodes_by_depth(speculative)

    def make(request: Request, now: float) -> list[tuple[Answer, Any]]:
        gate.check(request, info, folder.max_prompt_tokens)
        made = [request_arguments(request, index, now) for index in range(request.n)]
        return [
            (Answer(request, index, item["end_id"], nodes), bindings.make_request(item, manifest.vocabulary_size))
            for index, item in enumerate(made)
        ]

    loop = EngineLoop(executor, make, stats, tokens_per_block=block, stall_seconds=options.stall_seconds)
    return OpenedExecutor(loop, info)


def check_options(options: EngineOptions) -> None:
    """Refuse options that would change nothing here."""
    for item in fields(options):
        if item.name in _OF_EMBEDDED and getattr(options, item.name) != item.default:
            flag = "--" + item.name.replace("_", "-")
            raise ConfigError(f"{flag} is for embedded engines, and this one was built for TensorRT-LLM; leave it out")


def run_time_arguments(
    name: str, folder: FolderSpec, speculative: SpeculativeConfig, options: EngineOptions
) -> dict[str, Any]:
    """What the builder planned, as far as the operator allows: a smaller batch, a bounded pool, no shared blocks."""
    arguments = executor_arguments(name, folder, speculative)
    pool: dict[str, Any] = dict(arguments["kv_cache_config"])
    default = next(item.default for item in fields(EngineOptions) if item.name == "kv_cache_mib")
    if options.kv_cache_mib != default:
        tokens = options.kv_cache_mib * _MIB // folder.engines[name].kv_bytes_per_token
        pool |= {"max_tokens": tokens, "free_gpu_memory_fraction": None}
    pool["enable_block_reuse"] = pool["enable_block_reuse"] and options.prefix_sharing
    batch = min(options.max_batch_size, folder.max_batch_size)
    return {**arguments, "kv_cache_config": pool, "max_batch_size": batch}


def nodes_by_depth(speculative: SpeculativeConfig) -> tuple[int, ...]:
    """How many nodes every draft of the engine has at each depth; for windows and growing trees, at least one."""
    if speculative.method is Method.NONE:
        return ()
    if speculative.dynamic_tree or speculative.method is Method.LOOKAHEAD:
        return (1,) * speculative.draft_tokens
    depths = [len(path) for path in choices(speculative)]
    return tuple(depths.count(depth) for depth in range(1, max(depths) + 1))


def engine_info(
    manifest: Manifest, folder: FolderSpec, speculative: SpeculativeConfig, batch: int, pool_tokens: int
) -> EngineInfo:
    """What is served."""
    engine = folder.engines[TARGET]
    context = manifest.max_context_tokens
    return EngineInfo(
        model=manifest.model,
        engine_id=manifest.engine_id,
        engine_facts=manifest.facts,
        backend=manifest.backend,
        method=speculative.method,
        architecture=manifest.architecture,
        dtype=manifest.dtype,
        quantization=manifest.quantization,
        limits=Limits(
            max_context_tokens=context,
            max_batch_size=batch,
            max_draft_tokens=speculative.draft_tokens,
            max_tree_nodes=speculative.draft_nodes,
            max_pass_tokens=engine.max_num_tokens,
            kv_cache_tokens=pool_tokens or context,
            vocabulary_size=manifest.vocabulary_size,
        ),
        output_law=OutputLaw.TYPICAL if speculative.acceptance == TYPICAL else OutputLaw.EXACT,
        default_draft_tokens=speculative.draft_tokens,
        acceptance=speculative.acceptance,
        flow=folder.flow,
        derived_statistics=True,
        unverified_target=manifest.drafter is not None and manifest.drafter.unverified,
    )


def _check_version(folder: FolderSpec) -> None:
    if not is_installed():
        raise MissingDependency(f"this engine needs TensorRT-LLM {folder.version}, which is not installed; {INSTALL}")
    import tensorrt_llm

    if tensorrt_llm.__version__ != folder.version:
        raise EngineFolderError(
            f"the engine was built with TensorRT-LLM {folder.version} and {tensorrt_llm.__version__} is installed; "
            f"build it again, or install {PINNED}"
        )


def _warm_up(executor: Any, bindings: Any, manifest: Manifest) -> tuple[EngineStats, int]:
    """Generate a few tokens, so that the first request does not pay for it; tells the pool and its block's tokens."""
    request = Request("warm-up", prompt=(0,) * 8, max_tokens=4, tenant="\0warm-up")
    made: Mapping[str, Any] = request_arguments(request, 0, time.monotonic())
    executor.enqueue_request(bindings.make_request(made, manifest.vocabulary_size))
    stats, block, until = EngineStats(), 0, time.monotonic() + _WARM_UP_SECONDS
    while time.monotonic() < until:
        responses = executor.await_responses(timeout=timedelta(seconds=1))
        iterations = executor.get_latest_iteration_stats()
        stats = read_stats(iterations, stats)
        block = next((item.kv_cache_stats.tokens_per_block for item in iterations if item.kv_cache_stats), block)
        for response in responses:
            if response.has_error():
                raise EngineFolderError(f"it does not generate: {first_line(response.error_msg)}; build it again")
            if response.result.is_final:
                return idle(stats), block
    raise EngineFolderError(f"the engine did not answer in {_WARM_UP_SECONDS:.0f} s")
