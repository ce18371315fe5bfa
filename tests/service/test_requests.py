"""Request protos to core values: defaults, coverage of every field, and nothing but `RequestError` for bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import EOS, FakeExecutor
from trtspec import generation
from trtspec.capabilities import Support, capabilities
from trtspec.errors import EngineFolderError, InvalidField, PromptTooLong, RequestError
from trtspec.generation import GenerationDefaults
from trtspec.service.features import GROUPS, MODES, used_features
from trtspec.service.model import ServedModel
from trtspec.service.requests import Granularity, ParsedRequest, StatsLevel, parse_request
from trtspec.service.run import deadline
from trtspec.service.text import ChatPrompt
from trtspec.types import Method, SamplingParams
from trtspec.v1 import inference_pb2 as pb

DEFAULTS = GenerationDefaults(frozenset({EOS}), SamplingParams(temperature=0.6, top_k=20, top_p=0.9), "test")
MODEL = ServedModel(FakeExecutor().info(), DEFAULTS)


def parse(**fields: object) -> ParsedRequest:
    return parse_request(pb.GenerateRequest(**{"text": "hi"} | fields), MODEL)


def features() -> set[str]:
    """The name of every feature of `GenerateRequest`, from its descriptor."""
    names: set[str] = set(MODES.values())
    for field in pb.GenerateRequest.DESCRIPTOR.fields:
        inner = field.message_type.fields if field.name in GROUPS else [field]
        names |= {item.name for item in inner if item.name != "mode"}
    return names


@pytest.mark.parametrize("method", [Method.NONE, Method.NGRAM])
def test_the_table_has_a_row_for_every_request_field_and_no_other(method: Method) -> None:
    table = capabilities(method, "embedded")
    assert set(table) == features()
    assert all(item.reason for item in table.values() if item.support is Support.REFUSED)


def test_a_field_that_is_not_in_the_table_is_refused() -> None:
    other = replace(MODEL, info=replace(MODEL.info, backend="unheard_of", flow="unheard_of"))
    with pytest.raises(RequestError, match="text is not supported by method ngram on the unheard_of backend"):
        parse_request(pb.GenerateRequest(text="hi"), other)


def test_unset_fields_take_the_defaults_of_the_model() -> None:
    parsed = parse()
    assert parsed.sampling == DEFAULTS.sampling
    assert parsed.eos_ids == {EOS} and parsed.max_tokens is None
    assert (parsed.granularity, parsed.stats_level) == (Granularity.STEP, StatsLevel.SUMMARY)
    assert parsed.speculation.max_draft_tokens == 4
    assert len(parsed.request_id) == 32


def test_a_set_zero_is_not_an_unset_field() -> None:
    parsed = parse(sampling={"temperature": 0, "top_k": 0, "seed": 0})
    assert parsed.sampling == SamplingParams(0.0, 0, 0.9)
    assert parsed.seed == 0


def test_a_chat_reaches_the_template_in_plain_values() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    chat = {"messages": [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "2", "name": "add"}]}
    prompt = parse_request(pb.GenerateRequest(chat=chat), MODEL).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add"},
    )


def test_ignore_eos_leaves_the_stop_ids_of_the_request() -> None:
    parsed = parse(stopping={"ignore_eos": True, "stop_token_ids": [7]})
    assert parsed.eos_ids == frozenset() and parsed.stop_ids == {7}


def test_a_cache_salt_separates_like_another_tenant() -> None:
    assert parse(tenant="a", cache_salt="b").tenant != parse(tenant="a").tenant != parse(tenant="b").tenant


def test_every_feature_that_is_used_is_seen() -> None:
    request = pb.GenerateRequest(text="x")
    for field in pb.GenerateRequest.DESCRIPTOR.fields:
        if field.name in GROUPS:
            for item in field.message_type.fields:
                fill(getattr(request, field.name), item)
    seen = {name for name, _ in used_features(request)}
    expected = {item.name for group in GROUPS for item in _fields(group)} - {"mode"} | {"speculation_on"}
    assert seen - {"text"} == expected


def _fields(group: str) -> list[FieldDescriptor]:
    return list(pb.GenerateRequest.DESCRIPTOR.fields_by_name[group].message_type.fields)


def fill(message: object, field: FieldDescriptor) -> None:
    """Set a field to something that is not neutral."""
    if field.name == "mode":
        setattr(message, field.name, 3)
    elif field.name == "logit_bias":
        message.logit_bias[1] = 1.0  # type: ignore[attr-defined]
    elif field.is_repeated:
        getattr(message, field.name).append("x" if field.type == FieldDescriptor.TYPE_STRING else 1)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, 2 if field.type != FieldDescriptor.TYPE_BOOL else True)


@given(st.binary(max_size=200))
def test_any_message_is_parsed_or_refused(data: bytes) -> None:
    try:
        request = pb.GenerateRequest.FromString(data)
    except DecodeError:
        return
    try:
        parsed = parse_request(request, MODEL)
    except RequestError:
        return
    assert parsed.sampling.temperature >= 0 and 0 < parsed.sampling.top_p <= 1


@pytest.mark.parametrize(
    ("budget", "remaining", "expected"),
    [(5.0, None, 105.0), (None, 10.0, 110.75), (None, 1.0, 101.9), (5.0, 1.0, 101.9), (0.5, 1.0, 100.5)],
)
def test_the_deadline_is_the_nearer_of_budget_and_call_less_a_margin(
    budget: float | None, remaining: float | None, expected: float
) -> None:
    # The request arrived at 100 and its call's deadline was read at 101.
    assert deadline(100.0, budget, remaining, 101.0) == pytest.approx(expected)


def test_without_budget_and_deadline_there_is_no_end() -> None:
    assert deadline(100.0, None, None, 101.0) is None


def test_a_prompt_of_too_many_ids_is_refused_before_they_are_looked_at() -> None:
    # The ids are wrong, too; with the room told first, nobody has looked at them.
    with pytest.raises(PromptTooLong, match="has 128 tokens and the context holds 128"):
        parse_request(pb.GenerateRequest(token_ids={"ids": [-1] * 128}), MODEL)


def test_tenant_and_salt_cannot_be_chosen_to_look_like_others() -> None:
    with pytest.raises(InvalidField, match="tenant is .*printable"):
        parse(tenant="a\0b")
    assert parse(tenant="a", cache_salt="b").tenant == "a\0b"


def test_defaults_are_written_and_read(tmp_path: Path) -> None:
    sampling = SamplingParams(0.7, 20, 0.8, 0.1, 1.1, 0.25, -0.5, min_tokens=3)
    defaults = GenerationDefaults(frozenset({1, 2}), sampling, "From the model.")
    generation.write(defaults, tmp_path)
    assert generation.read(tmp_path) == defaults
    document = json.loads((tmp_path / "generation.json").read_text())
    assert document["eos_token_ids"] == [1, 2] and document["sampling"]["top_k"] == 20


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"eos_token_ids": 1, "sampling": {}, "source": ""}'])
def test_damaged_defaults_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "generation.json").write_text(text)
    with pytest.raises(EngineFolderError, match="build the engine again"):
        generation.read(tmp_path)
