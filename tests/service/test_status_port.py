"""The status port: what it answers, to whom, and what its numbers are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from tests.fakes import FakeExecutor, engine_folder, script_of
from trtspec.client import Client, RequestFailed
from trtspec.config import EngineOptions
from trtspec.generation import GenerationDefaults
from trtspec.service import server as single
from trtspec.service.address import CannotListen
from trtspec.service.model import ServedModel
from trtspec.service.operating import Operation
from trtspec.service.options import ServeOptions, TelemetryOptions
from trtspec.service.signals import StopSignals
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry import history, small_http, windows
from trtspec.service.telemetry.engine_watch import EngineWatch, kv_usage
from trtspec.service.telemetry.history import History, Sample
from trtspec.service.telemetry.overview import Overview
from trtspec.service.telemetry.registry import Registry, total
from trtspec.service.telemetry.running import overseen
from trtspec.service.telemetry.slices import MOST_TASKS, OTHER
from trtspec.service.telemetry.small_http import Answer, SmallServer
from trtspec.service.telemetry.status_json import status as status_document
from trtspec.service.telemetry.totals import Totals
from trtspec.types import EngineStats, Health, SamplingParams

STATUS = TelemetryOptions(status_port=0, metrics_compatibility="all")
OPTIONS = ServeOptions(port=0, telemetry=STATUS)


async def ask(address: str, path: str = "/", *lines: str, first: str = "GET {} HTTP/1.1") -> tuple[int, str, bytes]:
    """A request written by hand: status, head and body."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = [first.format(path), *(lines or (f"Host: {address}",)), "", ""]
    writer.write("\r\n".join(head).encode())
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    head_, _, body = answer.partition(b"\r\n\r\n")
    text = head_.decode()
    return int(text.split()[1]), text, body


class Running:
    """`serve` in this process, on a fake engine."""

    def __init__(self, status: str, address: str) -> None:
        self.status = status
        self.address = address

    async def json(self) -> dict[str, Any]:
        code, _, body = await ask(self.status, "/status.json")
        assert code == 200
        return json.loads(body)  # type: ignore[no-any-return]

    async def metrics(self) -> dict[str, float]:
        """Samples by name and labels, without those that all have."""
        _, _, body = await ask(self.status, "/metrics")
        result = {}
        for family in plain(body.decode()):
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items() if k not in names.COMMON and v}
                result[sample.name + "".join(f"|{k}={v}" for k, v in sorted(labels.items()))] = sample.value
        return result


@contextlib.asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, executor: FakeExecutor, options: ServeOptions = OPTIONS
) -> AsyncIterator[Running]:
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    opened: list[str] = []
    listening = SmallServer.listening

    @contextlib.asynccontextmanager
    async def noted(self: SmallServer, host: str, port: int, flag: str) -> AsyncIterator[str]:
        async with listening(self, host, port, flag) as address:
            opened.append(address)
            yield address

    async def open_engine(path: Path, engine: EngineOptions) -> FakeExecutor:
        return executor

    monkeypatch.setattr(SmallServer, "listening", noted)
    announce = announced.set_result
    task = asyncio.create_task(
        single.serve(engine_folder(tmp_path), options, EngineOptions(), lambda at, _: announce(at), open_engine)
    )
    try:
        await asyncio.wait((task, announced), return_when=asyncio.FIRST_COMPLETED)
        yield Running(opened[0], announced.result())
    finally:
        await executor.become(Health.FAILED)
        await task


