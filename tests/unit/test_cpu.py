"""Instruction sets, from the kernel's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.cpu import cpu_flags


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n", {"fpu", "avx2"}),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("model name\t: a bf16 machine\nflags\t\t:\n", set()),
        ("flags without a colon\n", set()),
        ("", set()),
    ],
)
def test_flags_of_the_first_processor(tmp_path: Path, text: str, flags: set[str]) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert cpu_flags(path) == flags


def test_a_system_without_the_file_has_none(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path / "absent") == frozenset()
