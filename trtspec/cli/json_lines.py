"""What `--json` prints: an event or an answer as a JSON object."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from trtspec.cli.render import tokens_per_second
from trtspec.client import Completion, Event
from trtspec.client.events import word
from trtspec.decoding.stats import SpeculationStats


def as_dict(event: Event) -> dict[str, Any]:
    """An event as a JSON object; enums become their words."""

    def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: word(value) if isinstance(value, enum.Enum) else value for key, value in pairs}

    return {"event": type(event).__name__.lower(), **dataclasses.asdict(event, dict_factory=plain)}


def summary(answer: Completion) -> dict[str, Any]:
    """What a person would read, for programs; unknown is null. Text and reason at the top are the first output's."""
    finished = answer.finished
    return {
        "event": "summary",
        "text": answer.text,
        "finish_reason": word(finished.reason),
        "outputs": [{"text": output.text, "finish_reason": word(output.reason)} for output in answer.outputs],
        "completion_tokens": finished.completion_tokens,
        "time_to_first_token": finished.time_to_first_token,
        "tokens_per_second": tokens_per_second(finished),
        "speculation": None if finished.stats is None else _speculation(finished.stats),
    }


def _speculation(stats: SpeculationStats) -> dict[str, Any]:
    return {
        "decode_passes": stats.decode_passes,
        "spec_steps": stats.spec_steps,
        "tokens_per_pass": stats.tokens_per_pass,
        "acceptance_rate": stats.acceptance_rate,
        "mean_acceptance_length": stats.acceptance_length,
        "acceptance_by_position": stats.per_position,
        "accepted_length_histogram": stats.histogram,
    }
