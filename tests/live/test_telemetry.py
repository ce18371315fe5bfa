"""Metrics, page and request log of real servers, as their readers see them: Chromium, Prometheus and promtool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live.servers import LiveServer, StartServer
from trtspec.client import Client, RequestFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).parents[2] / "scripts" / "deploy" / "grafana"
PROMPTS = ("one two three one two three one two", "the answer the answer the answer", "a b c a b c a b")
FLAGS = ("--status-port", "0", "--frontends", "2", "--max-batch-size", "2", "--max-queued-requests", "1")
FRONT = "trtspec.service.front_process"
EMPTY = {"Days until the certificate ends"}
"""Panels that have nothing to show without TLS."""
CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
    *("--window-size=1280,960", "--virtual-time-budget=4000"),
)


def program(name: str) -> str:
    """A program of Debian, or a skipped test."""
    if (path := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed; ./scripts/test --all installs it where root runs it")
    return path


def status_address(server: LiveServer) -> str:
    found = re.search(r"status page: http://(\S+)/", server.log)
    assert found
    return found[1]


def get(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return answer.read()  # type: ignore[no-any-return]


def status(server: LiveServer) -> dict[str, Any]:
    return json.loads(get(status_address(server), "/status.json"))  # type: ignore[no-any-return]


def samples(server: LiveServer) -> dict[str, float]:
    """Counters by name, over all labels."""
    result: dict[str, float] = {}
    for family in text_string_to_metric_families(get(status_address(server), "/metrics").decode()):
        for sample in family.samples:
            if family.type == "counter":
                result[sample.name] = result.get(sample.name, 0) + sample.value
    return result


async def ask(address: str, number: int) -> None:
    """Requests of every kind, until cancelled."""
    async with Client(address) as client:
        while True:
            number += 1
            asked: dict[str, Any] = {"max_tokens": 16 + number % 40, "tags": {"task": f"t{number % 3}"}}
            if number % 5 == 0:
                asked["speculation"] = "off"
            if number % 4 == 0:
                asked |= {"temperature": 0.7, "top_k": 5}
            if number % 11 == 0:
                asked = {"max_draft_tokens": 999}
            with contextlib.suppress(RequestFailed):
                await client.complete(PROMPTS[number % 3], **asked)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def load(server: LiveServer, clients: int = 5) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(ask(server.address, 7 * index)) for index in range(clients)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def telling(start_server: StartServer) -> LiveServer:
    return start_server(*FLAGS)


async def test_the_page_shows_live_numbers_in_a_browser(telling: LiveServer, tmp_path: Path) -> None:
    browser = program("chromium")
    page = f"http://{status_address(telling)}/"
    async with load(telling):
        while not (await asyncio.to_thread(status, telling))["speculation"]["window"]["acceptance_length"]:
            await asyncio.sleep(0.5)
        dom, console = await asyncio.to_thread(browse, browser, tmp_path, "--dump-dom", page)
        picture = tmp_path / "page.png"
        await asyncio.to_thread(browse, browser, tmp_path, f"--screenshot={picture}", page)
    assert "CONSOLE" not in console, console
    assert text(dom, "state") == "serving" and text(dom, "model") in page_model(telling)
    assert float(text(dom, "rate").replace(",", "")) > 0
    assert 1 <= float(text(dom, "al")) <= 9
    assert re.fullmatch(r"[0-2]", text(dom, "load")) and "of 2 run" in dom
    assert len(re.findall(r'class="b1"', dom)) >= 2 and len(re.findall(r'class="b2"', dom)) >= 2
    assert len(re.findall(r'class="line l', dom)) >= 4
    assert "No rollout" in dom and "requests were turned away in the last minute: " in dom
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 40_000


def browse(browser: str, folder: Path, *arguments: str) -> tuple[str, str]:
    command = [browser, *CHROMIUM, f"--user-data-dir={folder / 'profile'}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def text(dom: str, element: str) -> str:
    """The first text of an element."""
    found = re.search(rf'id="{element}"[^>]*>([^<]*)', dom)
    assert found, f"{element} is not on the page"
    return found[1]


def page_model(server: LiveServer) -> str:
    return server.line.split("model=")[1].split()[0]


async def test_a_page_whose_server_is_gone_says_so(start_server: StartServer, tmp_path: Path) -> None:
    """The page came from the server; what it asks later does not come."""
    browser = program("chromium")
    server = start_server("--status-port", "0")
    page = tmp_path / "page.html"
    # The same page from a file has nobody to ask, as one whose server is gone.
    page.write_bytes(await asyncio.to_thread(get, status_address(server), "/"))
    dom, _ = await asyncio.to_thread(browse, browser, tmp_path, "--dump-dom", page.as_uri())
    assert text(dom, "state") == "no answer" and "What is below is old." in dom


@pytest.fixture
def prometheus(telling: LiveServer, tmp_path: Path) -> Iterator[str]:
    """Prometheus itself, which scrapes the server each second; gives its address."""
    command = program("prometheus")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "rules.yml")],
        "scrape_configs": [{"job_name": "trtspec", "static_configs": [{"targets": [status_address(telling)]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = [
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([command, *arguments], stdout=log, stderr=log)
    yield address
    process.kill()
    process.wait()


def query(prometheus: str, expression: str) -> list[Any]:
    quoted = urllib.parse.quote(expression)
    answer = json.loads(get(prometheus, f"/api/v1/query?query={quoted}"))
    assert answer["status"] == "success"
    return answer["data"]["result"]  # type: ignore[no-any-return]


def rules(prometheus: str) -> list[str]:
    """The health of each rule."""
    groups = json.loads(get(prometheus, "/api/v1/rules"))["data"]["groups"]
    return [rule["health"] for group in groups for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """The queries of the dashboard, with its variables filled in."""
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    found = []
    for panel in panels:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "20s")
            found.append((panel["title"], re.sub(r"\$(model|config)\b", ".*", expression)))
    return found


async def test_every_query_of_the_dashboard_has_an_answer(telling: LiveServer, prometheus: str) -> None:
    async with load(telling):
        ready = "sum(rate(trtspec_admission_rejections_total[10s])) > 0"
        while True:
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(query, prometheus, ready):
                    break
            await asyncio.sleep(0.5)
        answers = {(title, ask_): await asyncio.to_thread(query, prometheus, ask_) for title, ask_ in expressions()}
        health = await asyncio.to_thread(rules, prometheus)
        while "unknown" in health:  # not evaluated yet
            await asyncio.sleep(0.5)
            health = await asyncio.to_thread(rules, prometheus)
    assert len(answers) > 40
    assert {title for (title, _), answer in answers.items() if not answer} == EMPTY
    numbers = [float(item["value"][1]) for answer in answers.values() for item in answer]
    assert any(number > 0 for number in numbers)
    assert health == ["ok"] * 20


def test_promtool_finds_no_fault(telling: LiveServer) -> None:
    promtool = program("promtool")
    scrape = get(status_address(telling), "/metrics")
    for command, data in (
        (["check", "metrics"], scrape),
        (["check", "rules", str(DEPLOY / "rules.yml")], None),
        (["test", "rules", str(DEPLOY / "rules_test.yml")], None),
    ):
        done = subprocess.run([promtool, *command], input=data, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout + done.stderr


async def test_counters_are_the_sum_of_the_log_and_outlive_a_front_end(
    start_server: StartServer, tmp_path: Path
) -> None:
    log = tmp_path / "requests"
    server = start_server(*FLAGS, "--request-log", str(log))
    before: dict[str, float] = {}

    def rising() -> dict[str, float]:
        nonlocal before
        now = samples(server)
        fallen = {name for name, value in before.items() if now[name] < value}
        assert not fallen - {name for name in before if name.startswith("process_")}
        before = now
        return now

    async with load(server, clients=3):
        for _ in range(6):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(rising)
    # What is still being cancelled is told, too, before one of them is killed.
    await told(server, log)
    fronts = server.running(FRONT)
    os.kill(fronts[0], signal.SIGKILL)
    while len(set(server.running(FRONT)) - set(fronts)) < 1:
        await asyncio.sleep(0.1)
        await asyncio.to_thread(rising)
    async with load(server, clients=3):
        for _ in range(4):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(rising)
    await told(server, log)
    assert "front-end" in server.log and "died (signal 9)" in server.log


async def told(server: LiveServer, log: Path) -> None:
    """Wait until the counters are what the log has, all of it."""
    expected: dict[str, float] = {}
    for _ in range(60):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        speculation = [line["speculative_decoding"] for line in lines if "speculative_decoding" in line]
        expected = {
            "trtspec_requests_total": len(lines),
            "trtspec_request_success_total": sum(line["status"] == "OK" for line in lines),
            "trtspec_generation_tokens_total": sum(line.get("completion_tokens", 0) for line in lines),
            "trtspec_spec_decode_num_drafts_total": sum(item["num_spec_steps"] for item in speculation),
            "trtspec_spec_decode_num_draft_tokens_total": sum(item["num_draft_tokens"] for item in speculation),
            "trtspec_spec_decode_num_accepted_tokens_total": sum(
                item["num_accepted_draft_tokens"] for item in speculation
            ),
        }
        now = await asyncio.to_thread(samples, server)
        if {name: now[name] for name in expected} == expected and now["trtspec_requests_total"]:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"the log has {expected}, the counters have { {name: now[name] for name in expected} }")
