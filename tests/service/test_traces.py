"""Traces: one span for each request, in the caller's trace, to a real receiver; and no receiver is no harm."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.fakes import FakeExecutor, Pass, ids_of, script_of, serving
from trtspec.errors import ConfigError, EngineLost, MissingDependency
from trtspec.service.options import ServeOptions, TelemetryOptions
from trtspec.service.telemetry import traces as traces_module
from trtspec.service.telemetry.running import counting
from trtspec.service.telemetry.traces import Traces, open_traces, provider
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SCRIPT = script_of("abcdef", 3, 2)


@contextlib.asynccontextmanager
async def traced(executor: FakeExecutor, exporter: SpanExporter) -> AsyncIterator[Any]:
    traces = Traces(provider(exporter), "127.0.0.1", 50051)
    traces.model, traces.config_id = "tiny", "eeee"
    async with serving(executor, observer=traces) as server:
        yield rpc.InferenceStub(server.channel)
    await asyncio.to_thread(traces.close)


async def spans_of(executor: FakeExecutor, request: pb.GenerateRequest, parent: str = "") -> Sequence[ReadableSpan]:
    exporter = InMemorySpanExporter()
    async with traced(executor, exporter) as stub:
        call = stub.Generate(request, metadata=(("traceparent", parent),) if parent else ())
        with contextlib.suppress(grpc.aio.AioRpcError):
            _ = [response async for response in call]
    return exporter.get_finished_spans()


async def test_a_span_has_what_the_conventions_name() -> None:
    request = pb.GenerateRequest(
        text="hi", request_id="r1", stopping=pb.StoppingOptions(max_tokens=6), sampling=pb.SamplingOptions(top_p=0.5)
    )
    before = time.time_ns()
    [span] = await spans_of(FakeExecutor(SCRIPT), request)
    assert span.name == "text_completion tiny" and span.kind is SpanKind.SERVER and span.parent is None
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "trtspec",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "r1",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 6,
        "server.address": "127.0.0.1",
        "server.port": 50051,
        "rpc.system": "grpc",
        "rpc.service": "trtspec.v1.Inference",
        "rpc.method": "Generate",
        "rpc.grpc.status_code": 0,
        "trtspec.config_id": "eeee",
        "trtspec.spec_decode.method": "ngram",
        "trtspec.spec_decode.max_draft_tokens": 4,
        "trtspec.spec_decode.num_spec_steps": 2,
        "trtspec.spec_decode.num_nonspec_steps": 0,
        "trtspec.spec_decode.num_draft_tokens": 5,
        "trtspec.spec_decode.num_accepted_draft_tokens": 3,
        "trtspec.spec_decode.num_verified_nodes": 5,
        "trtspec.spec_decode.num_emitted_tokens": 5,
        "trtspec.spec_decode.mean_acceptance_length": 2.5,
        "trtspec.spec_decode.draft_acceptance_rate": 0.6,
        "trtspec.spec_decode.tokens_per_pass": 2.5,
        "trtspec.spec_decode.acceptance_histogram": (0, 1, 1),
        "trtspec.spec_decode.accepted_per_position": (2, 1),
        "trtspec.spec_decode.drafted_per_position": (2, 2, 1),
    }
    accepted, first = span.events
    assert (accepted.name, first.name) == ("accepted", "first_token")
    assert span.start_time and span.end_time
    assert before <= span.start_time <= accepted.timestamp <= first.timestamp <= span.end_time <= time.time_ns()


async def test_a_chat_is_told_from_a_text() -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    [span] = await spans_of(FakeExecutor(SCRIPT), pb.GenerateRequest(chat=chat))
    assert span.name == "chat tiny"


async def test_the_caller_is_the_parent_and_says_whether_to_record() -> None:
    request = pb.GenerateRequest(text="hi")
    [span] = await spans_of(FakeExecutor(SCRIPT), request, f"00-{TRACE}-{SPAN}-01")
    assert span.parent and span.context and span.parent.is_remote
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == SPAN
    assert await spans_of(FakeExecutor(SCRIPT), request, f"00-{TRACE}-{SPAN}-00") == ()
    [span] = await spans_of(FakeExecutor(SCRIPT), request, "00-nonsense")
    assert span.parent is None


@pytest.mark.parametrize(
    ("executor", "request_", "status", "reason", "events"),
    [
        (FakeExecutor(SCRIPT), pb.GenerateRequest(), 3, "INVALID_FIELD", 0),
        (
            FakeExecutor([Pass(ids_of("a"), prefill=True), EngineLost("gone")]),
            pb.GenerateRequest(text="hi"),
            14,
            "ENGINE_LOST",
            2,
        ),
    ],
)
async def test_errors_are_spans_too(
    executor: FakeExecutor, request_: pb.GenerateRequest, status: int, reason: str, events: int
) -> None:
    [span] = await spans_of(executor, request_)
    attributes = dict(span.attributes or {})
    assert span.status.status_code is StatusCode.ERROR and span.status.description == reason
    assert (attributes["error.type"], attributes["rpc.grpc.status_code"]) == (reason, status)
    assert len(span.events) == events


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """OTLP's own service."""

    def __init__(self) -> None:
        self.got: list[trace_service_pb2.ExportTraceServiceRequest] = []

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.got.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_spans_arrive_at_an_otlp_receiver() -> None:
    receiver, server = Receiver(), grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        asked = ServeOptions(port=0, telemetry=TelemetryOptions(otlp_endpoint=f"http://127.0.0.1:{port}"))
        async with counting(asked) as telemetry, serving(FakeExecutor(SCRIPT), observer=telemetry.observer) as running:
            call = rpc.InferenceStub(running.channel).Generate(
                pb.GenerateRequest(text="hi"), metadata=(("traceparent", f"00-{TRACE}-{SPAN}-01"),)
            )
            _ = [response async for response in call]
    finally:
        server.stop(None).wait()
    [resource] = [item for request in receiver.got for item in request.resource_spans]
    assert "trtspec" in [item.value.string_value for item in resource.resource.attributes if item.key == "service.name"]
    [span] = resource.scope_spans[0].spans
    assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == SPAN
    assert [event.name for event in span.events] == ["accepted", "first_token"]


async def test_no_receiver_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_module, "CLOSE_SECONDS", 0.2)
    asked = ServeOptions(port=0, telemetry=TelemetryOptions(otlp_endpoint="http://127.0.0.1:1"))
    async with counting(asked) as telemetry, serving(FakeExecutor(SCRIPT), observer=telemetry.observer) as server:
        for _ in range(3):
            call = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"))
            assert [response async for response in call][-1].HasField("finished")
        begin = time.monotonic()
    assert time.monotonic() - begin < 5, "the end waits for a receiver that is not there"


def test_an_endpoint_is_an_address() -> None:
    with pytest.raises(ConfigError, match="--otlp-endpoint is localhost:4317; allowed is"):
        open_traces("localhost:4317", "127.0.0.1", 1)


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(MissingDependency, match=r"trtspec\[otel\]"):
        open_traces("http://127.0.0.1:4317", "127.0.0.1", 1)