async def test_metrics_and_status_tell_what_requests_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(history, "SAMPLE_SECONDS", 0.02)
    monkeypatch.setattr("trtspec.service.telemetry.overview.SAMPLE_SECONDS", 0.02)
    executor = FakeExecutor(script_of("abcdef", 3, 2))
    async with running(monkeypatch, tmp_path, executor) as server, Client(server.address) as client:
        for _ in range(2):
            await client.complete("hi")
        with pytest.raises(RequestFailed):
            await client.complete("hi", max_draft_tokens=99)
        found = await server.metrics()
        status = await server.json()
        while status["requests"]["window"]["total"] < 3:
            await asyncio.sleep(0.02)
            status = await server.json()
    prefix = names.PREFIX
    assert found[f"{prefix}requests_total|code=OK"] == 2
    assert found[f"{prefix}requests_total|code=INVALID_ARGUMENT"] == 1
    assert found[f"{prefix}generation_tokens_total"] == 12
    assert found[f"{prefix}spec_decode_num_drafts_total"] == 4
    assert found[f"{prefix}spec_decode_num_accepted_tokens_total"] == 6
    assert found[f"{prefix}time_to_first_token_seconds_count"] == 2
    assert found[f"{prefix}time_to_first_token_seconds_bucket|le=+Inf"] == 2
    assert found[f"{prefix}inter_token_latency_seconds_bucket|le=+Inf"] == 10
    assert found[f"{prefix}engine_up"] == 1 and found[f"{prefix}frontends"] == 1
    assert found[f"{prefix}spec_decode_max_draft_tokens"] == 4
    assert found["vllm:spec_decode_num_drafts_total|engine=0|model_name=tiny"] == 4
    assert found["vllm:spec_decode_num_draft_tokens_total|engine=0|model_name=tiny"] == 10
    assert found["vllm:spec_decode_num_accepted_tokens_total|engine=0|model_name=tiny"] == 6
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total|engine=0|model_name=tiny|position=0"] == 4
    window = status["speculation"]["lifetime"]
    assert status["state"] == "serving" and status["engine"]["method"] == "ngram" and status["rollout"] is None
    assert (window["acceptance_length"], window["acceptance_rate"]) == (2.5, 0.6)
    assert window["accepted_length_histogram"] == [0, 2, 2]
    assert window["per_position"] == [1.0, 0.5, 0.0]
    assert status["requests"]["lifetime"]["codes"] == {"OK": 2, "INVALID_ARGUMENT": 1}
    assert status["latency"]["request"]["count"] == 2 and status["latency"]["request"]["p95"] > 0


async def test_before_the_engine_is_open_health_says_no_and_nothing_is_made_up() -> None:
    async with overseen(OPTIONS) as oversight:
        address = oversight.overview.address
        code, _, body = await ask(address, "/healthz")
        assert (code, body) == (503, b"starting\n")
        document = json.loads((await ask(address, "/status.json"))[2])
        assert document["engine"] is None and document["now"] is None
        assert document["speculation"]["window"]["acceptance_rate"] is None
        assert b"trtspec_" not in (await ask(address, "/metrics"))[2]


async def test_health_follows_the_engine_and_the_drain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    async with running(monkeypatch, tmp_path, executor) as server:
        assert (await ask(server.status, "/healthz"))[::2] == (200, b"serving\n")
        await executor.become(Health.RESTARTING)
        assert (await ask(server.status, "/healthz"))[::2] == (503, b"restarting\n")
        found = await server.metrics()
        assert (found["trtspec_engine_restarts_total"], found["trtspec_engine_up"]) == (1, 0)
        await executor.become(Health.SERVING)
        found = await server.metrics()
        assert (found["trtspec_engine_restarts_total"], found["trtspec_engine_up"]) == (1, 1)


async def test_the_format_is_what_the_client_prefers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with running(monkeypatch, tmp_path, FakeExecutor(script_of("ab", 1))) as server:
        accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5"
        _, head, body = await ask(server.status, "/metrics", f"Host: {server.status}", accept)
        assert "application/openmetrics-text; version=1.0.0" in head
        assert "vllm:spec_decode_num_drafts" in {family.name for family in open_metrics(body.decode())}
        _, head, body = await ask(server.status, "/metrics")
        assert "text/plain; version=0.0.4" in head and b"# EOF" not in body


