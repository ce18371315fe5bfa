"""Files of bearer tokens."""

from __future__ import annotations

import hashlib
import hmac
import stat
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trtspec.cli.main import main
from trtspec.errors import ConfigError
from trtspec.service import tokens as module
from trtspec.service.tokens import TokenFile, line_of, new_token, parse

SECRET = "a-secret-of-some-length"
OTHER = "another-secret-of-some-length"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text(
        f"# clients\n\nalice {SECRET}\n  bob\tsha256:{hashlib.sha256(OTHER.encode()).hexdigest().upper()} \n"
    )
    return path


def test_plain_and_hashed_tokens_have_their_holders(file: Path) -> None:
    tokens = TokenFile(file, "--tokens")
    assert tokens.holder(SECRET) == "alice" and tokens.holder(OTHER) == "bob"
    for wrong in ("", "alice", SECRET[:-1], SECRET + " ", SECRET.upper(), f"sha256:{'0' * 64}", "\udcff", "ä"):
        assert tokens.holder(wrong) is None
    hashed = hashlib.sha256(OTHER.encode()).hexdigest()
    assert tokens.holder(hashed) is None and tokens.holder(f"sha256:{hashed}") is None, "the hash is no token"


def test_every_entry_is_compared_in_constant_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    tokens = TokenFile(file, "--tokens")
    for asked in (SECRET, OTHER, "wrong"):
        compared.clear()
        tokens.holder(asked)
        assert len(compared) == 2 and {len(item) for pair in compared for item in pair} == {32}


def test_a_name_may_have_two_tokens_while_one_is_exchanged(file: Path) -> None:
    tokens = TokenFile(file, "--tokens")
    new = new_token()
    with file.open("a") as lines:
        lines.write(line_of("alice", new) + "\n")
    assert tokens.holder(new) == tokens.holder(SECRET) == "alice"
    file.write_text(line_of("alice", new))
    assert tokens.holder(new) == "alice" and tokens.holder(SECRET) is None and tokens.holder(OTHER) is None


BAD = [
    ("", "holds no token, so nobody could call"),
    ("# alice secret\n\n", "holds no token, so nobody could call"),
    ("alice", "line 1 has 1 words; it must be NAME TOKEN"),
    (f"\nalice {SECRET} more", "line 2 has 3 words"),
    ("alice short", "line 1: a token needs at least 16 visible ASCII characters"),
    ("alice a-secret-of-söme-length", "line 1: a token needs at least 16 visible"),
    (f"alice sha256:{'0' * 63}", "line 1: sha256: must be followed by 64 hexadecimal digits"),
    (f"alice sha256:{'g' * 64}", "line 1: sha256: must be followed by 64"),
    (f"alice {SECRET}\nbob {SECRET}", "line 2: the token stands above already"),
    (f"alice {SECRET}\nbob sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}", "line 2: the token stands above"),
    (f"{'a' * 129} {SECRET}", "line 1: the name must have 1 to 128 printable characters"),
    (f"a\0b {SECRET}", "line 1: the name must have 1 to 128 printable characters"),
    (b"\xff\xfe", "is not UTF-8 from byte 0 on"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_file_is_refused_without_a_word_of_its_tokens(text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text if isinstance(text, bytes) else text.encode(), "--tokens f")
    assert str(caught.value).startswith("--tokens f") and message in str(caught.value)
    assert "secret" not in str(caught.value) and "00000" not in str(caught.value)


def test_a_bad_new_file_leaves_the_tokens_and_is_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = TokenFile(file, "--tokens")
    file.write_text("alice short-secret")
    assert tokens.holder(SECRET) == tokens.holder(SECRET) == "alice"
    assert len(caplog.messages) == 1 and "the tokens of --tokens stay as they were" in caplog.text
    assert "secret" not in caplog.text


@settings(max_examples=50)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
@example(b"a " + b"x" * 16 + b"\r\n\x85b " + b"y" * 16)
def test_any_bytes_are_tokens_or_refused(data: bytes) -> None:
    try:
        entries = parse(data, "--tokens f")
    except ConfigError:
        return
    for entry in entries:
        assert entry.name.isprintable() and len(entry.name.split()) == 1 and len(entry.digest) == 32


def test_the_command_makes_a_token_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "alice"]) == 0
    _, line, _, token = capsys.readouterr().out.splitlines()
    assert line == f"alice sha256:{hashlib.sha256(token.encode()).hexdigest()}" and len(token) == 43
    assert parse(line.encode(), "x")[0].name == "alice"


def test_the_command_adds_lines_to_a_file_for_nobody_elses_eyes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    made = []
    for name in ("alice", "bob", "alice"):
        assert main(["token", name, "--append", str(path)]) == 0
        made.append((name, capsys.readouterr().out.strip()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [TokenFile(path, "--tokens").holder(token) for _, token in made] == ["alice", "bob", "alice"]
    assert not any(token in path.read_text() for _, token in made)
    path.write_text("carol " + "c" * 20)  # without an end of line
    assert main(["token", "dave", "--append", str(path)]) == 0
    assert [entry.name for entry in parse(path.read_bytes(), "x")] == ["carol", "dave"]


@pytest.mark.parametrize("name", ["", "two words", "#x", "a\0", "x" * 129])
def test_the_command_refuses_what_is_no_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", name]) == 2
    assert capsys.readouterr().err.startswith("error: NAME")


def test_the_command_tells_a_file_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "alice", "--append", str(tmp_path)]) == 2
    assert "cannot be written: Is a directory" in capsys.readouterr().err
