"""What a request gets of speculation under a limit."""

from __future__ import annotations

import pytest

from trtspec.errors import SpeculationRefused
from trtspec.service.limits import check_required, under_limit
from trtspec.service.requests import AppliedSpeculation
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.types import Method

ASKED = AppliedSpeculation(Method.NGRAM, 4)
PLAIN = AppliedSpeculation(Method.NONE, 0, "off by default")


@pytest.mark.parametrize("depth", [None, 4, 5])
def test_what_does_not_lower_it_changes_nothing(depth: int | None) -> None:
    assert under_limit(ASKED, depth, "the operator") is ASKED


@pytest.mark.parametrize("depth", [None, 0, 3])
def test_a_request_without_drafts_keeps_its_reason(depth: int | None) -> None:
    assert under_limit(PLAIN, depth, "the operator") is PLAIN


def test_who_limits_it_is_named() -> None:
    assert under_limit(ASKED, 3, "the night shift") == AppliedSpeculation(
        Method.NGRAM, 3, "the night shift allows at most 3 draft tokens"
    )
    assert under_limit(ASKED, 0, "the night shift") == AppliedSpeculation(
        Method.NONE, 0, "switched off by the night shift"
    )


def test_only_a_request_that_insists_is_refused_and_only_where_nothing_is_drafted() -> None:
    insisting = AppliedSpeculation(Method.NGRAM, 4, required=True)
    for limit in (NO_LIMIT, SpeculationLimit(1)):
        check_required(insisting, limit)
    check_required(ASKED, SpeculationLimit(0))
    with pytest.raises(SpeculationRefused, match="switched off by the night shift"):
        check_required(insisting, SpeculationLimit(0, "the night shift"))


@pytest.mark.parametrize(("depth", "shown"), [(None, "any depth"), (0, "depth 0"), (3, "depth 3")])
def test_a_limit_is_shown_in_words(depth: int | None, shown: str) -> None:
    assert str(SpeculationLimit(depth)) == shown
