"""From a folder of the PyTorch flow to `tensorrt_llm.LLM`. Runs in the engine's own process, which imports it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorrt_llm
from tensorrt_llm import llmapi
from tensorrt_llm.executor.utils import RequestError as LlmRequestError

from trtspec.capabilities import PYTORCH
from trtspec.config import EngineOptions
from trtspec.draft_limits import OFF
from trtspec.errors import ConfigError, EngineFolderError
from trtspec.executors.tensorrt_llm import gate
from trtspec.executors.tensorrt_llm.acceptance_watch import AcceptanceWatch, warning
from trtspec.executors.tensorrt_llm.derived import Derived
from trtspec.executors.tensorrt_llm.engine_spec import FolderSpec
from trtspec.executors.tensorrt_llm.failures import first_line
from trtspec.executors.tensorrt_llm.llm_answers import LlmAnswer
from trtspec.executors.tensorrt_llm.llm_arguments import llm_arguments, sampling_params
from trtspec.executors.tensorrt_llm.llm_loop import LlmLoop
from trtspec.executors.tensorrt_llm.opened_loop import OpenedLoop
from trtspec.executors.tensorrt_llm.serving import engine_info, nodes_by_depth
from trtspec.manifest import Manifest
from trtspec.speculative import FLAG, SpeculativeConfig
from trtspec.types import Method, Request

_log = logging.getLogger(__name__)


def open_engine(
    directory: Path, manifest: Manifest, folder: FolderSpec, speculative: SpeculativeConfig, options: EngineOptions
) -> OpenedLoop:
    """Load the checkpoints. Raises what an operator can mend, with what to do."""
    planned = run_time_arguments(folder, manifest, speculative, options)
    if (permanent := warning(speculative)) is not None:
        _log.warning(permanent)
    try:
        llm = make_llm(llm_arguments(planned, directory))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise EngineFolderError(f"{directory}: TensorRT-LLM cannot load it: {first_line(str(error))}") from error
    info = engine_info(
        manifest,
        PYTORCH,
        speculative,
        max_batch_size=planned["max_batch_size"],
        max_pass_tokens=planned["max_num_tokens"],
        pool_tokens=0,
    )
    nodes = nodes_by_depth(speculative)

    def check(request: Request) -> None:
        gate.check(request, info, folder.max_prompt_tokens)

    def ask(request: Request, index: int) -> tuple[LlmAnswer, Any]:
        made = sampling_params(request, index)
        output = llm.generate_async(
            list(request.prompt),
            sampling_params=tensorrt_llm.SamplingParams(**made),
            streaming=True,
            cache_salt=request.tenant or None,
        )
        return LlmAnswer(request, index, made["end_id"], Derived(nodes)), output

    watch = AcceptanceWatch(speculative, planned["max_batch_size"])
    return OpenedLoop(
        LlmLoop(llm, check, ask, LlmRequestError, watch, stall_seconds=options.tensorrt_llm.stall_seconds), info
    )


def run_time_arguments(
    folder: FolderSpec, manifest: Manifest, speculative: SpeculativeConfig, options: EngineOptions
) -> dict[str, Any]:
    """What the builder planned, as far as the operator allows; speculation may be limited or left out."""
    if options.kv_cache_mib is not None:
        raise ConfigError("--kv-cache-mib: the pytorch flow takes a share of the GPU's memory; leave it out")
    planned = dict(folder.llm)
    if speculative.method is Method.NONE:
        planned["speculative_config"] = None
    else:
        planned["speculative_config"] = _limited(planned["speculative_config"], manifest.speculative, speculative)
    pool = dict(planned["kv_cache_config"])
    pool["enable_block_reuse"] = pool["enable_block_reuse"] and options.prefix_sharing
    batch = min(options.max_batch_size, folder.max_batch_size)
    return {**planned, "kv_cache_config": pool, "max_batch_size": batch}


def _limited(planned: Mapping[str, Any], built: SpeculativeConfig, asked: SpeculativeConfig) -> dict[str, Any]:
    """The decoding configuration with the limits that are asked for, in place of those that were built."""
    if replace(asked, **OFF) != replace(built, **OFF):
        raise ConfigError(
            f"{FLAG}: an LLM of the pytorch flow drafts as it was built, or has method none; what may change are "
            f"{', '.join(OFF)}"
        )
    if asked.limits and planned.get("eagle3_one_model"):
        raise ConfigError(
            f"{FLAG}: {next(iter(asked.limits))} is asked for, and this engine was built to draft inside the target's "
            "passes, where TensorRT-LLM cannot follow it; leave it out, or build the engine with it"
        )
    return {key: value for key, value in planned.items() if key not in OFF} | asked.limits


def make_llm(arguments: Mapping[str, Any]) -> Any:
    """The LLM of these arguments, its configurations as objects."""
    made = dict(arguments)
    made["kv_cache_config"] = llmapi.KvCacheConfig(**made["kv_cache_config"])
    if (speculative := made["speculative_config"]) is not None:
        kind = getattr(llmapi, speculative["class"])
        made["speculative_config"] = kind(**{key: value for key, value in speculative.items() if key != "class"})
    return tensorrt_llm.LLM(**made)
