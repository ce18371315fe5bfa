"""A server of several processes on a fake engine: how they start, who may have the port, and when one is given up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.executors.conftest import children
from tests.fakes import FakeExecutor, engine_folder, script_of
from trtspec.client import Client, RequestFailed
from trtspec.config import EngineOptions
from trtspec.errors import EngineFolderError
from trtspec.executors.base import Executor
from trtspec.generation import TOKENIZER
from trtspec.service.address import CannotListen, shared_port
from trtspec.service.front_ends import serve
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.types import Health

OPTIONS = ServeOptions(port=0, frontends=2)
HOST = "127.0.0.1"


async def no_engine(path: Path, options: EngineOptions) -> Executor:
    raise AssertionError("the engine was opened")


class Run:
    """`serve` with this process as the main one."""

    def __init__(self, executor: FakeExecutor, directory: Path, options: ServeOptions = OPTIONS) -> None:
        self.announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def open_engine(path: Path, options: EngineOptions) -> FakeExecutor:
            return executor

        announce = self.announced.set_result
        serving = serve(directory, options, EngineOptions(), lambda address, _: announce(address), open_engine)
        self.task = asyncio.create_task(serving)


async def another(spared: int, dead: int) -> int:
    """The process in a dead one's place."""
    while not (new := set(children()) - {spared, dead}):
        await asyncio.sleep(0.01)
    return new.pop()


async def test_the_engine_answers_through_front_ends_and_they_end_when_it_fails(tmp_path: Path) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    run = Run(executor, engine_folder(tmp_path))
    address = await run.announced
    assert len(children()) == 2
    async with Client(address) as client:
        assert (await client.complete("hi")).text == "ab"
    await executor.become(Health.FAILED)
    assert await run.task is False
    assert executor.shut and children() == []


@pytest.mark.slow
async def test_limits_of_a_client_hold_over_all_front_ends(tmp_path: Path) -> None:
    """Each channel may reach another front-end."""
    limited = replace(OPTIONS, admission=AdmissionOptions(client_requests_per_minute=1))
    executor = FakeExecutor(script_of("ab", 1))
    run = Run(executor, engine_folder(tmp_path), limited)
    address = await run.announced
    reasons = []
    for _ in range(12):
        async with Client(address) as client:
            try:
                await client.complete("hi")
            except RequestFailed as error:
                reasons.append(error.reason)
    assert reasons == ["CLIENT_RATE"] * 11 and len(executor.requests) == 1
    await executor.become(Health.FAILED)
    assert await run.task is False


@pytest.mark.slow
async def test_a_front_end_that_dies_too_often_ends_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(FakeExecutor(script_of("ab", 1)), engine_folder(tmp_path))
    await run.announced
    killed, spared = children()
    for death in range(3):
        os.kill(killed, signal.SIGKILL)
        if death < 2:
            killed = await another(spared, killed)
    assert await run.task is False
    assert children() == []
    assert caplog.messages[-1].endswith("is not started again: it died too often")


async def test_a_signal_while_the_front_ends_start_ends_them(tmp_path: Path) -> None:
    folder = engine_folder(tmp_path)
    task = asyncio.create_task(serve(folder, OPTIONS, EngineOptions(), lambda *_: None, no_engine))
    while len(children()) < 2:
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task is True
    assert children() == []


async def test_a_front_end_that_cannot_start_costs_no_engine_load_and_says_why(tmp_path: Path) -> None:
    folder = engine_folder(tmp_path)
    tokenizer = folder / TOKENIZER / "tokenizer.json"
    tokenizer.write_bytes(b"x" * tokenizer.stat().st_size)
    with pytest.raises(EngineFolderError, match="tokenizer cannot be read"):
        await serve(folder, OPTIONS, EngineOptions(), lambda *_: None, no_engine)
    assert children() == []


@pytest.mark.parametrize("share", [False, True])
async def test_a_port_that_somebody_else_listens_on_is_refused_even_if_it_could_be_shared(
    tmp_path: Path, share: bool
) -> None:
    with socket.create_server((HOST, 0), reuse_port=share) as taken:
        options = ServeOptions(port=taken.getsockname()[1], frontends=2)
        with pytest.raises(CannotListen, match="is the port in use"):
            await serve(engine_folder(tmp_path), options, EngineOptions(), lambda *_: None, no_engine)


def test_a_held_port_is_ours_alone_before_anybody_listens_and_free_afterwards() -> None:
    with shared_port(HOST, 0) as port:
        with pytest.raises(CannotListen), shared_port(HOST, port):
            pass
        with pytest.raises(OSError), socket.create_server((HOST, port)):
            pass
        with socket.create_server((HOST, port), reuse_port=True), socket.create_server((HOST, port), reuse_port=True):
            pass
    with shared_port(HOST, port) as again:
        assert again == port


def test_connections_of_a_server_that_ended_do_not_keep_the_port() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)), server.accept()[0] as accepted:
            accepted.close()  # first, so that its end of the connection stays for a while
    with shared_port(HOST, port) as again:
        assert again == port


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::1", "::"])
def test_one_port_is_held_on_all_addresses_of_a_host(host: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with shared_port(host, 0) as port:
        assert port > 0
        with pytest.raises(CannotListen), shared_port(host, port):
            pass


def test_a_host_that_is_not_of_this_machine_is_refused() -> None:
    for host in ("192.0.2.1", "no.such.host.invalid"):
        for port in (0, 50051):
            with pytest.raises(CannotListen, match=f"{host}:{port}"), shared_port(host, port):
                pass
