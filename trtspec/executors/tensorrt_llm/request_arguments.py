"""One output of a request as the arguments of `tensorrt_llm.bindings.executor.Request`, in plain values.

Everything that TensorRT-LLM has a surprising default for is set: output without the prompt, a seed of its own (unset
ones are all 0), and top_p 1 for the whole law (with neither top_k nor top_p it takes the best token, whatever the
temperature).
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from trtspec.errors import Unsupported
from trtspec.executors.tensorrt_llm.guided import guide_arguments
from trtspec.types import Request, SamplingParams

SEEDS = 1 << 64
_MIDDLE, _SPAN = 100, 200
"""Our priorities are -100 to 100, TensorRT-LLM's 0 to 1."""
_COUNTED = ("presence_penalty", "frequency_penalty")


def request_arguments(request: Request, output_index: int, now: float) -> dict[str, Any]:
    """The arguments for one output; the deadline becomes a time from `now`."""
    end, others = ends(request)
    arguments: dict[str, Any] = {
        "input_token_ids": list(request.prompt),
        "max_tokens": request.max_tokens,
        "streaming": True,
        "sampling_config": sampling_arguments(
            request.sampling, (request.seed + output_index) % SEEDS, len(request.prompt)
        ),
        "output_config": {"exclude_input_from_output": True, "return_perf_metrics": True},
        "end_id": end,
        "pad_id": end,
        "stop_words": [[id_] for id_ in others] or None,
        "bad_words": [list(word) for word in request.sampling.bad_words] or None,
        "priority": (request.priority + _MIDDLE) / _SPAN,
    }
    if request.sampling.logit_bias:
        arguments["embedding_bias"] = dict(request.sampling.logit_bias)
    if request.guide is not None:
        arguments["guided_decoding_params"] = guide_arguments(request)
    if request.deadline is not None:
        arguments["allotted_time_ms"] = timedelta(seconds=max(request.deadline - now, 0.001))
    if request.tenant:
        arguments["cache_salt_id"] = salt(request.tenant)
    return arguments


def sampling_arguments(sampling: SamplingParams, seed: int, prompt_tokens: int) -> dict[str, Any]:
    """Of `SamplingConfig`; what differs from neutral, and `min_tokens` always: unset it is 1, which holds back the end
    of a text's first token as soon as any request beside it has set one.
    """
    found: dict[str, Any] = {"seed": seed, "min_tokens": sampling.min_tokens}
    if sampling.greedy:
        found["top_k"] = 1
    else:
        found |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        found |= {"top_k": sampling.top_k} if sampling.top_k else {}
        found |= {"min_p": sampling.min_p} if sampling.min_p else {}
    if sampling.repetition_penalty != 1.0:
        found["repetition_penalty"] = sampling.repetition_penalty
    found |= _counted(sampling, prompt_tokens)
    return found


def _counted(sampling: SamplingParams, prompt_tokens: int) -> dict[str, Any]:
    """Presence and frequency, which are of the output alone where the runtime would count the prompt.

    Its kernel takes them off what was divided by the temperature already, and we from the logits.
    """
    scale = 1.0 if sampling.greedy else sampling.temperature
    found = {name: getattr(sampling, name) / scale for name in _COUNTED if getattr(sampling, name)}
    return found | ({"prompt_ignore_length": prompt_tokens} if found else {})


def ends(request: Request) -> tuple[int | None, list[int]]:
    """The id that ends the text, and the ids that end it as stop words: the runtime has one of the first kind only."""
    ends = sorted(request.eos_ids - request.stop_ids)
    others = sorted(request.stop_ids) + ends[1:]
    if request.sampling.min_tokens and others:
        raise Unsupported(
            f"min_tokens is {request.sampling.min_tokens} and {len(others)} ids beside the end of the text end an "
            "output; TensorRT-LLM would not hold those back: leave stop_token_ids out, or use the embedded backend",
            feature="min_tokens",
        )
    return (ends[0] if ends else None), others


def salt(tenant: str) -> int:
    """Blocks of the KV cache are shared under equal salts only; 63 bits of a hash keep tenants apart."""
    return int.from_bytes(hashlib.sha256(tenant.encode()).digest()[:8], "big") >> 1
