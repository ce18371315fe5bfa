"""Request protos to validated core values; with `features` and `sampling` the only file that reads `GenerateRequest`.

Every check names the field, the value and what is allowed. Nothing here needs the tokenizer or the engine.
"""

from __future__ import annotations

import enum
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from trtspec.errors import InvalidField
from trtspec.service.callers import NAMELESS, Caller
from trtspec.service.checks import check, check_label, check_number, check_room, shown
from trtspec.service.features import check_features, check_model
from trtspec.service.model import ServedModel
from trtspec.service.sampling import bad_words, sampling_params, top_logprobs
from trtspec.service.text import ChatPrompt
from trtspec.types import Method, SamplingParams
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec

MAX_STOPS = 64
MAX_TAGS = 16
MAX_MIN_INTERVAL_SECONDS = 60.0
"""Longer gaps between messages look like a dead stream to proxies."""
_UNSPECIFIED = {
    "speculation.mode": spec.SPECULATION_MODE_DEFAULT,
    "speculation.stats_level": spec.STATS_LEVEL_SUMMARY,
    "stream_options.granularity": pb.STREAM_GRANULARITY_STEP,
}


class Granularity(enum.Enum):
    """How finely the stream is cut."""

    STEP = pb.STREAM_GRANULARITY_STEP
    TOKEN = pb.STREAM_GRANULARITY_TOKEN
    FINAL = pb.STREAM_GRANULARITY_FINAL


class StatsLevel(enum.Enum):
    """How much of the statistics `finished` has."""

    NONE = spec.STATS_LEVEL_NONE
    SUMMARY = spec.STATS_LEVEL_SUMMARY
    DETAILED = spec.STATS_LEVEL_DETAILED


@dataclass(frozen=True, slots=True)
class AppliedSpeculation:
    """Speculation as this request gets it."""

    method: Method
    max_draft_tokens: int
    reason: str = ""
    """Why it differs from what was asked for."""


Prompt = str | tuple[int, ...] | ChatPrompt


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request whose every field is in range and that uses nothing the engine lacks."""

    prompt: Prompt
    request_id: str
    sampling: SamplingParams
    """Without bad words, which are texts still."""
    bad_words: tuple[str, ...]
    seed: int
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    max_tokens: int | None
    stop_strings: tuple[str, ...]
    stop_ids: frozenset[int]
    eos_ids: frozenset[int]
    include_stop_string: bool
    speculation: AppliedSpeculation
    stats_level: StatsLevel
    granularity: Granularity
    min_interval: float
    include_full_output: bool
    priority: int
    tenant: str
    caller: Caller
    tags: Mapping[str, str]
    time_budget: float | None

    @property
    def has_text(self) -> bool:
        """Something must be cut into tokens before the engine can take it."""
        return bool(self.bad_words) or not isinstance(self.prompt, tuple)

    @property
    def keeps_output(self) -> bool:
        """`finished` repeats each output whole."""
        return self.include_full_output or self.granularity is Granularity.FINAL


def parse_request(request: pb.GenerateRequest, model: ServedModel, caller: Caller = NAMELESS) -> ParsedRequest:
    """Validate a request and resolve its defaults."""
    check_model(request.model, model)
    check_features(request, model)
    n = request.n if request.HasField("n") else 1
    check_number("n", n, 1, model.max_outputs)
    stopping, stream = request.stopping, request.stream_options
    vocabulary = model.info.limits.vocabulary_size
    for name, values in (("stop_strings", stopping.stop_strings), ("stop_token_ids", stopping.stop_token_ids)):
        check(len(values) <= MAX_STOPS, f"stopping.{name}", f"{len(values)} entries", f"at most {MAX_STOPS}")
    for index, text in enumerate(stopping.stop_strings):
        check(bool(text), f"stopping.stop_strings[{index}]", "empty", "a text of at least one character")
    for index, id_ in enumerate(stopping.stop_token_ids):
        check_number(f"stopping.stop_token_ids[{index}]", id_, 0, vocabulary - 1)
    if stopping.HasField("max_tokens"):
        check(stopping.max_tokens >= 1, "stopping.max_tokens", stopping.max_tokens, "1 or more")
    check_number("priority", request.priority, -100, 100)
    _check_labels(request)
    return ParsedRequest(
        prompt=_prompt(request, model),
        request_id=request.request_id or uuid.uuid4().hex,
        sampling=sampling_params(request, model.defaults.sampling, vocabulary),
        bad_words=bad_words(request.sampling),
        seed=request.sampling.seed if request.sampling.HasField("seed") else secrets.randbits(64),
        n=n,
        logprobs=top_logprobs(request.logprobs, "logprobs"),
        prompt_logprobs=top_logprobs(request.logprobs, "prompt_logprobs"),
        max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
        stop_strings=tuple(dict.fromkeys(stopping.stop_strings)),
        stop_ids=frozenset(stopping.stop_token_ids),
        eos_ids=frozenset() if stopping.ignore_eos else model.defaults.eos_ids,
        include_stop_string=stopping.include_stop_string,
        speculation=_speculation(request.speculation, model),
        stats_level=StatsLevel(_enum("speculation.stats_level", spec.StatsLevel, request.speculation.stats_level)),
        granularity=Granularity(_enum("stream_options.granularity", pb.StreamGranularity, stream.granularity)),
        min_interval=_min_interval(stream),
        include_full_output=stream.include_full_output,
        priority=request.priority,
        tenant=_tenant(request, caller),
        caller=caller,
        tags=dict(request.tags),
        time_budget=_time_budget(request),
    )


def chat_prompt(chat: pb.Chat) -> ChatPrompt:
    """A chat in plain values; which roles exist is the template's matter."""
    check(bool(chat.messages), "chat.messages", "empty", "at least one message")
    return ChatPrompt(
        # Protos drop an empty content, and templates rely on it.
        messages=tuple({"content": "", **_plain(message)} for message in chat.messages),
        tools=tuple(_plain(tool) for tool in chat.tools),
        template_arguments=_plain(chat.template_arguments),
        template=chat.template if chat.HasField("template") else None,
        continue_final_message=chat.continue_final_message,
    )


