"""Additional outputs of plain engines: what the plugins of the network make of each row of logits.

The logits are those of `transformers`, with the zeros that a head padded for its ranks gives. The plugins' kernels run
as their eager twins, which is what they are tested against, or as themselves. A row belongs to the token that it was
computed for, and so says what comes after it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tensorrt_llm._double.engine_folder import EngineFolder
from tensorrt_llm._double.splits import padded
from torch import Tensor

from plugins import eager, launch
from plugins.sampling_specs import top_logits

KERNELS = "TRTLLM_DOUBLE_KERNELS"


def _top_logits(logits: Tensor, columns: int, numbers: dict[str, int]) -> Tensor:
    return eager.top_logits(logits, numbers["vocabulary"], (columns - 1) // 2)


_TWINS: dict[tuple[str, ...], Callable[[Tensor, int, dict[str, int]], Tensor]] = {
    ("trtspec::TopLogitsParts", "trtspec::TopLogitsMerge"): _top_logits,
}
"""By the plugins of a chain: from logits, columns and the plugins' numbers to the output."""


@functools.cache
def _model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def _logits(path: Path, tokens: Sequence[int]) -> Tensor:
    """What the model says after each token of a text, [T, V]."""
    logits: Tensor = _model(path)(torch.tensor([list(tokens)]), use_cache=False).logits[0].float()
    return logits


def logits_after(path: Path, tokens: Sequence[int]) -> Tensor:
    """What it says after the last one, [V]."""
    return _logits(path, tokens)[-1]


def rows_of(folder: EngineFolder, name: str, tokens: Sequence[int]) -> Tensor:
    """An output's row for each token of a text."""
    logits = _logits(folder.hugging_face, tokens)
    width = padded(folder.pretrained["vocab_size"], folder.world_size)
    logits = torch.nn.functional.pad(logits, (0, width - logits.shape[1]))
    output = folder.outputs[name]
    if os.environ.get(KERNELS):
        return _launched_once(folder.path / name, tokens, logits, output)
    plugins = output["plugins"]
    numbers = {key: value for item in plugins for key, value in item["numbers"].items()}
    return _TWINS[tuple(item["name"] for item in plugins)](logits, output["columns"], numbers)


_LAUNCHED: dict[tuple[Path, tuple[int, ...]], Tensor] = {}
"""Rows by the text before them: to interpret a kernel takes a tenth of a second for each."""


def _launched_once(output: Path, tokens: Sequence[int], logits: Tensor, facts: dict[str, Any]) -> Tensor:
    keys = [(output, tuple(tokens[: place + 1])) for place in range(len(tokens))]
    fresh = [place for place, key in enumerate(keys) if key not in _LAUNCHED]
    rows = _launched(logits[fresh], facts) if fresh else ()
    _LAUNCHED.update({keys[place]: row for place, row in zip(fresh, rows, strict=True)})
    return torch.stack([_LAUNCHED[key] for key in keys])


def _launched(logits: Tensor, output: dict[str, Any]) -> Tensor:
    """The kernels one after another, with the numbers that the network gives them."""
    passed: tuple[Tensor, ...] = (logits,)
    for spec, item in zip(top_logits((output["columns"] - 1) // 2), output["plugins"], strict=True):
        numbers = {key: value for key, value in item["numbers"].items() if key in spec.scalars}
        passed = launch.launch(spec, *passed, **numbers)
    return passed[0]


def context_rows(rows: Tensor, prompt: int, reused: int) -> Tensor:
    """A row for each of the prompt's tokens. Those whose keys were found hold what memory held before: other rows."""
    filled = rows[:prompt].flip(0).clone()
    filled[reused:] = rows[reused:prompt]
    return filled


def generation_rows(rows: Tensor, prompt: int, generated: int, room: int) -> Tensor:
    """For each generated token the row that it was chosen from, with room for as many as may come: [1, room, row]."""
    filled = torch.full((1, room, rows.shape[1]), torch.nan)
    filled[0, :generated] = rows[prompt - 1 : prompt - 1 + generated]
    return filled
