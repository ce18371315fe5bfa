"""Log-probabilities over the wire: one for each token, wherever the text is cut, in messages that clients can read."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.fakes import FakeExecutor, Serving, ids_of, logprobs_of, script_of, serving
from trtspec.errors import InvalidField
from trtspec.generation import GenerationDefaults
from trtspec.service import assemble
from trtspec.service.answer_size import MOST_BYTES, check_answer_size, entry_bytes
from trtspec.service.assemble import MAX_DELTA_TOKENS, OutputAssembler
from trtspec.service.detokenize import StopScanner
from trtspec.service.model import ServedModel
from trtspec.service.requests import ParsedRequest, parse_request
from trtspec.types import Finish, FinishReason, PassRecord, StepOutput, TokenLogprobs
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

TEXT = "abc.def"
MODEL = ServedModel(FakeExecutor().info(), GenerationDefaults())
CLIENT_LIMIT = 4 << 20
"""What gRPC clients read by default."""


async def ask(server: Serving, **fields: object) -> list[pb.GenerateResponse]:
    message = pb.GenerateRequest(**{"text": "hi", **fields})
    return [response async for response in rpc.InferenceStub(server.channel).Generate(message)]


def plain(items: Iterable[pb.TokenLogprobs]) -> list[tuple[int, float, int, list[tuple[int, float, int]]]]:
    return [
        (
            item.chosen.token_id,
            item.chosen.logprob,
            item.chosen.rank,
            [(token.token_id, token.logprob, token.rank) for token in item.top],
        )
        for item in items
    ]


def expected(ids: Iterable[int], best: int) -> list[tuple[int, float, int, list[tuple[int, float, int]]]]:
    def one(item: TokenLogprobs) -> tuple[int, float, int, list[tuple[int, float, int]]]:
        top = [(token.token_id, token.logprob or 0.0, token.rank or 0) for token in item.top]
        return item.chosen.token_id, item.chosen.logprob or 0.0, item.chosen.rank or 0, top

    return [one(logprobs_of(id_, best)) for id_ in ids]


@pytest.mark.parametrize("best", [0, 1, 5])
@pytest.mark.parametrize("merge", [False, True])
async def test_each_chunk_has_one_entry_for_each_of_its_ids(best: int, merge: bool) -> None:
    engine = FakeExecutor(script_of(TEXT, 4, 2), merge=merge)
    async with serving(engine) as server:
        got = await ask(server, logprobs={"logprobs": best})
    for response in got[1:-1]:
        assert plain(response.chunk.logprobs) == expected(response.chunk.token_ids, best)
    assert sum(len(response.chunk.logprobs) for response in got) == got[-1].finished.usage.completion_token_count == 7
    assert (engine.requests[0].logprobs, engine.requests[0].prompt_logprobs) == (best, None)
    assert not got[-1].finished.outputs[0].logprobs and not got[-1].finished.prompt_logprobs


async def test_none_are_sent_where_none_are_asked_for() -> None:
    async with serving(FakeExecutor(script_of(TEXT, 4, 2))) as server:
        got = await ask(server, stream_options={"include_full_output": True})
    assert not any(response.chunk.logprobs for response in got)
    assert not got[-1].finished.outputs[0].logprobs


@pytest.mark.parametrize("granularity", [pb.STREAM_GRANULARITY_STEP, pb.STREAM_GRANULARITY_TOKEN])
async def test_a_stop_inside_a_run_cuts_them_with_the_ids(granularity: int) -> None:
    stream = {"granularity": granularity, "include_full_output": True}
    async with serving(FakeExecutor(script_of(TEXT, 6))) as server:
        got = await ask(server, logprobs={"logprobs": 1}, stopping={"stop_strings": ["."]}, stream_options=stream)
    kept = ids_of("abc.")
    chunks = [response.chunk for response in got[1:-1]]
    assert [item for chunk in chunks for item in plain(chunk.logprobs)] == expected(kept, 1)
    assert plain(got[-1].finished.outputs[0].logprobs) == expected(kept, 1)
    assert got[-1].finished.usage.completion_token_count == len(kept)


async def test_granularity_token_sends_each_with_its_own_id() -> None:
    async with serving(FakeExecutor(script_of(TEXT, 4, 2))) as server:
        stream = {"granularity": pb.STREAM_GRANULARITY_TOKEN}
        got = await ask(server, logprobs={"logprobs": 2}, stream_options=stream)
    chunks = [response.chunk for response in got[1:-1]]
    assert [plain(chunk.logprobs) for chunk in chunks] == [expected([id_], 2) for id_ in ids_of(TEXT)]
    assert [len(chunk.passes) for chunk in chunks] == [1, 1, 0, 0, 0, 1, 0]


async def test_granularity_final_puts_them_into_the_end() -> None:
    async with serving(FakeExecutor(script_of("ab", 1), script_of("cde", 2))) as server:
        stream = {"granularity": pb.STREAM_GRANULARITY_FINAL}
        got = await ask(server, n=2, logprobs={"logprobs": 1}, stream_options=stream)
    assert [plain(output.logprobs) for output in got[-1].finished.outputs] == [
        expected(ids_of("ab"), 1),
        expected(ids_of("cde"), 1),
    ]


async def test_those_of_the_prompt_come_once_with_the_end_and_the_first_has_no_number() -> None:
    engine = FakeExecutor(script_of("ab", 1), script_of("cd", 1))
    async with serving(engine) as server:
        got = await ask(server, text="the end", n=2, logprobs={"prompt_logprobs": 2})
    first, *others = got[-1].finished.prompt_logprobs
    prompt = ids_of("the end")
    assert first.chosen.token_id == prompt[0] and not first.chosen.HasField("logprob")
    assert not first.chosen.HasField("rank") and not first.top
    assert plain(others) == expected(prompt[1:], 2)
    assert (engine.requests[0].logprobs, engine.requests[0].prompt_logprobs) == (None, 2)
    assert not any(response.chunk.logprobs for response in got)


def parse(**fields: object) -> ParsedRequest:
    return parse_request(pb.GenerateRequest(**{"text": "hi", **fields}), MODEL)


def largest(positions: int, best: int, vocabulary: int) -> int:
    """Bytes of log-probabilities whose ids and ranks are as long as they get."""
    token = pb.TokenLogprob(token_id=vocabulary - 1, logprob=-1e-300, rank=vocabulary)
    return pb.Finished(prompt_logprobs=[pb.TokenLogprobs(chosen=token, top=[token] * best)] * positions).ByteSize()


@pytest.mark.parametrize("vocabulary", [127, 267, 49152, 152064, 2**21])
@pytest.mark.parametrize("best", [0, 5, 20])
def test_the_most_positions_that_are_allowed_fit_and_one_more_is_refused(vocabulary: int, best: int) -> None:
    most = MOST_BYTES // (4 + entry_bytes(vocabulary) * (best + 1))
    parsed = parse(logprobs={"prompt_logprobs": best})
    check_answer_size(parsed, most, 1, vocabulary)
    sample = most // 100
    assert MOST_BYTES * 0.85 < largest(sample, best, vocabulary) * most / sample <= MOST_BYTES
    with pytest.raises(InvalidField) as caught:
        check_answer_size(parsed, most + 1, 1, vocabulary)
    allowed = f"0 to {best - 1}" if best else "none"
    assert str(caught.value) == (
        f"logprobs.prompt_logprobs is {best}; allowed is {allowed} for a prompt of {most + 1} tokens"
    )


@pytest.mark.parametrize("stream", [{"granularity": pb.STREAM_GRANULARITY_FINAL}, {"include_full_output": True}])
def test_outputs_that_come_whole_are_bounded_together_with_the_prompt(stream: dict[str, object]) -> None:
    asked = {"logprobs": 20, "prompt_logprobs": 20}
    whole, chunked = parse(n=3, logprobs=asked, stream_options=stream), parse(n=3, logprobs=asked)
    position = 4 + entry_bytes(49152) * 21
    most = (MOST_BYTES - 3500 * position) // position // 3
    check_answer_size(whole, 3500, most, 49152)
    with pytest.raises(InvalidField, match="allowed is 0 to 19 for"):
        check_answer_size(whole, 3500, most + 1, 49152)
    with pytest.raises(
        InvalidField, match=r"logprobs.logprobs is 20; allowed is 0 to 14 for 3 x 2000 tokens at the end"
    ):
        check_answer_size(whole, 3500, 2000, 49152)
    check_answer_size(chunked, 3500, 10**6, 49152)


def test_a_long_run_for_a_slow_reader_is_cut_into_messages_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_DELTA_TOKENS * (4 + 21 * entry_bytes(2**21) + 40) < CLIENT_LIMIT
    monkeypatch.setattr(assemble, "MAX_DELTA_TOKENS", 8)
    ids = tuple(range(19))
    output = OutputAssembler(lambda ids: "x" * len(ids), (), StopScanner(()), keep_output=False, keep_passes=False)
    passes = tuple(PassRecord(index, (1, 1), 2, 3) for index in range(6)) + (PassRecord(6, emitted=1),)
    told = tuple(logprobs_of(id_, 1) for id_ in ids)
    deltas = output.take(StepOutput("a", 0, ids, passes, Finish(FinishReason.LENGTH), told), by_token=False)
    assert [len(delta.token_ids) for delta in deltas] == [8, 8, 3]
    # The third pass begins with the last two tokens of the first message.
    assert [[record.pass_index for record in delta.passes] for delta in deltas] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [delta.end is not None for delta in deltas] == [False, False, True]
    assert tuple(id_ for delta in deltas for id_ in delta.token_ids) == ids
    for delta in deltas:
        assert len(delta.text) == len(delta.token_ids)
        assert [item.chosen.token_id for item in delta.logprobs] == list(delta.token_ids)
