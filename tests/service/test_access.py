"""Who may call what: every RPC but health wants a token where there are tokens, and ports are not left open."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.fakes import FakeExecutor, Pass, Serving, ids_of, serving
from trtspec.cli.main import main
from trtspec.client import Client, RequestFailed
from trtspec.errors import ConfigError
from trtspec.loopback import is_loopback, reaches_loopback
from trtspec.service.exposure import check_exposure, check_main_port, warn_of_strangers
from trtspec.service.options import SecurityOptions, ServeOptions
from trtspec.service.protection import protect
from trtspec.service.reflecting import place

ALICE, BOB = "the-token-of-alice-0", "the-token-of-bob-000"
OPEN = {"grpc.health.v1.Health"}
"""For probes, which hold no tokens."""


@pytest.fixture
def options(tmp_path: Path) -> ServeOptions:
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text(f"alice {ALICE}\nbob {BOB}\n")
    return ServeOptions(port=0, security=SecurityOptions(tokens=file))


@pytest.fixture
async def server(options: ServeOptions) -> AsyncIterator[Serving]:
    async with serving(FakeExecutor([Pass(ids_of("a"))]), options, protection=protect(options)) as server:
        yield server


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def services(channel: grpc.aio.Channel) -> list[str]:
    """Every service that the server tells of."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(iter([question]), metadata=bearer(ALICE))
    return [service.name async for answer in call for service in answer.list_services_response.service]


