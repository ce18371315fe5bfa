"""Whether speculation has gone off for good, from what ended and from iteration statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtspec.executors.tensorrt_llm.acceptance_watch import AcceptanceWatch, warning
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method

GATE = SpeculativeConfig(
    Method.DRAFT_MODEL,
    num_speculative_tokens=4,
    max_concurrency=2,
    acceptance_window=3,
    acceptance_length_threshold=0.5,
)


def iteration(drafts: int | None, active: int = 1, generating: int = 1) -> dict[str, Any]:
    stats = None if drafts is None else {"numDraftTokens": drafts}
    batch = {"numGenRequests": generating}
    return {"numActiveRequests": active, "inflightBatchingStats": batch, "specDecodingStats": stats}


QUIET = [iteration(None), iteration(0)] * 20


def fallen(lengths: tuple[float | None, ...], running: int = 1, config: SpeculativeConfig = GATE) -> AcceptanceWatch:
    watch = AcceptanceWatch(config, max_batch_size=4)
    for length in lengths:
        watch.ended(length, running)
    return watch


def test_it_is_told_once_when_the_mean_has_fallen_and_nothing_is_drafted(caplog: pytest.LogCaptureFixture) -> None:
    watch = fallen((1.5, 1.25, 1.0))
    watch.iterated([iteration(4)] * 40)
    assert caplog.messages == []
    for _ in range(3):
        watch.iterated(QUIET)
    (message,) = caplog.messages
    assert "off for good: the mean accepted length of the last 3 requests was 0.25 and" in message


@pytest.mark.parametrize(
    ("lengths", "running"),
    [
        ((1.5, 1.5, 1.5), 1),  # as much as the threshold
        ((1.0, 1.0), 1),  # fewer than the window
        ((1.0, 1.0, 5.0, 5.0), 1),  # no three in a row
        ((1.0, 1.0, None), 1),  # one ended before it began
        ((1.0, 1.0, 1.0), 3),  # none of them may draft
        ((1.0, 1.0, 1.0), 9),
    ],
)
def test_quiet_passes_alone_say_nothing(
    lengths: tuple[float | None, ...], running: int, caplog: pytest.LogCaptureFixture
) -> None:
    fallen(lengths, running).iterated(QUIET)
    assert caplog.messages == []


@pytest.mark.parametrize("what", [iteration(None, active=3), iteration(None, generating=0), {}])
def test_passes_that_may_not_draft_say_nothing(what: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    fallen((1.0, 1.0, 1.0)).iterated([what] * 40)
    assert caplog.messages == []


def test_a_draft_begins_the_count_again(caplog: pytest.LogCaptureFixture) -> None:
    fallen((1.0, 1.0, 1.0)).iterated([*[iteration(0)] * 15, iteration(4)] * 4)
    assert caplog.messages == []


def test_a_full_batch_is_what_runs(caplog: pytest.LogCaptureFixture) -> None:
    """Requests that wait for it do not."""
    fallen((1.0, 1.0, 1.0), 9, replace(GATE, max_concurrency=4)).iterated(QUIET)
    assert len(caplog.messages) == 1


def test_without_a_gate_there_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    open_ = replace(GATE, acceptance_window=0, acceptance_length_threshold=0.0)
    fallen((1.0, 1.0, 1.0), config=open_).iterated(QUIET)
    assert caplog.messages == [] and warning(open_) is None
    assert "the last 3 requests is below 0.5" in str(warning(GATE))
