"""Files that are read again when they change."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from trtspec.errors import ConfigError
from trtspec.service.watched import Watched, content, warn_if_open


def number(path: Path) -> int:
    try:
        return int(content(path, "--number"))
    except ValueError as error:
        raise ConfigError(f"{path} is no number") from error


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("1")
    return tmp_path / "file"


def test_a_bad_change_leaves_the_value_and_is_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched("the number", [file], lambda: number(file))
    file.write_text("no number")
    assert [watched.current() for _ in range(3)] == [1, 1, 1]
    assert caplog.messages == [f"{file} is no number; the number stay as they were"]
    assert watched.problem == f"{file} is no number"
    file.write_text("22")
    assert watched.current() == 22 and watched.problem == ""
    assert caplog.messages[1:] == [f"the number were read again, for {file} changed"]


def test_a_file_that_goes_and_comes_back(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched("the number", [file], lambda: number(file))
    file.unlink()
    assert watched.current() == watched.current() == 1 and len(caplog.messages) == 1
    file.write_text("3")
    assert watched.current() == 3


def test_a_file_of_the_same_size_in_its_place_is_another_one(file: Path) -> None:
    watched = Watched("the number", [file], lambda: number(file))
    stat = file.stat()
    other = file.with_name("other")
    other.write_text("2")
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(file)
    assert watched.current() == 2


def test_what_is_not_changed_is_not_read(file: Path) -> None:
    reads = []
    watched = Watched("the number", [file], lambda: reads.append(1) or len(reads))
    assert watched.current() == watched.current() == 1


def test_a_value_can_be_refused_as_a_successor_only(file: Path) -> None:
    def small(value: int) -> None:
        if value > 5:
            raise ConfigError(f"{value} is too much")

    file.write_text("9")
    watched = Watched("the number", [file], lambda: number(file), small)
    file.write_text("10")
    assert watched.current() == 9 and watched.problem == "10 is too much"
    file.write_text("4")
    assert watched.current() == 4


def test_a_file_of_any_size_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="--x .*huge has more than 1048576 bytes"):
        content(tmp_path / "huge", "--x")
    with pytest.raises(ConfigError, match="--x .* cannot be read: Is a directory"):
        content(tmp_path, "--x")
    with pytest.raises(ConfigError, match="--x .* cannot be read: embedded null byte"):
        content(tmp_path / "a\0b", "--x")


@pytest.mark.parametrize(
    ("mode", "told"), [(0o600, False), (0o640, False), (0o400, False), (0o644, True), (0o660, True), (0o602, True)]
)
def test_a_file_of_secrets_that_others_may_read_is_told(
    mode: int, told: bool, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(mode)
    warn_if_open(file, "--tokens")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * told
    assert not told or f"(mode {mode:o})" in caplog.text
