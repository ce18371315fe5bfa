"""One tiny engine for all live tests, a server for each module, and the promise that no process outlives a module."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from safetensors.torch import load_file, save_file

from builders.build import main
from tests.executors.conftest import children
from tests.live.servers import LiveServer, StartServer
from tests.models import tiny_llama
from trtspec.client import Client

ATTENTION_SHARE = 0.01
"""So little that the last token nearly decides the next: greedy text comes back to where it was and n-gram drafts pass,
and so much that it still depends on the whole prompt."""
CONTEXT_TOKENS = 16384
"""Room for answers that outlast every test."""


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine in float32 whose n-gram drafts are accepted at all lengths from 0 to 7."""
    root = tmp_path_factory.mktemp("live")
    weights = tiny_llama(root / "model", seed=5, max_positions=CONTEXT_TOKENS) / "model.safetensors"
    tensors = load_file(weights)
    quiet = {name: tensor * ATTENTION_SHARE for name, tensor in tensors.items() if name.endswith("o_proj.weight")}
    save_file(tensors | quiet, weights, metadata={"format": "pt"})
    argv = ["--method", "ngram", "--dtype", "float32", "--target", str(root / "model"), "--output", str(root / "tiny")]
    assert main(argv) == 0
    return root / "tiny"


@pytest.fixture(scope="module", autouse=True)
def no_process_left(engine: Path) -> Iterator[None]:
    before = set(children())
    yield
    assert set(children()) == before, "a child process was left behind"


@pytest.fixture(scope="module")
def start_server(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers of this module with the flags given."""
    servers: list[LiveServer] = []

    def start(*flags: str) -> LiveServer:
        servers.append(LiveServer(engine, tmp_path_factory.mktemp("server") / "log", "--threads", "1", *flags))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Iterator[LiveServer]:
    """The module's server, with its `FLAGS`; it must survive all tests without a word on standard error."""
    server = start_server(*request.module.FLAGS)
    yield server
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.log == ""


@pytest.fixture
async def channel(server: LiveServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[Client]:
    async with Client(server.address) as client:
        yield client
