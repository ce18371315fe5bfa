"""A TensorRT-LLM engine over the double and the embedded engine of the same method, each behind a server."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.live.conftest import ATTENTION_SHARE
from tests.live.servers import LiveServer
from trtspec.client import Client, Completion

PROMPTS = ("the answer is the answer", "one two three one two three one two")
UNPROVEN = "output law unproven: right by construction, and no test has shown it on this backend itself\n"


@dataclass(frozen=True)
class Pair:
    """The same method on both backends."""

    method: str
    engine: LiveServer
    embedded: LiveServer


def quieten(model: Path) -> Path:
    """Attention adds little, so that the model's text comes back to where it was."""
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    quiet = {name: tensor * ATTENTION_SHARE for name, tensor in tensors.items() if name.endswith("o_proj.weight")}
    save_file(tensors | quiet, weights, metadata={"format": "pt"})
    return model


@contextmanager
def served(method: str, engine: Path, embedded: Path, logs: Path) -> Iterator[Pair]:
    """Both must end without a word on standard error, but for the output law that is unproven."""
    servers = [
        LiveServer(engine, logs / f"{method}.log"),
        LiveServer(embedded, logs / "embedded.log", "--threads", "1"),
    ]
    try:
        yield Pair(method, *servers)
        for server in servers:
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            known = UNPROVEN if server is servers[0] and method != "none" else ""
            assert server.log == known
    finally:
        for server in servers:
            server.close()


async def answers(server: LiveServer) -> list[Completion]:
    async with Client(server.address) as client:
        return [await client.complete(prompt, max_tokens=40, ignore_eos=True, temperature=0.0) for prompt in PROMPTS]


async def check_equal(pair: Pair, counted: tuple[str, ...]) -> None:
    """Greedy text and what is counted of it; drafts are accepted where there are any."""
    expected, found = await answers(pair.embedded), await answers(pair.engine)
    assert [item.token_ids for item in found] == [item.token_ids for item in expected]
    for mine, theirs in zip(found, expected, strict=True):
        ours, others = mine.finished.stats, theirs.finished.stats
        assert ours is not None and others is not None
        for name in counted:
            assert getattr(ours, name) == getattr(others, name), name
    accepted = sum(item.finished.stats.accepted for item in found if item.finished.stats)
    assert (accepted > 5) is (pair.method != "none")