async def test_the_page_runs_only_its_own_code_and_asks_only_its_own_server() -> None:
    async with overseen(OPTIONS) as oversight:
        code, head, body = await ask(oversight.overview.address)
    policy = re.search("Content-Security-Policy: (.*)", head)
    assert code == 200 and policy and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    assert len(re.findall("'sha256-[A-Za-z0-9+/=]{44}'", policy[1])) == 2
    page = body.decode()
    addresses = set(re.findall(r"https?://[^'\"\s%)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the page has an address of elsewhere"
    assert not re.search(r" style=| on[a-z]+=|innerHTML", page)


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:9", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:9", 200),
        ("10.1.2.3:9", 200),
        (socket.gethostname(), 200),
        ("rebound.example:9", 421),
        ("127.0.0.1.rebound.example", 421),
        ("", 421),
    ],
)
async def test_only_names_of_this_machine_are_answered(host: str, code: int) -> None:
    async with overseen(OPTIONS) as oversight:
        assert (await ask(oversight.overview.address, "/status.json", f"Host: {host}"))[0] == code


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ("POST {} HTTP/1.1", 405),
        ("HEAD {} HTTP/1.1", 405),
        ("GET {} HTTP/2.0", 400),
        ("GET http://elsewhere/ HTTP/1.1", 400),
        ("nonsense", 400),
        ("GET /nowhere HTTP/1.1", 404),
        ("GET /../secret HTTP/1.1", 404),
        ("GET /" + "x" * (20 << 10) + " HTTP/1.1", 400),
    ],
)
async def test_only_what_is_there_can_be_asked_for(first: str, code: int) -> None:
    async with overseen(OPTIONS) as oversight:
        assert (await ask(oversight.overview.address, "/", first=first))[0] == code
        assert (await ask(oversight.overview.address, "/healthz?x=1"))[0] == 503


async def test_connections_are_few_and_silent_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_http, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(small_http, "PATIENCE_SECONDS", 0.5)
    async with overseen(OPTIONS) as oversight:
        host, _, port = oversight.overview.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        code, _, body = await ask(oversight.overview.address)
        assert code == 503 and b"connections are open" in body
        for reader, writer in silent:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        assert (await ask(oversight.overview.address))[0] == 200


async def test_a_mistake_of_ours_is_an_answer_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(headers: object) -> Answer:
        raise ZeroDivisionError

    async with SmallServer("127.0.0.1", {"/": broken}).listening("127.0.0.1", 0, "--x") as address:
        assert (await ask(address))[0] == 500
    assert "ZeroDivisionError" in caplog.text


async def test_a_taken_port_is_told_under_its_flag_and_costs_no_engine(tmp_path: Path) -> None:
    async def no_engine(path: Path, options: EngineOptions) -> FakeExecutor:
        raise AssertionError("the engine was opened")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = replace(OPTIONS, telemetry=replace(STATUS, status_port=taken.getsockname()[1]))
        told = r"cannot listen on 127.0.0.1:\d+ \(Address already in use\); choose another port with --status-port"
        with pytest.raises(CannotListen, match=told):
            await single.serve(engine_folder(tmp_path), asked, EngineOptions(), lambda *_: None, no_engine)


async def test_an_address_that_is_no_address_of_this_machine_is_told() -> None:
    for host, why in (("no.such.host.invalid", ".+"), ("192.0.2.1", "Cannot assign requested address")):
        security = replace(OPTIONS.security, allow_insecure=True)
        asked = replace(OPTIONS, telemetry=replace(STATUS, status_host=host, status_port=7), security=security)
        with pytest.raises(CannotListen, match=rf"cannot listen on {host}:7 \({why}\)"):
            async with overseen(asked):
                raise AssertionError("it listens")


def test_totals_keep_what_processes_that_died_had_told() -> None:
    totals = Totals()
    key = (names.GENERATION_TOKENS.name, ("",))
    gap = (names.TOKEN_GAP.name, ("",))
    with totals.joined() as stays:
        stays.tell({key: (5.0,), gap: (1.0, 2.0, 0.5)})
        with totals.joined() as dies:
            dies.tell({key: (1.0,)})
            dies.tell({key: (7.0,), gap: (1.0, 0.0, 0.25)})
            assert totals.sources == 2 and totals.read()[key] == (12,)
        with totals.joined() as successor:
            successor.tell({key: (1.0,)})
            assert totals.read() == {key: (13,), gap: (2, 2, 0.75)}
            assert totals.read({names.TOKEN_GAP.name}) == {gap: (2, 2, 0.75)}
    assert totals.sources == 0 and totals.read()[key] == (13,)


