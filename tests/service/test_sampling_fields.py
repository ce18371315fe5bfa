"""Penalties, biases, bad words and least lengths on their way to the engine, and stops that a least length delays."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.fakes import FakeExecutor, Serving, ids_of, script_of, serving
from tests.models import tiny_tokenizer
from trtspec.errors import InvalidField
from trtspec.service.resolve import spellings
from trtspec.service.text import Tokenizer
from trtspec.types import SamplingParams
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

TEXT = "the end of the story, and on"


async def ask(server: Serving, **fields: object) -> list[pb.GenerateResponse]:
    message = pb.GenerateRequest(**{"text": "hi", **fields})
    return [response async for response in rpc.InferenceStub(server.channel).Generate(message)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"sampling": {"repetition_penalty": 1.25}}, {"repetition_penalty": 1.25}),
        ({"sampling": {"presence_penalty": -2}}, {"presence_penalty": -2.0}),
        ({"sampling": {"frequency_penalty": 2}}, {"frequency_penalty": 2.0}),
        ({"sampling": {"logit_bias": {9: -100, 3: 1.5, 0: 0.25}}}, {"logit_bias": ((0, 0.25), (3, 1.5), (9, -100.0))}),
        ({"sampling": {"bad_words": ["x", "x"]}}, {"bad_words": (ids_of("x"), ids_of(" x"))}),
        ({"stopping": {"min_tokens": 3, "max_tokens": 3}}, {"min_tokens": 3}),
        ({"stopping": {"min_tokens": 2**31 - 1}}, {"min_tokens": 126}),  # what a prompt of 2 tokens leaves
    ],
)
async def test_each_field_reaches_the_engine(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    executor = FakeExecutor(script_of("abc", 2))
    async with serving(executor) as server:
        await ask(server, **fields)
    assert executor.requests[0].sampling == SamplingParams(**expected)


async def test_defaults_of_the_model_hold_until_a_request_says_otherwise() -> None:
    defaults = SamplingParams(0.5, 7, 0.75, 0.125, 1.25, 0.5, -0.5, min_tokens=2)
    executor = FakeExecutor(script_of("abc", 2))
    async with serving(executor, sampling=defaults) as server:
        info = await rpc.InferenceStub(server.channel).GetModelInfo(pb.GetModelInfoRequest())
        await ask(server)
        neutral = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
        await ask(server, sampling=neutral, stopping={"min_tokens": 0})
        await ask(server, stopping={"max_tokens": 1})
    assert info.defaults.sampling == pb.SamplingOptions(
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.125,
        repetition_penalty=1.25,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
    )
    assert executor.requests[0].sampling == defaults
    assert executor.requests[1].sampling == SamplingParams(0.5, 7, 0.75, 0.125)
    assert executor.requests[2].sampling.min_tokens == 1


@pytest.mark.parametrize("sizes", [(9, 8, 8), (1,) * 25, (25,), (2,) * 12 + (1,)])
@pytest.mark.parametrize(
    ("stops", "least", "end", "stop"),
    [
        (["the"], 0, 0, "the"),
        (["the"], 1, TEXT.rindex("the"), "the"),
        (["the"], 20, len(TEXT), None),
        # Of stops of several lengths, the longer completes later and holds no part of the text back before.
        (["the", "end of the story"], 10, TEXT.index("end"), "end of the story"),
        (["nd o", "nd"], 5, TEXT.index("nd"), "nd o"),
        (["end", "e"], 5, TEXT.index("e s"), "e"),
    ],
)
async def test_a_stop_string_among_the_first_tokens_is_passed_over_however_passes_group_them(
    sizes: tuple[int, ...], stops: list[str], least: int, end: int, stop: str | None
) -> None:
    count = len(ids_of(TEXT)) - 1
    sizes = tuple(min(size, count - sum(sizes[:i])) for i, size in enumerate(sizes) if sum(sizes[:i]) < count)
    async with serving(FakeExecutor(script_of(TEXT, *sizes))) as server:
        stopping = {"stop_strings": stops, "min_tokens": least}
        got = await ask(server, stopping=stopping, stream_options={"include_full_output": True})
    [output] = got[-1].finished.outputs
    assert "".join(response.chunk.text for response in got) == output.text == TEXT[:end]
    assert (output.stop_string or None) == stop
    assert output.finish_reason == (pb.FINISH_REASON_STOP if stop else pb.FINISH_REASON_LENGTH)
    assert output.completion_token_count > least


def metaspace() -> Tokenizer:
    """A tokenizer that puts a space before every text, as those of Llama 2 and Mistral do. It drops what is unknown."""
    vocabulary = {name: id_ for id_, name in enumerate(["\n", "▁", "n", "o", "no", "▁no"])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("n", "o"), ("▁", "no")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))


def test_a_bad_word_is_spelled_as_inside_a_word_and_behind_a_space() -> None:
    tokenizer = metaspace()
    assert tokenizer.encode_rendered("no") == (5,)
    assert spellings(["no"], tokenizer, 6) == ((4,), (5,))


def test_a_bad_word_without_a_token_is_refused_before_the_space_before_it_is_banned() -> None:
    with pytest.raises(
        InvalidField, match=r"sampling.bad_words\[1\] is without a token; allowed is a text of at least"
    ):
        spellings(["no", "é"], metaspace(), 6)


def test_spellings_that_are_the_same_are_told_once() -> None:
    tokenizer = Tokenizer(tiny_tokenizer())
    the, spaced = ids_of("the"), ids_of(" the")
    assert len(the) == len(spaced) == 1 and the != spaced
    assert spellings(["the", " the"], tokenizer, 267) == (the, spaced, ids_of("  the"))


async def test_a_bad_word_of_ids_beyond_the_vocabulary_is_refused_by_name() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["zebra"])
    async with serving(FakeExecutor(script_of("ab", 1)), tokenizer=tokenizer) as server:
        with pytest.raises(Exception, match=r"sampling.bad_words\[1\] is with token id 267; allowed is ids below 267"):
            await ask(server, sampling={"bad_words": ["a", "zebra"]})


async def test_bad_words_of_a_prompt_in_ids_are_cut_into_tokens_too() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with serving(executor) as server:
        message = pb.GenerateRequest(token_ids={"ids": [5]}, sampling={"bad_words": ["the"]})
        assert [response async for response in rpc.InferenceStub(server.channel).Generate(message)]
    assert executor.requests[0].sampling.bad_words == (ids_of("the"), ids_of(" the"))
