"""TLS on the port: who can connect, and certificates that change, are wrong, or grow old."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from tests.certificates import NOW, YEAR, Issued, issue, replace
from tests.fakes import FakeExecutor, Hold, Pass, ids_of, serving
from trtspec.client import Client, RequestFailed
from trtspec.errors import ConfigError
from trtspec.service.access import CertificateAccess
from trtspec.service.certificates import Certificates, CertificateState, Files, Material
from trtspec.service.options import SecurityOptions, ServeOptions
from trtspec.service.protection import Protection, protect

AUTHORITY = issue("authority")
SERVER = issue("first", AUTHORITY)
NEXT = issue("second", AUTHORITY)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Port:
    """Files of a server's certificate."""

    directory: Path
    files: Files

    def put(self, issued: Issued, key: Issued | None = None) -> None:
        """Exchange both."""
        replace(self.files.key, (key or issued).key_pem)
        replace(self.files.certificate, issued.pem)

    @property
    def options(self) -> ServeOptions:
        security = SecurityOptions(self.files.certificate, self.files.key, self.files.client_ca)
        return ServeOptions(port=0, security=security)

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"


@pytest.fixture
def port(tmp_path: Path) -> Port:
    AUTHORITY.write(tmp_path, "ca")
    certificate, key = SERVER.write(tmp_path, "server")
    return Port(tmp_path, Files(certificate, key, None))


def localhost(address: str) -> str:
    """The name that certificates have."""
    return "localhost:" + address.rpartition(":")[2]


