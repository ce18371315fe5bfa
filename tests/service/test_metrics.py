"""What is counted of requests is what their answers told, however they end. Cases 37 to 42 of the bug reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FakeExecutor, Hold, Script, script_of, serving
from trtspec.client import Client, RequestFailed
from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import EngineFault, EngineLost
from trtspec.generation import GenerationDefaults
from trtspec.service.model import ServedModel
from trtspec.service.observing import Arrival, Clock, Ending, Several, Started, Summary
from trtspec.service.requests import parse_request
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry import metrics, windows
from trtspec.service.telemetry.metrics import Metrics
from trtspec.service.telemetry.passes import Gathered, minus
from trtspec.service.telemetry.registry import Registry, Snapshot
from trtspec.service.telemetry.slices import MOST_TASKS, OTHER, FirstFew, length
from trtspec.types import FinishReason, Method, PassRecord, SamplingParams
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

RECORDS = (
    PassRecord(0, prefill=True),
    PassRecord(1, (1,) * 4, 4, 5),
    PassRecord(2, (1,) * 4, 2, 3),
    PassRecord(3, (1,), 1, 1, cut=True),
)
"""Those of case 37, behind a prefill."""


class Summaries:
    """An observer that keeps how requests ended."""

    def __init__(self) -> None:
        self.all: list[Summary] = []

    def arrived(self, arrival: Arrival) -> Summaries:
        return self

    def started(self, event: Started) -> None: ...

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None: ...

    def ended(self, summary: Summary) -> None:
        self.all.append(summary)


def counted(snapshot: Snapshot) -> dict[str, float]:
    """Counters and numbers of observations, over all labels."""
    result: dict[str, float] = {}
    for family in names.OF_REQUESTS:
        found = windows.times(snapshot, family) if family.buckets else [windows.amount(snapshot, family)]
        result[family.name] = sum(found)
    return result


def check_sums(registry: Registry, summaries: Sequence[Summary]) -> None:
    """Each counter is the sum over requests."""
    snapshot = registry.snapshot()
    values, total = counted(snapshot), reduce(SpeculationStats.__add__, (item.stats for item in summaries))
    assert values["requests"] == len(summaries)
    assert values["generation_tokens"] == sum(end.tokens for item in summaries for end in item.outputs)
    assert values["prompt_tokens"] == sum(item.prompt_tokens or 0 for item in summaries if item.clock.started)
    assert values["decode_passes"] == total.decode_passes
    assert values["spec_decode_num_drafts"] == values["spec_decode_steps"] == total.spec_steps
    assert values["spec_decode_num_draft_tokens"] == total.drafted
    assert values["spec_decode_num_accepted_tokens"] == total.accepted
    assert values["spec_decode_num_emitted_tokens"] == total.emitted
    assert values["spec_decode_num_verified_nodes"] == total.verified_nodes
    assert values["spec_decode_rejected_steps"] == total.rejected_steps
    assert tuple(windows.by_number(snapshot, names.STEPS, "accepted")) == total.histogram
    assert tuple(windows.by_number(snapshot, names.DRAFTED_AT, "position")) == total.drafted_at
    accepted = windows.by_number(snapshot, names.ACCEPTED_AT, "position")
    assert len(accepted) == len(total.drafted_at) and tuple(accepted)[: len(total.accepted_at)] == total.accepted_at
    codes = windows.by_label(snapshot, names.REQUESTS, "code")
    assert codes == {code.name: n for code in grpc.StatusCode if (n := sum(i.status is code for i in summaries))}


def test_the_numbers_of_case_37() -> None:
    metrics_ = Metrics(Registry())
    followed = metrics_.arrived(Arrival(10.0, 1, "", ()))
    for index, item in enumerate(RECORDS):
        followed.emitted(item.emitted, [item], 11.0 + index)
    stats = SpeculationStats.of(RECORDS)
    followed.ended(
        Summary(Clock(10.0), 20.0, grpc.StatusCode.OK, "", outputs=(Ending(FinishReason.LENGTH, 10),), stats=stats)
    )
    snapshot = metrics_.registry.snapshot()
    assert windows.ratio(snapshot, names.ACCEPTED, names.DRAFTED) == 7 / 9
    assert windows.acceptance_length(snapshot) == 1 + 7 / 3
    assert windows.ratio(snapshot, names.EMITTED, names.PASSES) == 9 / 3
    assert windows.by_label(snapshot, names.ACCEPTED_AT, "position") == {"0": 3, "1": 2, "2": 1, "3": 1}
    assert windows.amount(snapshot, names.REJECTED) == 1
    nothing = Metrics(Registry()).registry.snapshot()
    assert windows.ratio(nothing, names.ACCEPTED, names.DRAFTED) is None and windows.acceptance_length(nothing) is None


def test_times_are_shared_by_the_tokens_of_a_gap() -> None:
    metrics_ = Metrics(Registry())
    followed = metrics_.arrived(Arrival(10.0, 1, "", ()))
    followed.emitted(1, RECORDS[:1], 10.05)
    followed.emitted(4, RECORDS[1:2], 10.058)
    followed.emitted(2, RECORDS[2:3], 10.0585)
    arm = metrics_.arm("")
    assert arm.first_token.counts[names.FIRST_TOKEN_BUCKETS.index(0.06)] == 1
    assert arm.chunk_gap.counts[names.TOKEN_BUCKETS.index(0.01)] == 1
    assert arm.token_gap.counts[names.TOKEN_BUCKETS.index(0.002)] == 4
    assert arm.token_gap.counts[names.TOKEN_BUCKETS.index(0.0005)] == 2
    assert arm.token_gap.sum == pytest.approx(0.0085) == arm.chunk_gap.sum
    assert sum(arm.first_token.counts) == 1 and sum(arm.chunk_gap.counts) == 2


def test_a_value_on_a_bound_is_below_it_and_one_beyond_all_is_counted_too() -> None:
    histogram = Registry().histogram(names.E2E, "")
    histogram.observe(0.3)
    histogram.observe(7681.0, 2)
    assert histogram.row() == (1, *[0] * (len(names.REQUEST_BUCKETS) - 1), 2, 0.3 + 2 * 7681)


def test_what_runs_long_is_counted_while_it_runs_but_for_its_newest_tokens() -> None:
    registry = Registry()
    followed = Metrics(registry).arrived(Arrival(0.0, 1, "", ()))
    step = metrics.FLUSH_SECONDS
    for index, item in enumerate(RECORDS):
        followed.emitted(item.emitted, [item], 1.0 + index * step)
    values = counted(registry.snapshot())
    assert values["generation_tokens"] == 1 + 5 + 3 and values["spec_decode_num_accepted_tokens"] == 4 + 2
    cut = tuple(item.cut_to(1) if item is RECORDS[3] else item for item in RECORDS)
    stats = SpeculationStats.of(cut)
    followed.ended(
        Summary(
            Clock(0.0), 20.0, grpc.StatusCode.CANCELLED, "", outputs=(Ending(FinishReason.CANCELLED, 10),), stats=stats
        )
    )
    values = counted(registry.snapshot())
    assert values["generation_tokens"] == 10 and values["spec_decode_num_accepted_tokens"] == 7


def test_of_several_outputs_all_is_counted_at_the_end_for_a_stop_may_cut_any_of_them() -> None:
    registry = Registry()
    followed = Metrics(registry).arrived(Arrival(0.0, 1, "", ()))
    model = ServedModel(FakeExecutor().info(), GenerationDefaults(frozenset(), SamplingParams(), "test"))
    followed.started(Started(parse_request(pb.GenerateRequest(text="hi", n=2), model), 2, 1))
    for index in range(6):
        followed.emitted(1, RECORDS[:1], 1.0 + index * metrics.FLUSH_SECONDS)
    values = counted(registry.snapshot())
    assert values["generation_tokens"] == 0 and values["cached_prompt_tokens"] == 1 and values["prompt_tokens"] == 2
    assert values["inter_token_latency_seconds"] == values["inter_chunk_latency_seconds"] == 0
    assert values["time_to_first_token_seconds"] == 1
    outputs = (Ending(FinishReason.LENGTH, 3), Ending(FinishReason.STOP, 2))
    clock = Clock(0.0, started=0.5, first_token=1.0, last_token=2.0)
    request = parse_request(pb.GenerateRequest(text="hi", n=2), model)
    followed.ended(Summary(clock, 3.0, grpc.StatusCode.OK, "", request=request, outputs=outputs))
    snapshot = registry.snapshot()
    assert counted(snapshot)["generation_tokens"] == 5
    # The longest of them had two tokens after its first one, in a second.
    assert windows.times(snapshot, names.REQUEST_TOKEN_TIME)[names.TOKEN_BUCKETS.index(0.5)] == 1
    assert windows.times(snapshot, names.PREFILL_TIME)[names.REQUEST_BUCKETS.index(0.5)] == 1
    assert windows.times(snapshot, names.INFERENCE_TIME)[names.REQUEST_BUCKETS.index(1.5)] == 1
    assert windows.times(snapshot, names.E2E)[names.REQUEST_BUCKETS.index(5.0)] == 1


PASSES = st.lists(
    st.integers(0, 5).flatmap(
        lambda drafted: st.builds(
            PassRecord,
            st.just(0),
            st.lists(st.integers(1, 3), min_size=drafted, max_size=drafted).map(tuple),
            st.integers(0, drafted),
            st.integers(1, 6),
            st.booleans() if drafted == 0 else st.just(False),
            st.booleans(),
        )
    ),
    max_size=12,
)


@given(PASSES, st.integers(0, 12))
@settings(max_examples=40)
def test_gathered_passes_have_the_numbers_of_all_of_them(passes: list[PassRecord], at: int) -> None:
    gathered, whole = Gathered(), SpeculationStats.of(passes)
    gathered.add(passes[:at])
    first = gathered.take()
    gathered.add(passes[at:])
    assert first + gathered.take() == whole and gathered.take() == SpeculationStats()
    rest = minus(whole, first)
    assert first + rest == whole


ENDS: dict[str, tuple[Script, dict[str, object], grpc.StatusCode]] = {
    "length": (script_of("abcdef", 3, 2), {}, grpc.StatusCode.OK),
    "stop string in an accepted draft": (script_of("abcdef", 4, 1), {"stop": ["c"]}, grpc.StatusCode.OK),
    "several outputs": (script_of("abcdef", 4, 1), {"n": 3, "stop": ["e"]}, grpc.StatusCode.OK),
    "engine fault": ([*script_of("abc", 2), EngineFault("NaN")], {}, grpc.StatusCode.INTERNAL),
    "engine lost": ([*script_of("abc", 2), EngineLost("gone")], {}, grpc.StatusCode.UNAVAILABLE),
    "refused": ((), {"max_draft_tokens": 99}, grpc.StatusCode.INVALID_ARGUMENT),
    "speculation off": (script_of("abcdef", 3, 2), {"speculation": "off"}, grpc.StatusCode.OK),
}


@pytest.mark.parametrize("how", ENDS)
async def test_counters_are_the_sum_over_requests_however_they_end(how: str) -> None:
    script, asked, status = ENDS[how]
    registry, summaries = Registry(), Summaries()
    several = [script] * 3
    async with (
        serving(FakeExecutor(*several), observer=Several([Metrics(registry), summaries])) as server,
        Client(server.address) as client,
    ):
        for _ in range(2):
            try:
                await client.complete("hi", **asked)
            except RequestFailed as error:
                assert error.status is status
    assert [item.status for item in summaries.all] == [status] * 2
    check_sums(registry, summaries.all)
    values = counted(registry.snapshot())
    ok = 2 * (status is grpc.StatusCode.OK)
    assert values["request_success"] == values["e2e_request_latency_seconds"] == values["slice_requests"] == ok
    assert values["request_errors"] == 2 - ok
    assert values["spec_decode_requests"] == values["request_queue_time_seconds"] == 2 * (how != "refused")
    assert values["admission_rejections"] == 0
    mode = windows.by_label(registry.snapshot(), names.MODES, "mode")
    assert mode == ({} if how == "refused" else {"baseline" if how == "speculation off" else "spec": 2})


async def test_a_client_that_leaves_is_counted_with_what_it_got() -> None:
    registry, summaries = Registry(), Summaries()
    script = [*script_of("abc", 2), Hold(asyncio.Event())]
    executor = FakeExecutor(script)
    async with serving(executor, observer=Several([Metrics(registry), summaries])) as server:
        call = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"))
        for _ in range(3):
            await call.read()
        call.cancel()
        await asyncio.wait_for(executor.freed.wait(), 10)
        while not summaries.all:
            await asyncio.sleep(0.01)
    check_sums(registry, summaries.all)
    assert counted(registry.snapshot())["generation_tokens"] == 3
    assert summaries.all[0].status is grpc.StatusCode.CANCELLED


async def test_who_is_turned_away_is_counted_by_reason_and_nobody_else_is() -> None:
    registry = Registry()
    executor = FakeExecutor([Hold(asyncio.Event())])
    async with serving(executor, observer=Metrics(registry)) as server:
        stub, request = rpc.InferenceStub(server.channel), pb.GenerateRequest(text="hi", request_id="same")
        first = stub.Generate(request)
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Generate(request).read()
        draining = asyncio.create_task(server.server.drain())
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Generate(pb.GenerateRequest(text="hi")).read()
        first.cancel()
        await draining
    snapshot = registry.snapshot()
    assert windows.by_label(snapshot, names.REJECTIONS, "reason") == {"DRAINING": 1}
    assert windows.by_label(snapshot, names.ERRORS, "reason") == {"DUPLICATE_REQUEST_ID": 1, "DRAINING": 1}


async def test_slices_have_few_names_whatever_clients_send() -> None:
    registry = Registry()
    async with (
        serving(FakeExecutor(script_of("abc", 2)), observer=Metrics(registry)) as server,
        Client(server.address) as client,
    ):
        for index in range(MOST_TASKS + 3):
            await client.complete("hi", tags={"task": f"t{index}"}, temperature=float(index % 2))
        await client.complete("hi", top_k=3, temperature=1.0)
    snapshot = registry.snapshot()
    tasks = windows.by_label(snapshot, names.SLICE_REQUESTS, "task")
    assert tasks == {**{f"t{index}": 1 for index in range(MOST_TASKS)}, OTHER: 3, "": 1}
    sampling = windows.by_label(snapshot, names.SLICE_REQUESTS, "sampling")
    assert sampling == {"greedy": 6, "drawn": 5, "truncated": 1}
    assert windows.by_label(snapshot, names.SLICE_TOKENS, "prompt_length") == {"1-127": 3 * (MOST_TASKS + 4)}


def test_lengths_fall_into_buckets() -> None:
    assert [length(tokens) for tokens in (1, 127, 128, 511, 512, 2047, 2048, 8191, 8192, 10**6)] == [
        *["1-127"] * 2,
        *["128-511"] * 2,
        *["512-2047"] * 2,
        *["2048-8191"] * 2,
        *["8192+"] * 2,
    ]
    few = FirstFew(1)
    assert [few.of(name) for name in ("a", "b", "a", "")] == ["a", OTHER, "a", ""]


def test_a_series_has_the_labels_of_its_family() -> None:
    with pytest.raises(AssertionError, match="position"):
        Registry().counter(names.ACCEPTED_AT, "")


def test_buckets_rise_and_begin_where_speculation_lands() -> None:
    for family in names.OF_REQUESTS:
        assert list(family.buckets) == sorted(set(family.buckets))
    assert names.TOKEN_BUCKETS[:7] == (0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075)
    assert names.TOKEN_BUCKETS[7:9] == (0.01, 0.025) and names.TOKEN_BUCKETS[-1] == 80


async def test_fallbacks_are_told_from_what_nobody_asked_for() -> None:
    registry = Registry()
    async with (
        serving(FakeExecutor(script_of("abc", 2), method=Method.NONE), observer=Metrics(registry)) as server,
        Client(server.address) as client,
    ):
        await client.complete("hi", max_draft_tokens=3)
        await client.complete("hi")
    modes = windows.by_label(registry.snapshot(), names.MODES, "mode")
    assert modes == {"fallback": 1, "baseline": 1}
    reasons = windows.by_label(registry.snapshot(), names.MODES, "reason")
    assert reasons == {"this engine drafts nothing": 1, "": 1}


def test_a_pass_without_a_token_takes_nothing_back() -> None:
    """Case 42: a step with drafts and no token counts what it verified, and no counter falls."""
    registry = Registry()
    followed = Metrics(registry).arrived(Arrival(0.0, 1, "", ()))
    followed.emitted(1, RECORDS[:1], 1.0)
    empty = replace(RECORDS[1], accepted=0, emitted=0, cut=True, nodes_by_depth=())
    stats = SpeculationStats.of([RECORDS[0], empty])
    before = registry.snapshot()
    followed.ended(
        Summary(
            Clock(0.0),
            2.0,
            grpc.StatusCode.INTERNAL,
            "ENGINE_FAULT",
            outputs=(Ending(FinishReason.ERROR, 1),),
            stats=stats,
        )
    )
    after = registry.snapshot()
    assert all(b >= a for key in before for a, b in zip(before[key], after[key], strict=True))
    assert counted(after)["spec_decode_num_accepted_tokens"] == 0
