"""The options of a request, each declared once, and the message that they make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, cast

from google.protobuf.message import Message

from trtspec.client.fields import Prompt, duration, message, prompt_fields
from trtspec.client.guides import choices, guide_text, one_guide
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec


class Options(TypedDict, total=False):
    """What `generate` and `complete` take beside the prompt. Unset or None is what the server does by default.

    The protos say what each means, under the same names but for `stop` (`stop_strings`), `speculation`
    (`speculation.mode`) and `full_output` (`include_full_output`). Enums are words, durations are seconds. Schemas and
    tags may be mappings; of the last six at most one is set, and a choice is a list of texts.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str]
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_string: bool
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    n: int | None
    speculation: str
    max_draft_tokens: int | None
    stats_level: str
    granularity: str
    min_interval: float | None
    full_output: bool
    time_budget: float | None
    priority: int
    tenant: str
    tags: Mapping[str, str] | None
    session_key: str
    cache_salt: str
    json_schema: str | Mapping[str, Any] | None
    json_object: bool | None
    regex: str | None
    grammar: str | None
    structural_tag: str | Mapping[str, Any] | None
    choice: Sequence[str] | None
    request_id: str
    model: str


_RENAMED = {"stop": "stop_strings", "speculation": "mode", "full_output": "include_full_output"}
_DURATIONS = frozenset({"min_interval", "time_budget"})
_GROUPS: Mapping[str, type[Message]] = {
    "sampling": pb.SamplingOptions,
    "stopping": pb.StoppingOptions,
    "logprobs": pb.LogprobOptions,
    "speculation": spec.SpeculationOptions,
    "stream_options": pb.StreamOptions,
    "guided_decoding": pb.GuidedDecoding,
}
_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    "json_schema": guide_text,
    "structural_tag": guide_text,
    "json_object": lambda asked: asked or None,
    "choice": choices,
}
"""Values that their field takes in another form."""
_PATHS = {field: f"{group}.{field}" for group, kind in _GROUPS.items() for field in kind.DESCRIPTOR.fields_by_name}
"""Where a field stands in the request, if not at its top."""


def generate_request(prompt: Prompt, options: Options) -> pb.GenerateRequest:
    """The request; a value that does not fit its field is refused by name."""
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise TypeError(f"there is no option {unknown[0]!r}; the options are {', '.join(Options.__annotations__)}")
    groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in cast("Mapping[str, Any]", options).items():
        field = _RENAMED.get(name, name)
        path = _PATHS.get(field, field)
        if value is not None and field in _CONVERTED:
            value = _CONVERTED[field](value)
        groups[path.rpartition(".")[0]][field] = duration(path, value) if field in _DURATIONS else value
    if guide := groups.pop("guided_decoding", None):
        groups |= one_guide(guide)
    top = groups.pop("", {})
    inner = {group: message(_GROUPS[group], f"{group}.", **fields) for group, fields in groups.items()}
    return message(pb.GenerateRequest, **prompt_fields(prompt), **inner, **top)
