"""One output of a request as the arguments of `tensorrt_llm.SamplingParams`, and the LLM's own, in plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.executors.tensorrt_llm.engine_spec import DRAFT, TARGET
from trtspec.executors.tensorrt_llm.request_arguments import SEEDS
from trtspec.types import Request

_FOLDERS = (TARGET, DRAFT)


def sampling_params(request: Request, output_index: int) -> dict[str, Any]:
    """The arguments for one output. Stop ids come with the text, as from every engine; text is made elsewhere.

    Without a tokenizer an end id has to be named even where texts go on behind it.
    """
    ends = sorted(request.eos_ids - request.stop_ids)
    end = ends[0] if ends else 0
    others = sorted(request.stop_ids) + ends[1:]
    found: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "end_id": end,
        "pad_id": end,
        "ignore_eos": not ends,
        "stop_token_ids": others or None,
        "include_stop_str_in_output": True,
        "detokenize": False,
        "add_special_tokens": False,
        "top_k": 1,
    }
    if not request.sampling.greedy:
        sampling = request.sampling
        found |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        found["seed"] = (request.seed + output_index) % SEEDS
    return found


def llm_arguments(planned: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """What the builder planned, with the folders where they are."""
    found = {**planned, "model": str(directory / TARGET)}
    if (speculative := planned["speculative_config"]) is not None:
        paths = {key: str(directory / value) for key, value in speculative.items() if value in _FOLDERS}
        found["speculative_config"] = {**speculative, **paths}
    return found
