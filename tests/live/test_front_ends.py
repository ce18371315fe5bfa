"""Two front-ends over one engine: the same text, and what is lost when one of their processes dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.live.servers import ENDLESS, HealthWatch, LiveServer, StartServer, Stream, refused
from trtspec.client import Client
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.service.options import ServeOptions
from trtspec.service.server import serve
from trtspec.types import FinishReason
from trtspec.v1 import inference_pb2_grpc as rpc

FLAGS = ("--kv-cache-mib", "64", "--frontends", "2")
FRONT_END = "trtspec.service.front_process"
LISTENS, CONNECTED = "0A", "01"
"""States of a socket as the kernel writes them."""
MOST_CONNECTIONS = 30
"""The kernel spreads connections by chance: that all of so many meet one front-end of two happens never."""


class Connection(Client):
    """A client with a connection of its own; others of one process share theirs."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = rpc.InferenceStub(self._channel)
        self._metadata = ()
        self.channel = self._channel

    async def serving(self) -> None:
        """Return when its front-end answers requests."""
        watch = HealthWatch(self.channel)
        while await watch.next() != "SERVING":
            pass
        watch.cancel()


def sockets(pid: int, port: int, state: str) -> int:
    """How many sockets of a port a process has in a state, by what the kernel says of them."""
    links = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    count = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, its_state, *_, inode = line.split()[:10]
            count += local.endswith(f":{port:04X}") and its_state == state and f"socket:[{inode}]" in links
    return count


async def connect(server: LiveServer, opened: AsyncExitStack) -> dict[int, Connection]:
    """A connection with each front-end, by its process id."""
    port = int(server.address.rpartition(":")[2])
    while len(fronts := [pid for pid in server.running(FRONT_END) if sockets(pid, port, LISTENS)]) < 2:
        await asyncio.sleep(0.05)
    found: dict[int, Connection] = {}
    for _ in range(MOST_CONNECTIONS):
        before = {pid: sockets(pid, port, CONNECTED) for pid in fronts}
        client = await opened.enter_async_context(Connection(server.address))
        await client.serving()
        [pid] = [pid for pid, count in before.items() if sockets(pid, port, CONNECTED) > count]
        found.setdefault(pid, client)
        if len(found) == len(fronts):
            return found
    raise AssertionError(f"{MOST_CONNECTIONS} connections met only one front-end")


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> LiveServer:
    return start_server(*FLAGS)


@pytest.fixture
async def clients(server: LiveServer) -> AsyncIterator[dict[int, Connection]]:
    async with AsyncExitStack() as opened:
        yield await connect(server, opened)


@asynccontextmanager
async def single_front_end(engine: Path) -> AsyncIterator[Client]:
    """A server of one process, this one."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open_engine(path: Path, options: EngineOptions) -> Executor:
        return await open_executor(path, options, in_process=True)

    options = EngineOptions(kv_cache_mib=64, threads=1)
    announce = address.set_result
    serving = asyncio.create_task(
        serve(engine, ServeOptions(port=0), options, lambda where, _: announce(where), open_engine)
    )
    async with Client(await address) as client:
        yield client
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving


async def test_all_front_ends_give_the_text_of_a_single_one(engine: Path, clients: dict[int, Connection]) -> None:
    prompts = [f"the answer to {number}" for number in range(8)]
    async with single_front_end(engine) as client:
        expected = [await client.complete(prompt, max_tokens=60, ignore_eos=True) for prompt in prompts]
    both = list(clients.values())
    got = await asyncio.gather(
        *(both[number % 2].complete(prompt, max_tokens=60, ignore_eos=True) for number, prompt in enumerate(prompts))
    )
    assert [(one.token_ids, one.text) for one in got] == [(one.token_ids, one.text) for one in expected]


async def test_an_id_that_lives_on_one_front_end_is_refused_by_the_other(clients: dict[int, Connection]) -> None:
    one, other = clients.values()
    live = await Stream(one, "the answer", **ENDLESS, request_id="same").begin()
    error = await refused(other, request_id="same")
    assert error.status is grpc.StatusCode.ALREADY_EXISTS and error.reason == "DUPLICATE_REQUEST_ID"
    await live.cancel()


async def test_a_killed_front_end_loses_its_own_streams_and_comes_back(
    server: LiveServer, clients: dict[int, Connection]
) -> None:
    (killed, broken), (spared, unharmed) = clients.items()
    lost = await Stream(broken, "on and on", **ENDLESS).begin(3)
    kept = await Stream(unharmed, "on and on", **ENDLESS).begin(3)
    worker = server.worker
    os.kill(killed, signal.SIGKILL)
    error = await lost.failure()
    assert error.status is grpc.StatusCode.UNAVAILABLE
    await kept.begin(len(kept.chunks) + 3)
    while len(fronts := server.running(FRONT_END)) < 2:
        await asyncio.sleep(0.05)
    assert spared in fronts and killed not in fronts and server.worker == worker
    [line] = server.log.splitlines()
    assert line.endswith("died (signal 9); 1 requests lost") and "front-end" in line
    await kept.begin(len(kept.chunks) + 3)
    await kept.cancel()


async def test_a_killed_worker_ends_the_streams_of_all_front_ends_and_they_recover(
    server: LiveServer, clients: dict[int, Connection]
) -> None:
    streams = [await Stream(client, f"lost {pid}", **ENDLESS).begin(3) for pid, client in clients.items()]
    watches = [HealthWatch(client.channel) for client in clients.values()]
    assert [await watch.next() for watch in watches] == ["SERVING"] * 2
    server.kill_worker()
    for stream in streams:
        error = await stream.failure()
        assert error.status is grpc.StatusCode.UNAVAILABLE and error.reason == "ENGINE_LOST"
        assert error.partial is not None and error.partial.completion_tokens == len(stream.ids) >= 3
    assert [await watch.next() for watch in watches] == ["NOT_SERVING"] * 2
    for client in clients.values():
        assert "restarting; try again" in str(await refused(client))
    assert [await watch.next() for watch in watches] == ["SERVING"] * 2
    for client in clients.values():
        assert len((await client.complete("the answer", max_tokens=5, ignore_eos=True)).token_ids) == 5
    assert server.log.splitlines()[-1].endswith("2 requests lost")


async def test_a_signal_to_all_processes_drains_all_front_ends_and_a_second_one_ends_the_drain(
    server: LiveServer, clients: dict[int, Connection]
) -> None:
    streams = [
        await Stream(client, "the answer", max_tokens=300, ignore_eos=True).begin() for client in clients.values()
    ]
    endless = [await Stream(client, "on and on", **ENDLESS).begin() for client in clients.values()]
    watches = [HealthWatch(client.channel) for client in clients.values()]
    assert [await watch.next() for watch in watches] == ["SERVING"] * 2
    server.signal_all(signal.SIGTERM)
    assert [await watch.next() for watch in watches] == ["NOT_SERVING"] * 2
    for client in clients.values():
        assert (await refused(client)).reason == "DRAINING"
    for stream in streams:
        await stream.end()
        assert stream.finished and stream.finished.reason is FinishReason.LENGTH
    server.signal_all(signal.SIGINT)
    for stream in endless:
        await stream.end()
        assert stream.finished and stream.finished.reason is FinishReason.CANCELLED
    for watch in watches:
        watch.cancel()
    assert await asyncio.to_thread(server.wait) == 0
