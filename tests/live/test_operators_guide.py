"""The commands of scripts/docs/operate.md, one after the other, as they stand there but for the ports."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.servers import LiveServer

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "scripts" / "docs" / "operate.md"
PORT = re.compile(r"\b(50\d{3}|909\d)\b")
SAID = {
    "--compare": r"speed-up \d",
    "grep trtspec_spec_decode_requests_total": r'trtspec_spec_decode_requests_total{.*mode="spec".*} [1-9]',
    "grep _tokens_per_pos_total": r'trtspec_spec_decode_num_drafted_tokens_per_pos_total{.*position="0".*} [1-9]',
    "grep -E": r"inter_token_latency_seconds_count{[^}]*} [1-9](?s:.*)trtspec_num_requests_waiting{[^}]*} 0",
    "--max-draft-tokens 1": "at most 1 of ",
    "--off": "switched off|nothing is drafted|off",
    "--restore": "not limited",
    "admin stats": "SERVING|serving",
    "admin cancel": "NOT_FOUND",
    "info engines/draft": "draft_model",
}
"""What the output of a command must hold, by a part of the command."""
pytestmark = [pytest.mark.slow, pytest.mark.demo_model, pytest.mark.timeout(900)]


def commands() -> list[str]:
    """All commands of the guide, in their order, each with ports that are free here."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line]
    named = sorted(set(PORT.findall("\n".join(lines))))
    ports = dict(zip(named, map(str, free_ports(len(named))), strict=True))
    return [PORT.sub(lambda found: ports[found[0]], line) for line in lines]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


def test_every_decision_of_the_summary_has_its_section() -> None:
    text = GUIDE.read_text()
    linked = re.findall(r"^\| \[[^\]]+\]\(#([a-z-]+)\)", text, re.MULTILINE)
    sections = [
        re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.*)", text, re.MULTILINE)
    ]
    assert linked == sections


def test_every_command_of_the_guide_works(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, given in (("trtspec", "-m trtspec"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {given} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    unseen = set(SAID)
    servers: list[LiveServer] = []
    try:
        for command in commands():
            if command.startswith("trtspec serve"):
                _, _, folder, *flags = shlex.split(command)
                servers.append(LiveServer(tmp_path / folder, tmp_path / f"log{len(servers)}", *flags))
                continue
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            said = done.stdout + done.stderr
            assert done.returncode == 0, f"{command}\n{said}"
            for part, pattern in SAID.items():
                if part in command:
                    assert re.search(pattern, said), f"{command}\n{said}"
                    unseen.discard(part)
        assert not unseen, "these are not in the guide any more"
        assert servers[0].wait() == 0, "the drained server did not end in order"
    finally:
        for server in servers:
            server.close()
