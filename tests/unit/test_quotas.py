"""The arithmetic of what a client may have in a minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.errors import ClientBusy, RateLimited
from trtspec.service.quotas import Bucket, ClientLimits, Clients


def test_a_bucket_begins_full_and_fills_evenly_up_to_what_a_minute_allows() -> None:
    bucket = Bucket(60, 0.0)
    assert bucket.wait(60, 0.0) == 0
    bucket.take(60, 0.0)
    assert bucket.wait(1, 0.0) == pytest.approx(1)
    assert bucket.wait(10, 4.0) == pytest.approx(6)
    assert bucket.level(1000.0) == 60


def test_a_debt_is_filled_first() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(90, 0.0)
    assert bucket.wait(1, 0.0) == pytest.approx(31)


def test_more_than_a_minute_allows_fits_when_the_bucket_is_full() -> None:
    bucket = Bucket(60, 0.0)
    assert bucket.wait(1000, 0.0) == 0
    bucket.take(30, 0.0)
    assert bucket.wait(1000, 0.0) == pytest.approx(30)


amounts = st.floats(0, 500)


@given(
    per_minute=st.integers(1, 10_000),
    taken=st.lists(st.tuples(amounts, st.floats(0, 100)), max_size=8),
    amount=amounts,
)
def test_the_wait_is_the_true_one(per_minute: int, taken: list[tuple[float, float]], amount: float) -> None:
    """After it the amount fits, and a little before it does not."""
    bucket, now = Bucket(per_minute, 0.0), 0.0
    for some, pause in taken:
        bucket.take(some, now)
        now += pause
    if wait := bucket.wait(amount, now):
        assert bucket.wait(amount, now + wait + 1e-3) == 0
        assert bucket.wait(amount, now + wait * 0.99 - 1e-3) > 0


def enter(clients: Clients, name: str, tokens: int, now: float) -> float:
    """Seconds to wait; 0 where the request was let in."""
    try:
        clients.enter(name, tokens, now)
    except RateLimited as error:
        return float(error.details["retry_seconds"])
    return 0.0


def test_requests_and_tokens_of_a_minute_are_bounded_each_and_the_longer_wait_is_told() -> None:
    clients = Clients(ClientLimits(requests_per_minute=2, tokens_per_minute=300))
    assert enter(clients, "a", 100, 0.0) == enter(clients, "a", 100, 0.0) == 0
    with pytest.raises(RateLimited, match="2 requests a minute; try again in 30.0 s"):
        clients.enter("a", 100, 0.0)
    with pytest.raises(RateLimited, match="300 tokens a minute; try again in 40.0 s") as caught:
        clients.enter("a", 300, 0.0)
    # Smaller requests of the client would fit sooner.
    assert caught.value.details == {"retry_seconds": "40.000", "closed_seconds": "30.000"}
    assert enter(clients, "b", 100, 0.0) == 0


def test_emitted_tokens_may_leave_a_debt() -> None:
    clients = Clients(ClientLimits(tokens_per_minute=60))
    client = clients.enter("a", 10, 0.0)
    client.use(110, 0.0)
    assert enter(clients, "a", 1, 0.0) == 61
    assert enter(clients, "a", 1, 60.9) > 0 and enter(clients, "a", 1, 61.001) == 0


def test_a_refused_request_uses_nothing_up() -> None:
    clients = Clients(ClientLimits(live_requests=1, requests_per_minute=2, tokens_per_minute=60))
    first = clients.enter("a", 1, 0.0)
    for _ in range(5):
        with pytest.raises(ClientBusy, match="1 requests of this client are live and 1 is the limit"):
            clients.enter("a", 1, 0.0)
    first.leave()
    assert enter(clients, "a", 59, 0.0) == 0


def test_clients_are_forgotten_when_nothing_tells_them_from_new_ones() -> None:
    clients = Clients(ClientLimits(requests_per_minute=60))
    kept = clients.enter("kept", 1, 0.0)
    for number in range(10_000):
        clients.enter(str(number), 1, number / 10).leave()
    assert len(clients) < 2500
    kept.leave()
    assert enter(clients, "9999", 1, 1000.0) == 0


def test_a_client_in_debt_is_not_forgotten() -> None:
    clients = Clients(ClientLimits(tokens_per_minute=60))
    client = clients.enter("a", 1, 0.0)
    client.use(600, 0.0)
    client.leave()
    for number in range(3000):
        clients.enter(str(number), 0, 100.0).leave()
    assert enter(clients, "a", 1, 100.0) == pytest.approx(442, abs=1)
