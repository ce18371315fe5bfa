"""OpenTelemetry: one span for each request, made when it ends, from what was noted of it on the way.

It owns the exporter. Spans are exported by a thread of OpenTelemetry's, which drops what it cannot get rid of.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import grpc

from trtspec import __version__
from trtspec.errors import ConfigError, MissingDependency
from trtspec.service.observing import Arrival, Started, Summary
from trtspec.service.requests import ParsedRequest
from trtspec.service.telemetry.request_log import speculation
from trtspec.service.text import ChatPrompt
from trtspec.types import PassRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

Value = str | bool | int | float | Sequence[str] | Sequence[int]
_OPERATIONS = {True: "chat", False: "text_completion"}
"""By whether the prompt is a chat."""
CLOSE_SECONDS = 2.0
"""Time that what waits has to be exported when the server ends."""
_SERVICE, _METHOD = "trtspec.v1.Inference", "Generate"


class Traces:
    """Implements `Observer`."""

    def __init__(self, provider: TracerProvider, host: str, port: int) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("trtspec", __version__)
        self._server: Mapping[str, Value] = {"server.address": host, "server.port": port}
        self.model = ""
        self.config_id = ""
        """Both are known once the engine is open."""

    def arrived(self, arrival: Arrival) -> _Traced:
        return _Traced(self, arrival)

    def close(self) -> None:
        """Export what waits; blocks a moment at most, for a receiver that is away must not hold the server's end."""
        # OpenTelemetry itself would go on trying.
        thread = threading.Thread(target=self._provider.shutdown, name="trtspec-traces-end", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)

    def write(self, arrival: Arrival, summary: Summary) -> None:
        """Make the span of a request that ended."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {key: value for key, value in arrival.metadata if isinstance(value, str)}
        parent = TraceContextTextMapPropagator().extract(carrier)
        to_epoch = time.time_ns() - time.monotonic_ns()
        operation = _OPERATIONS[summary.request is not None and isinstance(summary.request.prompt, ChatPrompt)]
        span = self._tracer.start_span(
            f"{operation} {self.model}".strip(),
            context=parent,
            kind=SpanKind.SERVER,
            start_time=_nanoseconds(arrival.at, to_epoch),
            attributes={"gen_ai.operation.name": operation},
        )
        if span.is_recording():
            span.set_attributes({**self._of_server(), **_attributes(summary)})
            for name, at in (("accepted", summary.clock.started), ("first_token", summary.clock.first_token)):
                if at is not None:
                    span.add_event(name, timestamp=_nanoseconds(at, to_epoch))
            if summary.reason:
                span.set_status(Status(StatusCode.ERROR, summary.reason))
        span.end(_nanoseconds(summary.ended, to_epoch))

    def _of_server(self) -> dict[str, Value]:
        return {
            "gen_ai.provider.name": "trtspec",
            "gen_ai.request.model": self.model,
            "gen_ai.response.model": self.model,
            "trtspec.config_id": self.config_id,
            **self._server,
        }


class _Traced:
    __slots__ = ("_arrival", "_traces")

    def __init__(self, traces: Traces, arrival: Arrival) -> None:
        self._traces = traces
        self._arrival = arrival

    def started(self, event: Started) -> None: ...

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None: ...

    def ended(self, summary: Summary) -> None:
        self._traces.write(self._arrival, summary)


def open_traces(endpoint: str, host: str, port: int) -> Traces:
    """Traces that go to an endpoint over OTLP; where nothing answers there, requests notice nothing.

    Raises `MissingDependency`, or `ConfigError` for an endpoint that is none.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-endpoint is {endpoint}; allowed is an address such as http://127.0.0.1:4317")
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise MissingDependency("--otlp-endpoint needs OpenTelemetry: pip install 'trtspec[otel]'") from error
    # Each try that will be repeated is a warning to it; what it gives up is an error, a line for many spans.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    return Traces(provider(OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))), host, port)


def provider(exporter: SpanExporter) -> TracerProvider:
    """Exports in a thread. Samples as OTEL_TRACES_SAMPLER says, else as the caller did, and all that has no caller."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "trtspec", "service.version": __version__})
    made = TracerProvider(resource=resource, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(exporter))
    return made


def _attributes(summary: Summary) -> dict[str, Value]:
    found: dict[str, Value | None] = {
        "rpc.system": "grpc",
        "rpc.service": _SERVICE,
        "rpc.method": _METHOD,
        "rpc.grpc.status_code": _number(summary.status),
        "error.type": summary.reason or None,
        "gen_ai.usage.input_tokens": summary.prompt_tokens,
        "gen_ai.usage.output_tokens": sum(end.tokens for end in summary.outputs) if summary.outputs else None,
        "gen_ai.response.finish_reasons": tuple(end.reason.value for end in summary.outputs) or None,
        "trtspec.cached_prompt_tokens": summary.cached_tokens,
        **(_asked(summary.request) if summary.request else {}),
    }
    if summary.stats.decode_passes:
        told = speculation(summary.stats)
        found |= {f"trtspec.spec_decode.{name}": value for name, value in told.items()}
    return {name: value for name, value in found.items() if value is not None}


def _asked(request: ParsedRequest) -> dict[str, Value | None]:
    sampling = request.sampling
    return {
        "gen_ai.response.id": request.request_id,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.choice.count": request.n if request.n > 1 else None,
        "trtspec.spec_decode.method": request.speculation.method.value,
        "trtspec.spec_decode.max_draft_tokens": request.speculation.max_draft_tokens,
    }


def _number(status: grpc.StatusCode) -> int:
    number: int = status.value[0]
    return number


def _nanoseconds(at: float, to_epoch: int) -> int:
    return int(at * 1e9) + to_epoch