def test_tasks_of_all_processes_together_are_few_and_their_counters_do_not_fall() -> None:
    totals = Totals()

    def told(process: int) -> dict[tuple[str, tuple[str, ...]], tuple[float, ...]]:
        labels = [("", "1-127", "1-127", f"p{process}t{index}", "greedy") for index in range(MOST_TASKS)]
        return {(names.SLICE_REQUESTS.name, label): (1.0,) for label in labels}

    with totals.joined() as first, totals.joined() as second:
        first.tell(told(1))
        before = totals.read()
        second.tell(told(2))
        after = totals.read()
    tasks = windows.by_label(after, names.SLICE_REQUESTS, "task")
    assert len(tasks) == MOST_TASKS + 1 and tasks[OTHER] == MOST_TASKS
    assert all(after[key] >= row for key, row in before.items())
    assert windows.by_label(totals.read(), names.SLICE_REQUESTS, "task") == tasks


def test_windows_see_what_happened_within_them() -> None:
    kept = History()
    drafts, accepted = (names.DRAFTS.name, ("",)), (names.ACCEPTED.name, ("",))
    tokens = (names.GENERATION_TOKENS.name, ("",))
    for second in range(70):
        totals = {tokens: (10.0 * second,)}
        if second >= 65:
            totals |= {drafts: (2.0 * (second - 64),), accepted: (3.0 * (second - 64),)}
        kept.add(Sample(float(second), totals, EngineStats(running=second, free_blocks=3, total_blocks=4)))
    window = kept.stretch()
    assert window.seconds == history.WINDOW_SECONDS and window.rate(names.GENERATION_TOKENS) == 10
    assert windows.amount(window.counted, names.DRAFTS) == 10
    assert windows.acceptance_length(window.counted) == 2.5
    first, last = kept.points[0], kept.points[-1]
    assert first.tokens_per_second is None and first.acceptance_length is None
    assert last.tokens_per_second == 10 and last.acceptance_length == 2.5
    assert last.kv_usage == 0.25 and last.running == 69


def test_each_latency_is_its_own() -> None:
    overview, registry = Overview(OPTIONS), Registry()
    overview.history.add(Sample(0.0, {}, EngineStats()))
    families = {
        "first_token": names.FIRST_TOKEN,
        "token": names.TOKEN_GAP,
        "chunk": names.CHUNK_GAP,
        "request": names.E2E,
        "queue": names.QUEUE_TIME,
    }
    for times, family in enumerate(families.values(), start=1):
        registry.histogram(family, "").observe(0.01, times)
    overview.history.add(Sample(1.0, registry.snapshot(), EngineStats()))
    told = {name: item["count"] for name, item in status_document(overview)["latency"].items()}
    assert told == {name: times for times, name in enumerate(families, start=1)}


async def test_a_server_that_was_asked_to_stop_drains() -> None:
    executor, signals, overview = FakeExecutor(), StopSignals(), Overview(OPTIONS)
    model = ServedModel(executor.info(), GenerationDefaults(frozenset(), SamplingParams(), "test"))
    async with overview.following(executor, Operation(model, OPTIONS, signals)):
        assert overview.state == "serving" and overview.serving
        signals.raise_one()
        assert overview.state == "draining" and not overview.serving


def test_quantiles_are_those_of_prometheus() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert windows.quantile([0, 0, 0, 0], bounds, 0.5) is None
    assert windows.quantile([4, 0, 0, 0], bounds, 0.5) == 0.5
    assert windows.quantile([0, 2, 2, 0], bounds, 0.75) == 3.0
    assert windows.quantile([1, 0, 0, 9], bounds, 0.5) == 4.0


async def test_counters_of_the_engine_outlive_its_process() -> None:
    class Restarted(FakeExecutor):
        reading = EngineStats(passes=10, preemptions=3, free_blocks=1, total_blocks=4)

        async def stats(self) -> EngineStats:
            return self.reading

    executor = Restarted()
    watch = EngineWatch(executor)
    await watch.read()
    assert (watch.passes, watch.preemptions, kv_usage(watch.reading)) == (10, 3, 0.75)
    for passes in (0, 4, 6):
        executor.reading = EngineStats(passes=passes, preemptions=1)
        await watch.read()
    assert (watch.passes, watch.preemptions, kv_usage(watch.reading)) == (16, 4, None)


def test_snapshots_add_up_series_by_series() -> None:
    assert total([{("a", ()): (1.0,)}, {("a", ()): (2.0,), ("b", ("x",)): (1.0, 2.0)}]) == {
        ("a", ()): (3,),
        ("b", ("x",)): (1, 2),
    }