def _prompt(request: pb.GenerateRequest, model: ServedModel) -> Prompt:
    kind = request.WhichOneof("prompt")
    if kind == "text":
        check(bool(request.text), "text", "empty", "at least one token")
        return request.text
    if kind == "chat":
        return chat_prompt(request.chat)
    check(kind == "token_ids", "prompt", "not set", "one of text, token_ids and chat")
    # This runs on the event loop: no more ids are looked at than fit, and nothing is formatted for good ones.
    check_room(len(request.token_ids.ids), model.context_tokens)
    ids, vocabulary = tuple(request.token_ids.ids), model.info.limits.vocabulary_size
    check(bool(ids), "token_ids.ids", "empty", "at least one token")
    wrong = next((index for index, id_ in enumerate(ids) if not 0 <= id_ < vocabulary), None)
    if wrong is not None:
        raise InvalidField(f"token_ids.ids[{wrong}]", ids[wrong], f"0 to {vocabulary - 1}")
    return ids


def _speculation(asked: spec.SpeculationOptions, model: ServedModel) -> AppliedSpeculation:
    mode = _enum("speculation.mode", spec.SpeculationMode, asked.mode)
    info, limit = model.info, model.info.limits.max_draft_tokens
    depth = asked.max_draft_tokens if asked.HasField("max_draft_tokens") else None
    if depth is not None:
        check(depth >= 1, "speculation.max_draft_tokens", depth, f"1 to {max(limit, 1)}, or mode OFF for no draft")
        check(depth <= limit or limit == 0, "speculation.max_draft_tokens", depth, f"1 to {limit}")
    off = AppliedSpeculation(Method.NONE, 0)
    if mode == spec.SPECULATION_MODE_OFF:
        return off
    if limit == 0 or info.method is Method.NONE:
        return AppliedSpeculation(Method.NONE, 0, "this engine drafts nothing" if depth else "")
    if mode == spec.SPECULATION_MODE_DEFAULT and not model.default_draft_tokens:
        reason = "speculation is off by default on this server; ask for mode ON"
        return AppliedSpeculation(Method.NONE, 0, reason if depth else "")
    return AppliedSpeculation(info.method, depth or info.default_draft_tokens or limit)


def _min_interval(stream: pb.StreamOptions) -> float:
    if not stream.HasField("min_interval"):
        return 0.0
    field, seconds = "stream_options.min_interval", _seconds(stream.min_interval)
    check_number(field, seconds, 0, MAX_MIN_INTERVAL_SECONDS)
    by_token = stream.granularity == pb.STREAM_GRANULARITY_TOKEN
    check(not (by_token and seconds), field, f"{seconds} s", "unset with granularity TOKEN, which merges nothing")
    return seconds


def _time_budget(request: pb.GenerateRequest) -> float | None:
    if not request.HasField("time_budget"):
        return None
    seconds = _seconds(request.time_budget)
    check(seconds > 0, "time_budget", f"{seconds} s", "more than 0 s")
    return seconds


def _check_labels(request: pb.GenerateRequest) -> None:
    for field in ("request_id", "tenant", "session_key", "cache_salt"):
        check_label(field, getattr(request, field))
    check(len(request.tags) <= MAX_TAGS, "tags", f"{len(request.tags)} entries", f"at most {MAX_TAGS}")
    for key, value in request.tags.items():
        check_label("tags", key)
        check_label(f"tags[{key!r}]", value)


def _tenant(request: pb.GenerateRequest, caller: Caller) -> str:
    """The tenant as the engine separates prefix caches by it. The salt makes it another one, and so does a name that
    was proven: nobody else can say it. None of them holds a NUL."""
    tenant = f"{request.tenant}\0{request.cache_salt}" if request.cache_salt else request.tenant
    return f"{tenant}\0\0{caller.name}" if caller.authenticated else tenant


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _enum(field: str, kind: Any, value: int) -> int:
    """A known enum number; UNSPECIFIED becomes the default of its field."""
    check(value in kind.values(), field, value, f"one of {', '.join(kind.keys()[1:])}")
    return value or _UNSPECIFIED[field]


def _plain(message: Message) -> dict[str, Any]:
    try:
        return MessageToDict(message, preserving_proto_field_name=True)
    except ValueError as error:
        raise InvalidField("chat", f"not valid JSON ({shown(str(error))})", "finite numbers") from error
