"""What one client may have of a server: live requests, requests and tokens in a minute.

Arithmetic over instants that it is told; it knows no clock, no gRPC and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.errors import ClientBusy, RateLimited

_SWEEP = 1024
"""So many clients may be known before those of whom nothing is left to know are looked for."""
_NOTHING = 1e-6
"""Seconds below this are rounding."""


class Bucket:
    """Fills evenly, up to what a minute allows. What is taken may leave a debt, which is filled first."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._most = self._level = per_minute
        self._at = now

    def level(self, now: float) -> float:
        """What can be taken without a debt."""
        return min(self._level + (now - self._at) * self._most / 60, self._most)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until the amount fits. More than a minute allows fits when the bucket is full."""
        seconds = (min(amount, self._most) - self.level(now)) * 60 / self._most
        return seconds if seconds > _NOTHING else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take an amount, whether it fits or not; a negative one is given back."""
        self._level = self.level(now) - amount
        self._at = now


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What each client may have; 0 is no bound."""

    live_requests: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


class Client:
    """One client."""

    def __init__(self, limits: ClientLimits, now: float) -> None:
        self.live = 0
        self._limits = limits
        self._requests = Bucket(limits.requests_per_minute, now) if limits.requests_per_minute else None
        self._tokens = Bucket(limits.tokens_per_minute, now) if limits.tokens_per_minute else None

    def enter(self, prompt_tokens: int, now: float) -> None:
        """Let a request in, or raise `ClientBusy` or `RateLimited`."""
        check_live(self.live, self._limits.live_requests)
        self._check_rates(prompt_tokens, now)
        self.live += 1
        if self._requests:
            self._requests.take(1, now)
        self.use(prompt_tokens, now)

    def leave(self) -> None:
        """A request that was let in has ended."""
        self.live -= 1

    def use(self, tokens: int, now: float) -> None:
        """Tokens were emitted; negative where those of a prompt were not used after all."""
        if self._tokens:
            self._tokens.take(tokens, now)

    def is_new(self, now: float) -> bool:
        """Nothing tells it from a client that was never seen."""
        full = all(bucket.wait(float("inf"), now) == 0 for bucket in (self._requests, self._tokens) if bucket)
        return self.live == 0 and full

    def _check_rates(self, prompt_tokens: int, now: float) -> None:
        limits = self._limits
        waits = {
            f"{limits.requests_per_minute} requests": self._requests.wait(1, now) if self._requests else 0.0,
            f"{limits.tokens_per_minute} tokens": self._tokens.wait(prompt_tokens, now) if self._tokens else 0.0,
        }
        what = max(waits, key=lambda key: waits[key])
        if (wait := waits[what]) > 0:
            closed = max(bucket.wait(1, now) for bucket in (self._requests, self._tokens) if bucket)
            raise rate_limited(f"this client has used its {what} a minute", wait, closed)


class Clients:
    """All clients of whom there is something to know."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._clients: dict[str, Client] = {}
        self._sweep_at = _SWEEP

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self, name: str, prompt_tokens: int, now: float) -> Client:
        """Let a request of a client in, or raise `ClientBusy` or `RateLimited`."""
        client = self._clients.get(name)
        if client is None:
            self._sweep(now)
            client = self._clients[name] = Client(self._limits, now)
        client.enter(prompt_tokens, now)
        return client

    def _sweep(self, now: float) -> None:
        """Forget, so that memory does not grow with everybody who ever called."""
        if len(self._clients) >= self._sweep_at:
            self._clients = {name: client for name, client in self._clients.items() if not client.is_new(now)}
            self._sweep_at = max(2 * len(self._clients), _SWEEP)


def check_live(live: int, limit: int) -> None:
    """Raise `ClientBusy` where one more is too many."""
    if limit and live >= limit:
        raise ClientBusy(
            f"{live} requests of this client are live and {limit} is the limit; wait until one of them ends",
            limit=str(limit),
        )


def rate_limited(why: str, wait: float, closed: float) -> RateLimited:
    """The refusal of a request that would fit after a wait."""
    return RateLimited(f"{why}; try again in {wait:.1f} s", wait, closed)
