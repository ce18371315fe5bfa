"""What is repeated of TensorRT's log, and how much of it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from plugins import trt_log
from plugins.trt_log import Heard
from tests.nvinfer import tensorrt_without_libraries

LINES = ["one", "two", "two", "three", "four"]


@pytest.fixture(scope="module")
def trt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tensorrt_without_libraries(tmp_path_factory.mktemp("tensorrt")) as module:
        yield module


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        (Heard(LINES, LINES), "one; two; two"),
        (Heard([], LINES), "two; three; four"),
        (Heard(LINES[:1], LINES), "one"),
        (Heard(), "it did not say why"),
    ],
)
def test_the_first_errors_and_else_the_last_warnings_tell_why(heard: Heard, why: str) -> None:
    assert heard.why() == why


def test_a_log_that_goes_on_is_not_kept(trt: Any) -> None:
    shown: list[str] = []
    log, levels = trt_log.logger(trt, lambda severity, message: shown.append(message)), trt.ILogger.Severity
    for number in range(1000):
        log.log(levels.ERROR, f"line {number}")
        log.log(levels.INFO, "more")
    assert (len(shown), len(log.heard.errors), log.heard.errors[0]) == (2000, 50, "line 0")
    assert log.heard.warnings == []
