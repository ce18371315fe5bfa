"""What is read on the event loop, and what in a thread: long steps and long stop strings hold no others up."""

from __future__ import annotations

import pytest

from tests.fakes import ids_of
from tests.models import tiny_tokenizer
from trtspec.service.assemble import OutputAssembler
from trtspec.service.detokenize import StopScanner
from trtspec.service.text import Tokenizer
from trtspec.types import StepOutput


@pytest.mark.parametrize(
    ("tokens", "stops", "light"),
    [(1, (), True), (64, (), True), (65, (), False), (1, ("x" * 1008,), True), (1, ("x" * 1009,), False)],
)
def test_work_is_counted_by_tokens_and_stop_strings(tokens: int, stops: tuple[str, ...], light: bool) -> None:
    decode = Tokenizer(tiny_tokenizer()).decode
    output = OutputAssembler(decode, (), StopScanner(stops), keep_output=False, keep_passes=False)
    assert output.is_light(StepOutput("a", 0, ids_of("a") * tokens, ())) is light
