"""Plain arguments to the objects of `tensorrt_llm.bindings.executor`: no other module of this backend makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import log
from pathlib import Path
from typing import Any

import torch
from tensorrt_llm.bindings import executor as trtllm


def open_executor(directory: Path, arguments: Mapping[str, Any]) -> trtllm.Executor:
    """Open an engine; it is ready for requests, or raises RuntimeError."""
    return trtllm.Executor(directory, trtllm.ModelType.DECODER_ONLY, executor_config(arguments))


def executor_config(arguments: Mapping[str, Any]) -> trtllm.ExecutorConfig:
    """Of the arguments that `executor_arguments` made."""
    outputs = [trtllm.AdditionalModelOutput(**item) for item in arguments["additional_model_outputs"] or ()]
    decoding = arguments["decoding_config"]
    policy = arguments["scheduler_config"]["capacity_scheduler_policy"]
    return trtllm.ExecutorConfig(
        max_beam_width=arguments["max_beam_width"],
        max_batch_size=arguments["max_batch_size"],
        batching_type=getattr(trtllm.BatchingType, arguments["batching_type"]),
        enable_chunked_context=arguments["enable_chunked_context"],
        kv_cache_config=trtllm.KvCacheConfig(**arguments["kv_cache_config"]),
        scheduler_config=trtllm.SchedulerConfig(
            capacity_scheduler_policy=getattr(trtllm.CapacitySchedulerPolicy, policy)
        ),
        decoding_config=None if decoding is None else decoding_config(decoding),
        extended_runtime_perf_knob_config=trtllm.ExtendedRuntimePerfKnobConfig(
            multi_block_mode=arguments["extended_runtime_perf_knob_config"]["multi_block_mode"]
        ),
        additional_model_outputs=outputs or None,
        parallel_config=None if arguments["parallel_config"] is None else parallel_config(arguments["parallel_config"]),
        guided_decoding_config=guided_decoding_config(arguments.get("guided_decoding_config")),
        max_queue_size=arguments["max_queue_size"],
        iter_stats_max_iterations=arguments["iter_stats_max_iterations"],
    )


def parallel_config(arguments: Mapping[str, str]) -> trtllm.ParallelConfig:
    """How the ranks of an engine find each other."""
    return trtllm.ParallelConfig(
        getattr(trtllm.CommunicationType, arguments["communication_type"]),
        getattr(trtllm.CommunicationMode, arguments["communication_mode"]),
    )


def decoding_config(arguments: Mapping[str, Any]) -> trtllm.DecodingConfig:
    """The mode and its one configuration."""
    mode = getattr(trtllm.DecodingMode, arguments["decoding_mode"])()
    if "medusa_choices" in arguments:
        return trtllm.DecodingConfig(decoding_mode=mode, medusa_choices=arguments["medusa_choices"])
    if "eagle_config" in arguments:
        eagle = {key: value for key, value in arguments["eagle_config"].items() if value is not None}
        return trtllm.DecodingConfig(decoding_mode=mode, eagle_config=trtllm.EagleConfig(**eagle))
    sizes = trtllm.LookaheadDecodingConfig(*arguments["lookahead_decoding_config"])
    return trtllm.DecodingConfig(decoding_mode=mode, lookahead_decoding_config=sizes)


def guided_decoding_config(arguments: Mapping[str, Any] | None) -> trtllm.GuidedDecodingConfig | None:
    """What compiles guides, for engines that follow them."""
    if arguments is None:
        return None
    backend = getattr(trtllm.GuidedDecodingConfig.GuidedDecodingBackend, arguments["backend"])
    return trtllm.GuidedDecodingConfig(**{**arguments, "backend": backend})


def make_request(arguments: Mapping[str, Any], logits_size: int) -> trtllm.Request:
    """Of the arguments that `request_arguments` made."""
    made = dict(arguments)
    ids, most = made.pop("input_token_ids"), made.pop("max_tokens")
    made["sampling_config"] = trtllm.SamplingConfig(**made["sampling_config"])
    output = dict(made["output_config"])
    if names := output.get("additional_model_outputs"):
        output["additional_model_outputs"] = [trtllm.AdditionalModelOutput(name, True) for name in names]
    made["output_config"] = trtllm.OutputConfig(**output)
    if draft := made.pop("external_draft_tokens_config", None):
        logits = _certain(draft["tokens"], draft["certain"]) if draft["certain"] else None
        made["external_draft_tokens_config"] = trtllm.ExternalDraftTokensConfig(draft["tokens"], logits)
    if guide := made.pop("guided_decoding_params", None):
        kind = getattr(trtllm.GuidedDecodingParams.GuideType, guide["guide_type"])
        made["guided_decoding_params"] = trtllm.GuidedDecodingParams(kind, guide["guide"])
    if biases := made.get("embedding_bias"):
        made["embedding_bias"] = _bias(biases, logits_size)
    return trtllm.Request(ids, most, **made)


_DOUBT = 2.0**-22
"""What is left of a certain draft's probability for all other tokens together: where both sides were certain, a uniform
number of exactly 1 would reject the draft, and leave nothing to draw from. It is less than the rounding of a law."""


def _certain(tokens: Sequence[int], width: int) -> torch.Tensor:
    """[K, V] in float32: logits by which each token was drafted for certain."""
    logits = torch.full((len(tokens), width), log(_DOUBT / (width - 1)))
    logits[range(len(tokens)), list(tokens)] = 0.0
    return logits


def _bias(biases: Mapping[int, float], logits_size: int) -> torch.Tensor:
    """[V] in float32, the type of the logits of every engine that the builder makes."""
    dense = torch.zeros(logits_size)
    dense[list(biases)] = torch.tensor(list(biases.values()))
    return dense


class LocalEngine:
    """Implements `Engine` over an executor of this process."""

    def __init__(self, executor: trtllm.Executor, logits_size: int) -> None:
        self._executor = executor
        self._logits_size = logits_size

    def enqueue(self, asked: Sequence[Mapping[str, Any]]) -> list[int]:
        requests = [make_request(arguments, self._logits_size) for arguments in asked]
        return list(self._executor.enqueue_requests(requests))

    def cancel_request(self, request_id: int) -> None:
        self._executor.cancel_request(request_id)

    def await_responses(self, timeout: timedelta) -> Sequence[Any]:
        responses: Sequence[Any] = self._executor.await_responses(timeout=timeout)
        return responses

    def get_latest_iteration_stats(self) -> Sequence[Any]:
        iterations: Sequence[Any] = self._executor.get_latest_iteration_stats()
        return iterations

    def shutdown(self) -> None:
        self._executor.shutdown()
