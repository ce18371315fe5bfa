"""From compiled engines to TensorRT-LLM's executor, warm. Runs in the engine's own process, which imports it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from trtspec.capabilities import ENGINE
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError, EngineFolderError
from trtspec.executors.tensorrt_llm import bindings, gate, guided
from trtspec.executors.tensorrt_llm.answers import Answer
from trtspec.executors.tensorrt_llm.derived import Derived
from trtspec.executors.tensorrt_llm.engine_loop import EngineLoop
from trtspec.executors.tensorrt_llm.engine_spec import DRAFT, EAGLE, EXTERNAL, NONE, TARGET, EngineSpec, FolderSpec
from trtspec.executors.tensorrt_llm.engines import Engine
from trtspec.executors.tensorrt_llm.executor_arguments import executor_arguments
from trtspec.executors.tensorrt_llm.failures import first_line
from trtspec.executors.tensorrt_llm.iteration_stats import idle, read_stats
from trtspec.executors.tensorrt_llm.limiting import Limiter
from trtspec.executors.tensorrt_llm.loop import outputs as rounds
from trtspec.executors.tensorrt_llm.loop.draft_engine import DraftEngine, OpenDraft
from trtspec.executors.tensorrt_llm.opened_loop import OpenedLoop
from trtspec.executors.tensorrt_llm.outputs import Output
from trtspec.executors.tensorrt_llm.pool import check_pool
from trtspec.executors.tensorrt_llm.request_arguments import request_arguments
from trtspec.executors.tensorrt_llm.serving import engine_info, nodes_by_depth
from trtspec.manifest import Manifest
from trtspec.ranks import launched
from trtspec.speculative import FLAG, TYPICAL, SpeculativeConfig
from trtspec.types import EngineStats, Method, Request

_WARM_UP_SECONDS = 300.0
_MIB = 2**20
_NO_MEMORY = "out of memory"
_WAY_OUT = "; end what else uses the GPU, or give keys and values less with --kv-cache-mib"


def open_engine(
    directory: Path, manifest: Manifest, folder: FolderSpec, speculative: SpeculativeConfig, options: EngineOptions
) -> OpenedLoop:
    """Open the folder's engines. Raises what an operator can mend, with what to do."""
    target, own = folder.engines[TARGET], options.tensorrt_llm
    if speculative.method is Method.NONE and target.mode != NONE:
        raise ConfigError(
            f"--speculative-config asks for none and the engine was compiled for {manifest.speculative.method.value}, "
            "which it cannot leave out; build one with --method none"
        )
    _check_shape(target, manifest.speculative, speculative)
    names = [DRAFT, TARGET] if speculative.method is Method.DRAFT_MODEL else [TARGET]  # as their pools are planned
    arguments = {name: run_time_arguments(name, folder, speculative, options) for name in names}
    no_guides = guided.lacking(folder, speculative)
    if speculative.method is Method.NONE and no_guides is None:
        arguments[TARGET]["guided_decoding_config"] = guided.config_arguments(directory)
    check_pool(directory, folder, names, options, launched())
    engines: dict[str, Engine] = {}
    if DRAFT in names:
        _check_alone(directory, folder)
        engines[DRAFT] = DraftEngine(OpenDraft(directory / DRAFT, arguments[DRAFT], folder.logits_size))
    try:
        executor, (stats, block) = open_warm(directory / TARGET, arguments[TARGET], folder.logits_size)
    except BaseException:
        for engine in engines.values():
            engine.shutdown()
        raise
    engines[TARGET] = bindings.LocalEngine(executor, folder.logits_size)
    info = engine_info(
        manifest,
        ENGINE,
        speculative,
        max_batch_size=arguments[TARGET]["max_batch_size"],
        max_pass_tokens=target.max_num_tokens,
        pool_tokens=stats.total_blocks * block,
    )
    if no_guides is not None:
        info = replace(info, lacks=((guided.FEATURE, no_guides),))
    make, limiter = answers(speculative), Limiter()
    if rounds.in_rounds(target):
        info = rounds.told(info, folder.max_prompt_tokens)
        refuses = own.full_vocabulary == "refuse"
        make = rounds.outputs(folder, speculative, info, limiter, refuses_full_vocabulary=refuses)

    def outputs(request: Request) -> Sequence[Output]:
        request = limiter.begun(request)
        gate.check(request, info, folder.max_prompt_tokens)
        return make(request)

    loop = EngineLoop(
        engines,
        outputs,
        stats,
        limiter,
        tokens_per_block=block,
        stall_seconds=own.stall_seconds,
    )
    return OpenedLoop(loop, info)


