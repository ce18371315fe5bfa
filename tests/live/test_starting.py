"""Servers that cannot start: one line that says why, the exit code, and nothing left behind."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.servers import run


def without_manifest(engine: Path) -> None:
    (engine / "manifest.json").unlink()


def with_truncated_weights(engine: Path) -> None:
    weights = engine / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def with_garbled_weights(engine: Path) -> None:
    weights = engine / "weights.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)


def with_edited_manifest(engine: Path) -> None:
    path = engine / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_context_tokens": 99}))


def with_half_a_manifest(engine: Path) -> None:
    path = engine / "manifest.json"
    path.write_text(path.read_text()[:100])


def gone(engine: Path) -> None:
    shutil.rmtree(engine)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (gone, "is no engine folder (it has no manifest.json) and no model"),
        (without_manifest, "has no manifest.json: it is not an engine, or its build did not finish"),
        (with_truncated_weights, "weights.safetensors has "),
        (with_garbled_weights, "weights.safetensors cannot be read"),
        (with_edited_manifest, "manifest.json was changed by hand"),
        (with_half_a_manifest, "manifest.json is damaged"),
    ],
)
def test_an_engine_that_is_not_whole_is_refused_in_one_line_that_names_the_folder(
    engine: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = shutil.copytree(engine, tmp_path / "engine")
    damage(folder)
    ended = run("serve", folder, "--port", "0", "--threads", "1")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1
    assert str(folder) in ended.err and message in ended.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--port", "70000"), "--port is 70000; allowed is 0 to 65535"),
        (("--max-batch-size", "0"), "--max-batch-size is 0; allowed is 1 or more"),
        (("--speculative-config", "{}"), '"method" is missing'),
        (
            ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 9}'),
            "num_speculative_tokens is 9 and the engine was built for at most 8",
        ),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_that_names_it(
    engine: Path, flags: tuple[str, ...], message: str
) -> None:
    ended = run("serve", engine, "--port", "0", "--threads", "1", *flags)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1 and message in ended.err


def test_a_port_in_use_is_a_failure_that_names_it(engine: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("serve", engine, "--port", str(port))
    assert (ended.code, ended.out) == (1, "")
    # gRPC itself logs a line before ours.
    assert ended.err.splitlines()[-1].startswith(f"error: cannot listen on 127.0.0.1:{port}; is the port in use?")
    assert "Traceback" not in ended.err
