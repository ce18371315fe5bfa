"""The rule by which PyTorch comes into a fresh environment."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts.install_torch import (
    CPU_INDEX,
    PINNED,
    SUPPORTED,
    Choice,
    answers,
    choose,
    describe_download,
    install_or_fall_back,
    size_of,
    supported,
)

ROOT = Path(__file__).parent.parent


def never_asked() -> bool:
    raise AssertionError("the network was asked although it could not matter")


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0", "2.13.0+cpu", "2.9.1+cu128"])
def test_versions_in_the_range_are_supported(version: str) -> None:
    assert supported(version)


@pytest.mark.parametrize("version", [None, "", "unknown", "1.13.1", "2.5.1", "2.14.0", "3.0.0"])
def test_other_versions_are_not(version: str | None) -> None:
    assert not supported(version)


def test_the_range_is_the_one_of_the_package() -> None:
    assert f'"{SUPPORTED}"' in (ROOT / "pyproject.toml").read_text()
    assert supported(PINNED.removeprefix("torch=="))
    bounds = re.fullmatch(r"torch>=(\d+\.\d+),<(\d+\.\d+)", SUPPORTED)
    assert bounds is not None and supported(bounds[1]) and not supported(bounds[2])


def test_an_installed_version_stays_and_wins_over_the_override() -> None:
    assert choose("2.13.0+cpu", "https://example.org/simple", never_asked) is None


def test_the_override_is_the_index_and_nothing_is_asked() -> None:
    choice = choose("2.5.1", "https://example.org/simple", never_asked)
    assert choice is not None
    assert (choice.requirement, choice.index) == (SUPPORTED, "https://example.org/simple")


def test_an_empty_override_counts_as_none() -> None:
    choice = choose(None, "", lambda: True)
    assert choice is not None and choice.index == CPU_INDEX


def test_the_cpu_index_is_used_when_it_answers() -> None:
    choice = choose(None, None, lambda: True)
    assert choice is not None
    assert (choice.requirement, choice.index) == (PINNED, CPU_INDEX)


def test_the_default_index_is_the_last_resort() -> None:
    choice = choose(None, None, lambda: False)
    assert choice is not None
    assert (choice.requirement, choice.index) == (PINNED, None)


def tried(choice: Choice, *statuses: int) -> tuple[int, list[Choice]]:
    """The exit status of an installation whose attempts end like this, and what was attempted."""
    attempts: list[Choice] = []

    def install(attempt: Choice) -> int:
        attempts.append(attempt)
        return statuses[len(attempts) - 1]

    return install_or_fall_back(choice, install), attempts


def test_a_failed_install_from_the_cpu_index_falls_back_and_says_why() -> None:
    choice = Choice(PINNED, CPU_INDEX, "the index of CPU builds answers")
    fallback = Choice(PINNED, None, f"the install from {CPU_INDEX} failed")
    assert tried(choice, 1, 0) == (0, [choice, fallback])
    assert tried(choice, 1, 3) == (3, [choice, fallback])
    assert tried(choice, 0) == (0, [choice])


@pytest.mark.parametrize("index", ["https://example.org/simple", None])
def test_other_failures_are_final(index: str | None) -> None:
    choice = Choice(SUPPORTED, index, "asked for")
    assert tried(choice, 1) == (1, [choice])


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([], "unknown size"),
        ([None], "unknown size"),
        ([1_500_000_000, 2_000_000], "1,502 MB in 2 files"),
        ([3_000_000, None], "at least 3 MB in 2 files (1 of unknown size)"),
    ],
)
def test_the_size_is_told_as_far_as_it_is_known(sizes: list[int | None], text: str) -> None:
    assert describe_download(sizes) == text


class Index(BaseHTTPRequestHandler):
    """A package index with one file of 1234 bytes, one of unknown size, and a path that never answers."""

    released = threading.Event()

    def do_HEAD(self) -> None:
        self.send_response(404 if self.path == "/missing.whl" else 200)
        if self.path == "/known.whl":
            self.send_header("Content-Length", "1234")
        self.end_headers()

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.released.wait()
        self.do_HEAD()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the output of a test is its result."""


@pytest.fixture
def index() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    Index.released.clear()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Index.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_index_answers_or_does_not(index: str) -> None:
    assert answers(f"{index}/known.whl")
    assert not answers(f"{index}/missing.whl")
    assert not answers(f"{index}/silent", seconds=0.2)
    assert not answers("no address")


def test_sizes_are_found_on_servers_and_on_disk(index: str, tmp_path: Path) -> None:
    file = tmp_path / "a wheel.whl"
    file.write_bytes(b"x" * 7)
    assert size_of(f"{index}/known.whl") == 1234
    assert size_of(f"{index}/unknown.whl") is None
    assert size_of(f"{index}/missing.whl") is None
    assert size_of(file.as_uri()) == 7
    assert size_of((tmp_path / "absent.whl").as_uri()) is None
