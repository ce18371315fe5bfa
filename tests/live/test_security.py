"""A real server with TLS and tokens, from the command line on; and nothing of clients in what it prints."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import grpc
import pytest

from tests.certificates import Issued, issue, replace
from tests.live.servers import ENDLESS, LiveServer, StartServer, Stream, run
from trtspec.client import Client, RequestFailed
from trtspec.service.tokens import line_of
from trtspec.types import FinishReason

AUTHORITY = issue("authority")
NAMES = ("localhost", "127.0.0.1")
TOKEN = "canary-token-of-alice"
OTHER = "canary-token-of-bob-0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("security")
    AUTHORITY.write(directory, "ca")
    issue("first", AUTHORITY, NAMES).write(directory, "server")
    replace(directory / "tokens", f"alice {TOKEN}\n{line_of('bob', OTHER)}\n".encode())
    replace(directory / "token", f"{TOKEN}\n".encode())
    return directory


def flags(files: Path) -> tuple[str, ...]:
    given = {"--tls-certificate": "server.pem", "--tls-key": "server.key", "--tokens": "tokens"}
    return tuple(word for flag, name in given.items() for word in (flag, str(files / name)))


def client_of(server: LiveServer, files: Path, token: str = TOKEN) -> Client:
    return Client(server.address.replace("0.0.0.0", "localhost"), root_certificates=files / "ca.pem", token=token)


@pytest.fixture(scope="module")
def server(start_server: StartServer, files: Path) -> LiveServer:
    return start_server("--kv-cache-mib", "32", "--host", "0.0.0.0", *flags(files))


def ask(server: LiveServer, *arguments: str) -> tuple[int, str]:
    ended = run("generate", "--server", server.address.replace("0.0.0.0", "localhost"), "--max-tokens", "3", *arguments)
    return ended.code, ended.err


def test_the_command_is_let_in_with_its_token(server: LiveServer, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, token = ("--ca", str(files / "ca.pem")), ("--token-file", str(files / "token"))
    assert ask(server, *ca, *token, "hello")[0] == 0
    code, told = ask(server, *ca, "hello")
    assert code == 1 and "(UNAUTHENTICATED); ask the server's operator for a token, and give it with" in told
    code, told = ask(server, "--tls", *token, "hello")
    assert code == 1 and "no server answers" in told and "CERTIFICATE_VERIFY_FAILED" in told
    code, told = ask(server, *token, "hello")
    assert code == 1 and "with --tls or --ca if it has a certificate" in told and "canary" not in told
    monkeypatch.setenv("TRTSPEC_TOKEN", OTHER)
    assert ask(server, *ca, "hello")[0] == 0


async def test_callers_do_not_share_prefixes_though_they_say_the_same_tenant(server: LiveServer, files: Path) -> None:
    async def cached(token: str, **options: str) -> int | None:
        async with client_of(server, files, token) as client:
            answer = await client.complete("a prompt that fills some blocks " * 12, max_tokens=2, **options)
            return answer.finished.cached_prompt_tokens

    assert await cached(TOKEN, tenant="same") == 0
    assert (await cached(TOKEN, tenant="same") or 0) > 0
    assert await cached(OTHER, tenant="same") == 0
    assert (await cached(OTHER, tenant="same") or 0) > 0
    assert await cached(TOKEN) == 0 and await cached(OTHER) == 0
    assert await cached(OTHER, tenant="same\0\0alice"[:4]) != 0


async def test_nobody_claims_the_prefixes_of_another_by_a_name(server: LiveServer, files: Path) -> None:
    async with client_of(server, files, OTHER) as client:
        for tenant in ("same\0\0alice", "\0\0alice"):
            with pytest.raises(RequestFailed, match="tenant is"):
                await client.complete("x", tenant=tenant)


async def test_a_stream_outlives_the_exchange_of_its_certificate(server: LiveServer, files: Path) -> None:
    async with client_of(server, files) as client:
        stream = await Stream(client, "the answer", **ENDLESS).begin(2)
        new = issue("authority of the next one")
        exchange(files, issue("second", new, NAMES))
        replace(files / "next-ca.pem", new.pem)
        async with client_of(server, files) as late:
            with pytest.raises(RequestFailed):
                await late.complete("x", max_tokens=1, timeout=20)
        await stream.begin(len(stream.chunks) + 5)
        await stream.cancel()
    async with Client(
        server.address.replace("0.0.0.0", "localhost"), root_certificates=files / "next-ca.pem", token=TOKEN
    ) as client:
        assert (await client.complete("x", max_tokens=1)).finished.completion_tokens == 1
    exchange(files, issue("third", AUTHORITY, NAMES))


def exchange(files: Path, issued: Issued) -> None:
    replace(files / "server.key", issued.key_pem)
    replace(files / "server.pem", issued.pem)


@pytest.mark.parametrize("given", [(), ("--tokens",)])
def test_a_port_is_not_opened_by_accident(given: tuple[str, ...], engine: Path, files: Path) -> None:
    ended = run("serve", engine, "--host", "0.0.0.0", *(word for flag in given for word in (flag, files / "tokens")))
    assert ended.code == 2 and ended.out == ""
    assert ended.err.startswith("error: --host 0.0.0.0 can be reached from other machines, and ")


@pytest.mark.slow
async def test_front_ends_are_protected_alike(start_server: StartServer, files: Path) -> None:
    server = start_server("--kv-cache-mib", "32", "--frontends", "2", *flags(files))
    for _ in range(6):  # the kernel gives each connection to either
        async with client_of(server, files) as client:
            assert (await client.complete("x", max_tokens=1)).finished.reason is FinishReason.LENGTH
        async with client_of(server, files, "a-wrong-token-of-mallory") as client:
            with pytest.raises(RequestFailed, match="is not known"):
                await client.complete("x")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.log == ""


async def test_nothing_of_clients_is_printed(start_server: StartServer, files: Path) -> None:
    server = start_server("--kv-cache-mib", "32", *flags(files))
    canary = {"stop": ["canary-stop"], "bad_words": ["canary-word"], "tenant": "canary-tenant"}
    async with client_of(server, files) as client:
        await client.complete("canary-prompt", max_tokens=3, **canary)
        for wrong in ({"tenant": "canary\n"}, {"stop": [""]}, {"temperature": -1.0}, {"model": "canary-model"}):
            with pytest.raises(RequestFailed):
                await client.complete("canary-prompt", **canary | wrong)
        await client.complete([{"role": "canary-role", "content": "canary-content"}], max_tokens=1)
        stream = await Stream(client, "canary-prompt", **canary | ENDLESS).begin(2)
        server.kill_worker()
        assert (await stream.failure()).reason == "ENGINE_LOST"
    async with client_of(server, files, "canary-token-nobody-has") as client:
        with pytest.raises(RequestFailed):
            await client.complete("canary-prompt")
    credentials = grpc.ssl_channel_credentials(AUTHORITY.pem)
    async with grpc.aio.secure_channel(server.address, credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/trtspec.v1.Inference/GetModelInfo")(b"\x0a\xffcanary-bytes")
    replace(files / "tokens", b"alice canary!")
    deadline = time.monotonic() + 60
    while "--tokens" not in server.log and time.monotonic() < deadline:
        async with client_of(server, files) as client:
            with pytest.raises(RequestFailed):
                await client.complete("x", max_tokens=-1)
    replace(files / "tokens", f"alice {TOKEN}\n{line_of('bob', OTHER)}\n".encode())
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "engine" in server.log and "tokens of --tokens stay" in server.log, "the log tells what happened"
    assert "canary" not in server.log + server.line
