"""The commands of scripts/docs/security.md, one after the other, as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.servers import LiveServer

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "scripts" / "docs" / "security.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the guide makes certificates with openssl"),
]


def commands() -> list[str]:
    """All commands of the guide, in their order."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines() if line.strip()]


def test_every_command_of_the_guide_works(engine: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, given in (("trtspec", "-m trtspec"), ("python3", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {given} "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "mine").symlink_to(engine)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    server: LiveServer | None = None
    ran = []
    try:
        for command in commands():
            if command.startswith("trtspec serve"):
                _, _, folder, *flags = command.split()
                places = [str(tmp_path / flag) if (tmp_path / flag).is_file() else flag for flag in flags]
                server = LiveServer(tmp_path / folder, tmp_path / "log", "--threads", "1", *places)
                continue
            if server is not None:
                command = command.replace("localhost:50051", f"localhost:{server.address.rpartition(':')[2]}")
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            ran.append(command.split()[0])
        assert server is not None
        assert "certificates in use were read again" in server.log and "tokens of --tokens" not in server.log
        token = (tmp_path / "bob.token").read_text()
        ask = f"generate --server localhost:{server.address.rpartition(':')[2]} --ca ca.pem --token-file bob.token x"
        command = [sys.executable, "-m", "trtspec", *ask.split()]
        refused = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert refused.returncode == 1 and "UNAUTHENTICATED" in refused.stderr and token.strip() not in refused.stderr
    finally:
        if server is not None:
            server.close()
    assert {"openssl", "trtspec", "python3", "grep", "mv"} == set(ran)
