"""The SMG gateway itself before a server of ours, where it is installed: OpenAI's interface over `TrtllmService`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.servers import LiveServer
from trtspec.client import Client

FLAGS = ("--smg",)
GATEWAY = os.environ.get("TRTSPEC_SMG") or shutil.which("smg")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        GATEWAY is None, reason="the SMG gateway is not here; pip install smg, or name its program in TRTSPEC_SMG"
    ),
]


def free_ports(count: int) -> list[int]:
    holders = [socket.socket() for _ in range(count)]
    for holder in holders:
        holder.bind(("127.0.0.1", 0))
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.fixture
async def gateway(server: LiveServer, client: Client, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """Its address, and the model as it calls it."""
    port, metrics = free_ports(2)
    model = (await client.model_info()).model
    command = [str(GATEWAY), "launch", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    # The path is a name only: the tokenizer comes from the server.
    command += ["--worker-urls", f"grpc://{server.address}", "--model-path", model]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            url = f"http://127.0.0.1:{port}/v1/completions"
            for _ in range(200):
                assert process.poll() is None, (tmp_path / "log").read_text(errors="replace")
                try:
                    await asyncio.to_thread(post, url, {"model": model, "prompt": "a", "max_tokens": 1})
                    break
                except OSError:
                    await asyncio.sleep(0.2)  # it starts, or still fetches the tokenizer
            yield url, model
        finally:
            process.terminate()
            process.wait(60)


async def test_the_gateway_finds_the_server_and_tells_what_speculation_did(
    gateway: tuple[str, str], client: Client
) -> None:
    url, model = gateway
    prompt = "abcabcabcabc"
    asked = {"model": model, "prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    told = await asyncio.to_thread(post, url, asked)
    answer = await client.complete(prompt, max_tokens=60, temperature=0, ignore_eos=True)
    assert told["choices"][0]["text"] == answer.text
    usage, stats = told["usage"], answer.finished.stats
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (answer.accepted.prompt_tokens, 60)
    assert stats is not None and stats.accepted > 0
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == stats.accepted
    assert details["rejected_prediction_tokens"] == stats.drafted - stats.accepted