async def code_of(channel: grpc.aio.Channel, method: str, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode:
    """The status of a call with an empty message; a stream of both directions takes one, too."""
    call = channel.stream_stream(method)(iter([b""]), metadata=metadata, timeout=20)
    try:
        async for _ in call:
            call.cancel()
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


@pytest.mark.parametrize(
    "metadata", [(), bearer("wrong"), bearer(""), bearer(ALICE)[:1] * 2, (("authorization", f"Basic {ALICE}"),)]
)
async def test_every_rpc_but_health_wants_a_token(server: Serving, metadata: tuple[tuple[str, str], ...]) -> None:
    found = await services(server.channel)
    assert {"trtspec.v1.Inference", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= set(found)
    for service in found:
        for method in descriptor_pool.Default().FindServiceByName(service).methods:
            name = f"/{service}/{method.name}"
            code = await code_of(server.channel, name, metadata)
            assert (code is grpc.StatusCode.UNAUTHENTICATED) == (service not in OPEN), name
            if service not in OPEN:
                assert await code_of(server.channel, name, bearer(BOB)) is not grpc.StatusCode.UNAUTHENTICATED


async def test_health_answers_probes_without_a_token(server: Serving) -> None:
    answer = await health_pb2_grpc.HealthStub(server.channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_token_decides_the_caller_and_its_tenant(options: ServeOptions) -> None:
    executor = FakeExecutor([Pass(ids_of("a"))])
    async with serving(executor, options, protection=protect(options)) as server:
        for token in (ALICE, BOB):
            async with Client(server.address, token=token) as client:
                assert (await client.complete("x", tenant="t")).text == "a"
                assert (await client.model_info()).model == "tiny" and await client.tokenize("x")
    assert [request.tenant for request in executor.requests] == ["t\0\0alice", "t\0\0bob"]


async def test_a_refusal_says_how_to_be_let_in(server: Serving) -> None:
    async with Client(server.address) as client:
        with pytest.raises(RequestFailed, match="send the metadata `authorization: Bearer TOKEN`") as caught:
            await client.complete("x")
        assert caught.value.reason == "UNAUTHENTICATED"
    async with Client(server.address, token="a-wrong-token-of-mallory") as client:
        with pytest.raises(RequestFailed, match="is not known") as caught:
            await client.complete("x")
        assert "mallory" not in str(caught.value)


async def test_the_scheme_is_written_as_one_likes(server: Serving) -> None:
    for text in (f"bearer {ALICE}", f"BEARER   {ALICE} "):
        code = await code_of(server.channel, "/trtspec.v1.Inference/GetModelInfo", (("authorization", text),))
        assert code is grpc.StatusCode.OK


async def test_tokens_change_without_a_restart(options: ServeOptions, server: Serving) -> None:
    assert options.security.tokens is not None
    async with Client(server.address, token=ALICE) as alice, Client(server.address, token="c" * 30) as carol:
        await alice.model_info()
        options.security.tokens.write_text(f"carol {'c' * 30}")
        await carol.model_info()
        with pytest.raises(RequestFailed, match="is not known"):
            await alice.model_info()


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *[(name, True) for name in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "::ffff:127.0.0.1")],
        *[(name, False) for name in ("", "0.0.0.0", "::", "[::]", "10.0.0.1", "fe80::1%lo", "::ffff:10.0.0.1")],
        *[(name, False) for name in ("no.such.host.invalid", "a" * 300, "\udcff")],
    ],
)
def test_which_addresses_are_of_this_machine_alone(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_a_name_for_addresses_of_both_kinds_is_not_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", ("127.0.0.1", 0)), (0, 0, 0, "", ("10.0.0.1", 0))]
    monkeypatch.setattr("trtspec.loopback.socket.getaddrinfo", lambda *_, **__: found)
    assert not is_loopback("both") and not reaches_loopback("both:50051")
    found.pop()
    assert is_loopback("both") and reaches_loopback("both:50051")


@pytest.mark.parametrize(
    ("target", "own"),
    [
        *[(name, True) for name in ("127.0.0.1:5", "[::1]:5", "localhost:5", "unix:/tmp/x", "ipv4:127.0.0.1:5")],
        *[(name, True) for name in ("dns:///localhost:5", "localhost", "unix-abstract:x")],
        *[(name, False) for name in ("10.0.0.1:5", "[fe80::1]:5", "models.invalid:5", "dns:///models.invalid:5", ":5")],
    ],
)
def test_which_targets_are_of_this_machine_alone(target: str, own: bool) -> None:
    assert reaches_loopback(target) is own


PUBLIC = ("0.0.0.0", "::", "10.1.2.3", "")
TLS = {"tls_certificate": Path("c"), "tls_key": Path("k")}
TOKENS = {"tokens": Path("t")}


@pytest.mark.parametrize("host", PUBLIC)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "there is neither TLS nor a token; give --tls-certificate and --tls-key"),
        (TOKENS, "tokens would travel in plain text; give --tls-certificate and --tls-key"),
    ],
)
def test_a_port_is_not_left_open_by_accident(host: str, given: dict[str, Path], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_main_port(ServeOptions(host=host, security=SecurityOptions(**given)))
    told = str(caught.value)
    assert told.startswith(f"--host {host} can be reached from other machines, and {message}")
    assert all(way in told for way in ("127.0.0.1", "--allow-insecure", "--tokens", "--tls-client-ca"))
    with pytest.raises(ConfigError):
        protect(ServeOptions(host=host, security=SecurityOptions(**given)))
    check_main_port(ServeOptions(host=host, security=SecurityOptions(**given, allow_insecure=True)))
    check_main_port(ServeOptions(host="127.0.0.1", security=SecurityOptions(**given)))
    check_main_port(ServeOptions(host=host, security=SecurityOptions(**given, **TLS)))


def test_another_port_is_checked_alike() -> None:
    arguments = ("0.0.0.0", False, SecurityOptions(), "--admin-host", "has no tokens; give --admin-tokens")
    with pytest.raises(ConfigError, match="--admin-host 0.0.0.0 can be reached from other machines, and has no tokens"):
        check_exposure(*arguments)
    check_exposure("0.0.0.0", True, *arguments[2:])
    check_exposure("127.0.0.1", False, *arguments[2:])


@pytest.mark.parametrize(
    ("host", "given", "told"),
    [
        ("0.0.0.0", TLS, True),
        ("0.0.0.0", TLS | TOKENS, False),
        ("0.0.0.0", TLS | {"tls_client_ca": Path("a")}, False),
        ("0.0.0.0", TLS | {"allow_insecure": True}, False),
        ("127.0.0.1", TLS, False),
    ],
)
def test_a_port_for_everybody_is_told(
    host: str, given: dict[str, object], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_strangers(ServeOptions(host=host, security=SecurityOptions(**given)))  # type: ignore[arg-type]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * told


@pytest.mark.parametrize(
    "given", [{"tls_key": Path("k")}, {"tls_certificate": Path("c")}, {"tls_client_ca": Path("a")}]
)
def test_half_of_tls_is_refused(given: dict[str, Path]) -> None:
    [name] = given
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is given, and TLS needs both"):
        SecurityOptions(**given)


def test_reflection_on_a_port_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--reflection admin needs the admin port; give --admin-port"):
        SecurityOptions(reflection="admin")


@pytest.mark.parametrize(
    ("host", "setting", "admin_port", "where"),
    [
        ("127.0.0.1", "auto", -1, "main"),
        ("127.0.0.1", "auto", 0, "main"),
        ("0.0.0.0", "auto", -1, "off"),
        ("0.0.0.0", "auto", 0, "admin"),
        ("0.0.0.0", "main", 0, "main"),
        ("127.0.0.1", "off", 0, "off"),
        ("127.0.0.1", "admin", 0, "admin"),
    ],
)
def test_where_reflection_is(host: str, setting: str, admin_port: int, where: str) -> None:
    security = SecurityOptions(reflection=setting, admin_port=admin_port)
    assert place(ServeOptions(host=host, security=security)) == where


async def test_reflection_that_is_off_is_not_there() -> None:
    options = ServeOptions(port=0, security=SecurityOptions(reflection="off"))
    async with serving(FakeExecutor(), options) as server:
        name = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        assert await code_of(server.channel, name, ()) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--token-file .* cannot be read: No such file"),
        (b"two words\n", "--token-file .* must hold one token and nothing else"),
        (b"", "--token-file .* must hold one token and nothing else"),
        ("ä".encode(), "--token-file .* holds no token: a token is ASCII"),
    ],
)
def test_a_file_without_a_token_is_told(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    assert main(["generate", "--server", "127.0.0.1:1", "--token-file", str(file), "hello"]) == 2
    assert re.match(f"error: {message}", told := capsys.readouterr().err), told
    assert "words" not in told


def test_a_client_does_not_show_its_token_to_the_network() -> None:
    with pytest.raises(ConfigError, match=r"would travel to models\.invalid:1 in plain text"):
        Client("models.invalid:1", token=ALICE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"token": "two\nlines"}, "visible ASCII"),
        ({"token": ""}, "visible ASCII"),
        ({"token": "ä" * 20}, "visible ASCII"),
        ({"certificate": "c"}, "a client certificate needs its key"),
        ({"key": "k"}, "a client certificate needs its key"),
        ({"root_certificates": "no/such/file"}, "no/such/file cannot be read: No such file"),
        ({"root_certificates": __file__}, "is no PEM file"),
    ],
)
def test_a_client_says_what_is_wrong_with_its_settings(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Client("127.0.0.1:1", **given)  # type: ignore[arg-type]
    assert "lines" not in str(caught.value)
