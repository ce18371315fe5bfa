"""Kernels run on the CPU here, which Triton decides when it is first imported."""

from __future__ import annotations

import os

import pytest

from plugins import aot

os.environ["TRITON_INTERPRET"] = "1"

OTHER_TRITON = "TRTSPEC_OTHER_TRITON"
"""Names the folder of another Triton, as `./scripts/other-triton` makes it; `./scripts/test --all` sets it."""


@pytest.fixture(params=["installed", "other"])
def triton(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version that compiles."""
    if request.param == "installed":
        return aot.triton_version()
    if not (folder := os.environ.get(OTHER_TRITON)):
        pytest.skip(f"{OTHER_TRITON} names no folder with another Triton: ./scripts/other-triton makes one")
    before = aot.triton_version()
    monkeypatch.syspath_prepend(folder)
    assert aot.triton_version() != before
    return aot.triton_version()
