"""The container's health check, against a server that answers and one that does not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.certificates import issue
from tests.fakes import FakeExecutor, Pass, serving
from trtspec.service.options import SecurityOptions, ServeOptions
from trtspec.service.protection import protect
from trtspec.types import Health

SCRIPT = Path(__file__).parents[2] / "scripts" / "deploy" / "healthcheck.py"


async def check(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, *arguments, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode().strip()


async def test_it_is_good_while_requests_are_answered() -> None:
    executor = FakeExecutor([Pass((5,))])
    async with serving(executor) as server:
        assert await check(server.address) == (0, f"{server.address}: SERVING")
        await executor.become(Health.RESTARTING)
        await asyncio.sleep(0)
        assert await check(server.address) == (1, f"{server.address}: NOT_SERVING")
        await executor.become(Health.SERVING)


async def test_it_is_bad_where_nobody_listens() -> None:
    code, told = await check("127.0.0.1:1")
    assert code == 1 and told.startswith("127.0.0.1:1: UNAVAILABLE")


async def test_with_tls_it_asks_by_the_authority(tmp_path: Path) -> None:
    authority = issue("authority")
    ca, _ = authority.write(tmp_path, "ca")
    certificate, key = issue("server", authority, ("127.0.0.1",)).write(tmp_path, "server")
    options = ServeOptions(port=0, security=SecurityOptions(certificate, key))
    async with serving(FakeExecutor([Pass((5,))]), options, protection=protect(options)) as server:
        assert await check(server.address, str(ca)) == (0, f"{server.address}: SERVING")
        other, _ = issue("another authority").write(tmp_path, "other")
        code, told = await check(server.address, str(other))
        assert code == 1 and told.startswith(f"{server.address}: UNAVAILABLE")
