"""`trtspec admin` against a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.operators import Named, Operated, begun, holding, operated
from trtspec.cli.main import main
from trtspec.client import AdminClient


def command(*arguments: str) -> int:
    return main(["admin", *arguments])


async def asked(it: Operated, *arguments: str) -> int:
    """Run the command in a thread, for it has an event loop of its own."""
    return await asyncio.to_thread(command, *arguments, "--server", it.address)


async def test_the_command_shows_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    executor, _ = holding()
    async with operated(executor) as it:
        held = await begun(it.client, request_id="one", tenant="team")
        assert held and await asked(it, "stats") == 0
        stats = capsys.readouterr().out
        assert await asked(it, "speculation", "--max-draft-tokens", "3") == 0
        assert capsys.readouterr().out == "at most 3 of 8 draft tokens, 3 by default\n"
        assert await asked(it, "requests") == 0
        header, row = capsys.readouterr().out.splitlines()
        assert await asked(it, "speculation", "--off") == 0
        assert capsys.readouterr().out == "switched off\n"
        assert await asked(it, "speculation", "--restore") == 0
        assert capsys.readouterr().out == "not limited; 4 draft tokens by default\n"
        assert await asked(it, "cancel", "one") == 0
        assert capsys.readouterr().out == "request one ends\n"
        _ = [event async for event in held[0]]  # type: ignore[attr-defined]
        assert await asked(it, "cancel", "one") == 1
        assert "no request 'one' lives; it may have ended (NOT_FOUND)" in capsys.readouterr().err
        assert await asked(it, "drain") == 0
        assert capsys.readouterr().out == "the server drains; 0 requests live\n"
    lines = dict(line.split(maxsplit=1) for line in stats.splitlines())
    assert lines["state"].strip() == "serving" and lines["requests"].strip() == "1 live"
    assert lines["speculation"].strip() == "not limited; 4 draft tokens by default"
    assert "acceptance rate         75%" in stats
    assert " ".join(header.split()) == "id client priority state age prompt tokens depth per pass accepted"
    assert " ".join(row.split()) == "one team 0 running 0 s 5 5 3 of 4 4.00 75%"


async def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        held = await begun(it.client, request_id="one")
        assert held and await asked(it, "requests", "--json") == 0
        (live,) = json.loads(capsys.readouterr().out)
        assert await asked(it, "speculation", "--off", "--json") == 0
        setting = json.loads(capsys.readouterr().out)
        assert await asked(it, "stats", "--json") == 0
        stats = json.loads(capsys.readouterr().out)
        assert await asked(it, "cancel", "one", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"request_id": "one"}
    assert (live["request_id"], live["output_token_counts"], live["priority"]) == ("one", [5], 0)
    assert setting == {"max_draft_tokens": 0, "engine_max_draft_tokens": 8, "default_draft_tokens": 0}
    assert stats["setting"] == setting and stats["requests"]["failed_count"] == "0"
    assert "acceptance_rate" in stats["speculation"]


async def test_the_command_shows_a_token_and_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    executor, _ = holding()
    async with operated(executor, Named("admin")) as it:
        file.write_text("right\n")
        assert await asked(it, "stats", "--token-file", str(file)) == 0
        assert await asked(it, "stats") == 1
        assert "UNAUTHENTICATED" in capsys.readouterr().err
        for content in ("", "two words", "ümlaut"):
            file.write_text(content)
            assert await asked(it, "stats", "--token-file", str(file)) == 2
            assert "--token-file" in capsys.readouterr().err
        assert await asked(it, "stats", "--token-file", str(tmp_path / "none")) == 2


def test_a_server_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("stats", "--server", "127.0.0.1:1") == 1
    assert "the connection to 127.0.0.1:1 was lost" in capsys.readouterr().err


async def test_a_client_says_exactly_one_thing_of_speculation() -> None:
    async with AdminClient("127.0.0.1:1") as client:
        for wrong in ({}, {"off": True, "restore": True}):
            with pytest.raises(TypeError, match="exactly one of max_draft_tokens, off, restore"):
                await client.set_speculation(**wrong)
