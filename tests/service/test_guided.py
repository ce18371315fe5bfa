"""Guides from a client's options, flags and messages to the engine's request, and what comes back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes import FakeExecutor, Pass, ids_of, script_of, serving
from tests.guides import compiled as of_few_tokens
from tests.models import tiny_tokenizer
from trtspec.cli.main import main
from trtspec.client import Client, RequestFailed
from trtspec.errors import InvalidField
from trtspec.executors.guides.grammars import Grammars
from trtspec.executors.guides.tokens import info_of
from trtspec.guides import Guide, GuideKind
from trtspec.service.guides import guide_of
from trtspec.types import FinishReason
from trtspec.v1 import inference_pb2 as pb

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
ASKED: dict[str, tuple[dict[str, Any], Guide | None]] = {
    "schema": ({"json_schema": SCHEMA}, Guide(GuideKind.JSON_SCHEMA, json.dumps(SCHEMA))),
    "schema as text": ({"json_schema": "true"}, Guide(GuideKind.JSON_SCHEMA, "true")),
    "object": ({"json_object": True}, Guide(GuideKind.JSON_OBJECT)),
    "regex": ({"regex": "a+"}, Guide(GuideKind.REGEX, "a+")),
    "grammar": ({"grammar": 'root ::= "a"'}, Guide(GuideKind.GRAMMAR, 'root ::= "a"')),
    "tag": ({"structural_tag": {"a": 1}}, Guide(GuideKind.STRUCTURAL_TAG, '{"a": 1}')),
    "choice": ({"choice": ["a", "b", "a"]}, Guide(GuideKind.CHOICE, 'root ::= "a" | "b"')),
    "one choice": ({"choice": "ab"}, Guide(GuideKind.CHOICE, 'root ::= "ab"')),
    "nothing": ({"json_object": False, "regex": None}, None),
    "one of several": ({"json_object": False, "json_schema": None, "regex": "a"}, Guide(GuideKind.REGEX, "a")),
}


@pytest.mark.parametrize("name", ASKED)
async def test_what_a_client_asks_for_reaches_the_engine(name: str) -> None:
    options, expected = ASKED[name]
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor) as server, Client(server.address) as client:
        await client.complete("hi", **options)
    assert executor.requests[0].guide == expected


async def test_two_guides_and_values_of_no_guide_are_not_sent() -> None:
    async with serving(FakeExecutor(script_of("ab", 1))) as server, Client(server.address) as client:
        for options, field in (
            ({"regex": "a", "json_object": True}, "guided_decoding"),
            ({"regex": 5}, "guided_decoding.regex"),
            ({"choice": [1]}, "guided_decoding.choice.options"),
            ({"json_schema": 5}, "guided_decoding.json_schema"),
        ):
            with pytest.raises(RequestFailed) as caught:
                await client.complete("hi", **options)  # type: ignore[arg-type]
            assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT and caught.value.field == field


@pytest.mark.parametrize("options", [["a"], ["yes", "no", "yesterday"], ['q"\\', "a\nb\t", "é😀 ]", "a|b", "\x07"]])
def test_the_grammar_of_a_choice_is_its_options_and_nothing_else(options: list[str]) -> None:
    import xgrammar

    guide = guide_of(pb.GenerateRequest(guided_decoding={"choice": {"options": options}}))
    assert guide is not None and guide.kind is GuideKind.CHOICE and guide.field == "guided_decoding.choice"
    tokenizer = tiny_tokenizer()
    grammar = Grammars(info_of(tokenizer, frozenset({0}), 267)).compile(guide)
    for text in {*options, *(option + "a" for option in options), *(option[:-1] for option in options)} - {""}:
        matcher = xgrammar.GrammarMatcher(grammar._grammar)
        assert (matcher.accept_string(text) and matcher.is_completed()) == (text in options)
    assert of_few_tokens(GuideKind.CHOICE, 'root ::= "a"').size < 10_000


async def test_an_output_that_its_guide_ended_stops_without_a_matched_stop() -> None:
    """All of its tokens are text."""
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass(ids_of("bc"), drafted=2, accepted=1)])
    executor.end = FinishReason.STOP
    async with serving(executor) as server, Client(server.address) as client:
        answer = await client.complete("hi", regex="abc", ignore_eos=True)
    assert answer.text == "abc" and answer.finished.reason is FinishReason.STOP
    assert answer.finished.stop_string is None and answer.finished.outputs[0].stop_token_id is None


async def test_an_engines_refusal_comes_before_anything_is_sent_and_names_the_field() -> None:
    executor = FakeExecutor([InvalidField("guided_decoding.regex", "not understood", "a text of that kind")])
    async with serving(executor) as server, Client(server.address) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete("hi", regex="([")
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT and caught.value.field == "guided_decoding.regex"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--json-schema", '{"type": "object"}'], Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}')),
        (["--json-schema", "FILE"], Guide(GuideKind.JSON_SCHEMA, "from a file")),
        (["--json-object"], Guide(GuideKind.JSON_OBJECT)),
        (["--regex", "a|b"], Guide(GuideKind.REGEX, "a|b")),
        (["--grammar", 'root ::= "a"'], Guide(GuideKind.GRAMMAR, 'root ::= "a"')),
        (["--grammar", "FILE"], Guide(GuideKind.GRAMMAR, "from a file")),
        (["--structural-tag", '{"a": 1}'], Guide(GuideKind.STRUCTURAL_TAG, '{"a": 1}')),
        (["--choice", "a", "--choice", "b"], Guide(GuideKind.CHOICE, 'root ::= "a" | "b"')),
        ([], None),
    ],
)
async def test_flags_of_generate(flags: list[str], expected: Guide | None, tmp_path: Path) -> None:
    (tmp_path / "guide").write_text("from a file")
    given = [str(tmp_path / "guide") if flag == "FILE" else flag for flag in flags]
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor) as server:
        code = await asyncio.to_thread(main, ("generate", "--raw", "--server", server.address, "hi", *given))
    assert code == 0 and executor.requests[0].guide == expected


@pytest.mark.parametrize(
    "flags", [["--regex", "a", "--json-object"], ["--json-schema", "no such file"], ["--grammar", "no such file"]]
)
def test_flags_that_cannot_be(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(("generate", "hi", *flags))
    assert caught.value.code == 2 and flags[-2 if len(flags) == 2 else 0] in capsys.readouterr().err