_COMPILED_IN = {EAGLE: ("num_speculative_tokens", "dynamic_tree"), EXTERNAL: ("acceptance",), NONE: ("acceptance",)}
"""What an engine of a mode cannot do otherwise: the layers of an EAGLE engine are all asked; and who verifies drafts
that come from outside."""


def _check_shape(target: EngineSpec, built: SpeculativeConfig, asked: SpeculativeConfig) -> None:
    """Refuse what the runtime would refuse with less to go by."""
    if asked.method is Method.NONE:
        return
    for name in _COMPILED_IN.get(target.mode, ()):
        if (was := getattr(built, name)) != (now := getattr(asked, name)):
            raise ConfigError(
                f"{FLAG}: {name} is {now!r} and this engine was compiled for {was!r}, which cannot change; leave the "
                "key out, or build another engine"
            )


def answers(speculative: SpeculativeConfig) -> Callable[[Request], Sequence[Output]]:
    """Outputs that the engine generates by itself."""
    nodes, typical = nodes_by_depth(speculative), speculative.acceptance == TYPICAL
    return lambda request: [Answer(request, index, None, Derived(nodes), typical) for index in range(request.n)]


def _check_alone(directory: Path, folder: FolderSpec) -> None:
    """Refuse a draft engine of several ranks, whose processes a launcher would have to start beside the target's."""
    if folder.world_size > 1:
        raise ConfigError(
            f"{directory} has a draft engine and {folder.world_size} ranks, and draft engines are served on one GPU "
            'only; serve it without (--speculative-config \'{"method": "none"}\'), or build with --method ngram'
        )


def open_warm(directory: Path, arguments: Mapping[str, Any], logits_size: int) -> tuple[Any, tuple[EngineStats, int]]:
    """Open one engine and generate with it; tells its pool, and the tokens of a block."""
    try:
        executor = bindings.open_executor(directory, arguments)
    except RuntimeError as error:
        text = first_line(str(error))
        out = _WAY_OUT if _NO_MEMORY in text else ""
        raise EngineFolderError(f"{directory.parent}: TensorRT-LLM cannot open it: {text}{out}") from error
    return executor, _warm_up(executor, logits_size)


def run_time_arguments(
    name: str, folder: FolderSpec, speculative: SpeculativeConfig, options: EngineOptions
) -> dict[str, Any]:
    """What the builder planned, as far as the operator allows: a smaller batch, a bounded pool, no shared blocks."""
    arguments = executor_arguments(name, folder, speculative)
    pool: dict[str, Any] = dict(arguments["kv_cache_config"])
    if options.kv_cache_mib is not None:
        tokens = options.kv_cache_mib * _MIB // folder.engines[name].kv_bytes_per_token
        pool |= {"max_tokens": tokens, "free_gpu_memory_fraction": None}
    if folder.engines[name].mode == EXTERNAL and not options.prefix_sharing:
        raise ConfigError(
            "--no-prefix-sharing: TensorRT-LLM does not open an engine that verifies drafts itself without shared "
            "blocks; leave it out: blocks of different tenants are not shared"
        )
    pool["enable_block_reuse"] = pool["enable_block_reuse"] and options.prefix_sharing
    batch = min(options.max_batch_size, folder.max_batch_size)
    return {**arguments, "kv_cache_config": pool, "max_batch_size": batch}


def _warm_up(executor: Any, logits_size: int) -> tuple[EngineStats, int]:
    """Generate a few tokens, so that the first request does not pay for it; tells the pool and its block's tokens."""
    request = Request("warm-up", prompt=(0,) * 8, max_tokens=4, tenant="\0warm-up")
    made: Mapping[str, Any] = request_arguments(request, 0, time.monotonic())
    executor.enqueue_request(bindings.make_request(made, logits_size))
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
