"""Requests of the SMG gateway's `TrtllmService` as requests of ours.

Each field is mapped, refused, or one of the few that only inform; a field that nobody entered here is refused. What is
unset means what TensorRT-LLM's own server makes of it, and not the model's defaults: the gateway never learns of those.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from trtspec.errors import InvalidField, Unsupported
from trtspec.service.checks import check
from trtspec.service.model import ServedModel
from trtspec.v1 import inference_pb2 as pb

_INFORM = frozenset({"tokenized.original_text", "arrival_time", "output_config.exclude_input_from_output"})
"""These tell what was, or ask for what is always done."""
_MAPPED = frozenset(
    {
        *("request_id", "max_tokens", "streaming", "stop", "stop_token_ids", "ignore_eos", "bad", "cache_salt_id"),
        *("include_stop_token_in_output", "embedding_bias", "guided_decoding", "tokenized.input_token_ids"),
        *("sampling_config.num_return_sequences", "sampling_config.beam_width", "sampling_config.seed"),
        *("sampling_config.min_tokens", "output_config.logprobs", "output_config.prompt_logprobs"),
        "output_config.return_perf_metrics",
    }
)
_UNSET = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""What the stock server takes where a field is unset. Only the temperature says more than nothing."""
_MESSAGES = frozenset({"tokenized", "sampling_config", "output_config"})
_GUIDES = {
    "GUIDE_TYPE_JSON_SCHEMA": "json_schema",
    "GUIDE_TYPE_REGEX": "regex",
    "GUIDE_TYPE_EBNF_GRAMMAR": "grammar",
    "GUIDE_TYPE_STRUCTURAL_TAG": "structural_tag",
}
_MOST_INT32 = 2**31 - 1


def translated(request: Any, model: ServedModel) -> pb.GenerateRequest:
    """The request in our terms; ours are the checks of what is mapped. Raises `RequestError` for the rest."""
    for path in _used(request):
        if path not in _MAPPED | _INFORM and path.removeprefix("sampling_config.") not in _UNSET:
            raise Unsupported(f"{path} is not supported by this server; leave it out", field=path, feature=path)
    check(request.HasField("tokenized"), "tokenized", "not set", "the token ids of the prompt")
    config, output = request.sampling_config, request.output_config
    check(config.beam_width in (0, 1), "sampling_config.beam_width", config.beam_width, "1: there is no beam search")
    result = pb.GenerateRequest(
        request_id=request.request_id,
        token_ids=pb.TokenIds(ids=_ids("tokenized.input_token_ids", request.tokenized.input_token_ids)),
        sampling=_sampling(request, model),
        stopping=pb.StoppingOptions(
            max_tokens=_int32("max_tokens", request.max_tokens),
            stop_strings=request.stop,
            stop_token_ids=_ids("stop_token_ids", request.stop_token_ids),
            ignore_eos=request.ignore_eos,
        ),
        # Whole outputs are repeated in the end, which bounds them to what clients read.
        stream_options=pb.StreamOptions(include_full_output=True),
        cache_salt=str(request.cache_salt_id) if request.HasField("cache_salt_id") else "",
    )
    if config.num_return_sequences:
        result.n = _int32("sampling_config.num_return_sequences", config.num_return_sequences)
    if config.HasField("min_tokens"):
        result.stopping.min_tokens = _int32("sampling_config.min_tokens", config.min_tokens)
    for name in ("logprobs", "prompt_logprobs"):
        if output.HasField(name):
            setattr(result.logprobs, name, getattr(output, name))
    if request.HasField("guided_decoding"):
        result.guided_decoding.CopyFrom(_guide(request.guided_decoding))
    return result


def _used(message: Message, prefix: str = "") -> Iterator[str]:
    """Paths of all fields that say something."""
    for descriptor, value in message.ListFields():
        path = prefix + descriptor.name
        if path in _MESSAGES:
            yield from _used(value, path + ".")
        elif not isinstance(value, Message) or value.ByteSize():
            yield path


def _sampling(request: Any, model: ServedModel) -> pb.SamplingOptions:
    config, result = request.sampling_config, pb.SamplingOptions(bad_words=request.bad)
    for name, unset in _UNSET.items():
        value = meant(getattr(config, name)) if config.HasField(name) else unset
        # What changes nothing need not be asked for, so that engines which lack the feature serve it.
        if value != unset or getattr(model.defaults.sampling, name) != unset:
            setattr(result, name, value)
    if config.HasField("seed"):
        result.seed = config.seed
    if bias := request.embedding_bias:
        size = model.info.limits.vocabulary_size
        check(len(bias) == size, "embedding_bias", f"{len(bias)} values", f"{size}, one for each token")
        result.logit_bias.update({token: meant(value) for token, value in enumerate(bias) if value})
    return result


def _guide(asked: Any) -> pb.GuidedDecoding:
    kind = asked.DESCRIPTOR.enum_types_by_name["GuideType"].values_by_number.get(asked.guide_type)
    if kind is not None and kind.name == "GUIDE_TYPE_JSON":
        return pb.GuidedDecoding(json_object=True)
    if kind is None or kind.name not in _GUIDES:
        raise InvalidField("guided_decoding.guide_type", asked.guide_type, f"GUIDE_TYPE_JSON or {', '.join(_GUIDES)}")
    return pb.GuidedDecoding(**{_GUIDES[kind.name]: asked.guide})


def _ids(field: str, ids: Any) -> list[int]:
    """Ids that fit our wire; whether they are of the vocabulary is checked where all requests are."""
    found = list(ids)
    if found and max(found) > _MOST_INT32:
        raise InvalidField(field, max(found), f"ids up to {_MOST_INT32}")
    return found


def _int32(field: str, value: int) -> int:
    check(value <= _MOST_INT32, field, value, f"at most {_MOST_INT32}")
    return value


def meant(value: float) -> float:
    """The shortest number that a single-precision field can have come from: 0.7 and not 0.699999988."""
    if isinstance(value, int):
        return value
    for digits in range(6, 10):
        found = float(f"{value:.{digits}g}")
        if struct.pack("f", found) == struct.pack("f", value):
            return found
    return value  # not a finite number