async def server_name(address: str) -> str:
    """The subject of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    host, _, number = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(number), ssl=context, server_hostname="localhost")
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).subject.rfc4514_string()


async def test_a_new_certificate_is_for_new_connections_and_live_streams_go_on(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    hold = Hold(asyncio.Event())
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), hold, Pass(ids_of("b"))])
    async with serving(executor, port.options, protection=protect(port.options)) as server:
        async with Client(localhost(server.address), root_certificates=port.ca) as client:
            events = client.generate("x")
            seen = [await anext(events), await anext(events)]
            assert await server_name(server.address) == "CN=first"
            port.put(NEXT)
            assert await server_name(server.address) == await server_name(server.address) == "CN=second"
            hold.event.set()
            seen += [event async for event in events]
        assert "".join(getattr(event, "text", "") for event in seen) == "ab"
        async with Client(localhost(server.address), root_certificates=port.ca) as client:
            assert (await client.complete("x")).text == "ab"
    assert [message.split(" were read again")[0] for message in caplog.messages][-1] == "the certificates in use"


async def test_what_has_not_changed_is_not_given_to_grpc_again(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[CertificateState] = []

    def configuration(material: Material) -> grpc.ServerCertificateConfiguration:
        given.append(material.state)
        return grpc.ssl_server_certificate_configuration([(material.key, material.chain)])

    monkeypatch.setattr("trtspec.service.tls._configuration", configuration)
    async with serving(FakeExecutor(), port.options, protection=protect(port.options)) as server:
        for _ in range(3):
            await server_name(server.address)
        port.put(NEXT)
        for _ in range(3):
            await server_name(server.address)
    assert [state.subject for state in given] == ["CN=first", "CN=second"]


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


EXPIRED = issue("expired", AUTHORITY, ends=NOW - DAY)
EARLY = issue("early", AUTHORITY, begins=NOW + DAY)
BAD_CHANGES: dict[str, tuple[Callable[[Port], None], str]] = {
    "expired": (lambda port: port.put(EXPIRED), "the new TLS certificate of CN=expired expired on"),
    "not valid yet": (lambda port: port.put(EARLY), "the new TLS certificate of CN=early is valid from"),
    "another key": (lambda port: replace(port.files.key, NEXT.key_pem), "is not the key of --tls-certificate"),
    "another certificate": (lambda port: replace(port.files.certificate, NEXT.pem), "is not the key of"),
    "half a certificate": (lambda port: port.files.certificate.write_bytes(half(NEXT.pem)), "no whole PEM certificate"),
    "half a chain": (
        lambda port: port.files.certificate.write_bytes(SERVER.pem + half(NEXT.pem)),
        "holds a PEM certificate that is cut off",
    ),
    "half a key": (lambda port: port.files.key.write_bytes(half(NEXT.key_pem)), "holds no whole PEM private key"),
    "an empty file": (lambda port: port.files.certificate.write_bytes(b""), "holds no whole PEM certificate"),
    "no file": (lambda port: port.files.key.unlink(), "cannot be read: No such file or directory"),
    "a locked key": (
        lambda port: port.files.key.write_bytes(SERVER.encrypted_key_pem(b"open sesame")),
        "is encrypted; give it without a password",
    ),
}


@pytest.mark.parametrize("name", BAD_CHANGES)
async def test_a_bad_new_certificate_is_told_once_and_not_taken(
    name: str, port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    change, message = BAD_CHANGES[name]
    protection = protect(port.options)
    async with serving(FakeExecutor([Pass(ids_of("a"))]), port.options, protection=protection) as server:
        change(port)
        assert await server_name(server.address) == await server_name(server.address) == "CN=first"
        [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert message in told.message and "stay as they were" in told.message
        assert protection.certificates is not None and message in protection.certificates.problem
        port.put(NEXT)
        assert await server_name(server.address) == "CN=second" and protection.certificates.problem == ""


@pytest.mark.parametrize("name", [name for name in BAD_CHANGES if name not in ("expired", "not valid yet")])
def test_a_server_does_not_start_with_files_that_do_not_fit(name: str, port: Port) -> None:
    change, message = BAD_CHANGES[name]
    change(port)
    with pytest.raises(ConfigError, match=r"--tls-(key|certificate) /.*") as caught:
        protect(port.options)
    assert message in str(caught.value) and "PRIVATE" not in str(caught.value)


async def test_a_server_starts_with_an_expired_certificate_and_recovers(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    port.put(EXPIRED)
    protection = protect(port.options)
    assert f"the TLS certificate of CN=expired expired on {NOW - DAY}; put another one into its place" in caplog.text
    async with serving(FakeExecutor([Pass(ids_of("a"))]), port.options, protection=protection) as server:
        async with Client(localhost(server.address), root_certificates=port.ca) as client:
            with pytest.raises(RequestFailed) as caught:
                await client.complete("x", timeout=20)
            assert caught.value.status is grpc.StatusCode.UNAVAILABLE
            assert "certificate has expired" in str(caught.value) or "CERTIFICATE_VERIFY_FAILED" in str(caught.value)
        port.put(NEXT)
        async with Client(localhost(server.address), root_certificates=port.ca) as client:
            assert (await client.complete("x")).text == "a"


@pytest.mark.parametrize(
    ("life", "left", "told"),
    [
        (YEAR, 15 * DAY, False),
        (YEAR, 13 * DAY, True),
        (10 * DAY, 2.1 * DAY, False),
        (10 * DAY, 1.9 * DAY, True),
        (timedelta(hours=1), timedelta(minutes=20), False),
        (timedelta(hours=1), timedelta(minutes=10), True),
    ],
)
def test_an_end_that_is_near_is_told_once_with_its_date(
    life: timedelta, left: timedelta, told: bool, port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    port.put(issue("old", AUTHORITY, begins=NOW + left - life, ends=NOW + left))
    certificates = Certificates(port.files)
    for _ in range(3):
        certificates.look()
    assert caplog.messages == [
        f"the TLS certificate of CN=old expires on {NOW + left}; put another one into its place"
    ] * int(told)
    assert certificates.state.not_after == NOW + left


def test_it_is_told_again_after_a_day_and_of_the_next_certificate(
    port: Port, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    port.put(issue("old", AUTHORITY, ends=NOW + DAY))
    certificates = Certificates(port.files)
    clock = [0.0]
    monkeypatch.setattr("trtspec.service.certificates.time.monotonic", lambda: clock[0])
    certificates._told_at = 0.0
    for clock[0], count in ((86_000.0, 1), (86_401.0, 2), (86_402.0, 2)):
        certificates.look()
        assert len(caplog.messages) == count
    port.put(issue("other", AUTHORITY, ends=NOW + 2 * DAY))
    certificates.look()
    assert "CN=other expires" in caplog.messages[-1] and len(caplog.messages) == 4, "read again, and near its end, too"
    port.put(NEXT)
    certificates.look()
    assert len(caplog.messages) == 5 and "expires" not in caplog.messages[-1]


def test_a_chain_is_as_old_as_its_first_to_expire(port: Port) -> None:
    replace(port.files.certificate, SERVER.pem + issue("between", AUTHORITY, ends=NOW + DAY).pem)
    assert Certificates(port.files).state.not_after == NOW + DAY


@pytest.mark.parametrize(
    ("common_name", "alternatives", "name"),
    [
        ("alice", (), "alice"),
        ("alice", ("bob.example", "carol.example"), "bob.example"),
        ("", ("spiffe://cluster/ns/chat",), "spiffe://cluster/ns/chat"),
        ("", (), None),
    ],
)
async def test_a_client_certificate_says_who_calls(
    common_name: str, alternatives: tuple[str, ...], name: str | None, port: Port
) -> None:
    mutual = Port(port.directory, Files(port.files.certificate, port.files.key, port.ca))
    executor = FakeExecutor([Pass(ids_of("a"))])
    certificate, key = issue(common_name, AUTHORITY, alternatives).write(port.directory, "client")
    shown = {"root_certificates": port.ca, "certificate": certificate, "key": key}
    async with (
        serving(executor, mutual.options, protection=protect(mutual.options)) as server,
        Client(localhost(server.address), **shown) as client,
    ):
        if name is None:
            with pytest.raises(RequestFailed, match="certificate has no name") as caught:
                await client.complete("x")
            assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
        else:
            await client.complete("x", tenant="t")
            assert executor.requests[0].tenant == f"t\0\0{name}"


@pytest.mark.parametrize("stranger", [None, issue("alice", issue("authority"))], ids=["none", "another authority's"])
async def test_without_a_certificate_of_the_clients_authority_nobody_connects(
    stranger: Issued | None, port: Port
) -> None:
    mutual = Port(port.directory, Files(port.files.certificate, port.files.key, port.ca))
    files = stranger.write(port.directory, "client") if stranger else (None, None)
    shown = {"root_certificates": port.ca, "certificate": files[0], "key": files[1]}
    async with (
        serving(FakeExecutor([Pass(ids_of("a"))]), mutual.options, protection=protect(mutual.options)) as server,
        Client(localhost(server.address), **shown) as client,
    ):
        with pytest.raises(RequestFailed) as caught:
            await client.complete("x", timeout=20)
        assert caught.value.status is grpc.StatusCode.UNAVAILABLE


async def test_the_clients_authority_is_read_again_too(port: Port) -> None:
    mutual = Port(port.directory, Files(port.files.certificate, port.files.key, port.directory / "clients.pem"))
    other = issue("another authority")
    replace(port.directory / "clients.pem", AUTHORITY.pem)
    certificate, key = issue("alice", other).write(port.directory, "client")
    async with serving(FakeExecutor([Pass(ids_of("a"))]), mutual.options, protection=protect(mutual.options)) as server:
        shown = {"root_certificates": port.ca, "certificate": certificate, "key": key}
        async with Client(localhost(server.address), **shown) as client:
            with pytest.raises(RequestFailed):
                await client.complete("x", timeout=20)
        replace(port.directory / "clients.pem", other.pem)
        async with Client(localhost(server.address), **shown) as client:
            assert (await client.complete("x")).text == "a"


async def test_plain_text_does_not_reach_a_port_with_tls(port: Port) -> None:
    async with (
        serving(FakeExecutor([Pass(ids_of("a"))]), port.options, protection=protect(port.options)) as server,
        Client(server.address) as client,
    ):
        with pytest.raises(RequestFailed) as caught:
            await client.complete("x", timeout=20)
        assert caught.value.status is grpc.StatusCode.UNAVAILABLE


def test_the_access_of_a_port_follows_from_its_files(port: Port) -> None:
    mutual = Port(port.directory, Files(port.files.certificate, port.files.key, port.ca))
    assert isinstance(protect(mutual.options).access, CertificateAccess)
    assert protect(ServeOptions()) == Protection()


async def test_files_are_looked_at_without_connections(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.service.protection._LOOK_SECONDS", 0.01)
    protection = protect(port.options)
    assert protection.certificates is not None
    looked = asyncio.Event()
    loop, look = asyncio.get_running_loop(), Certificates.look
    monkeypatch.setattr(Certificates, "look", lambda self: (look(self), loop.call_soon_threadsafe(looked.set)))
    async with protection.kept():
        await asyncio.wait_for(looked.wait(), 20)
