"""The other commands as processes of their own, against a real server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.live.servers import LiveServer, run
from trtspec.client import Client

FLAGS = ("--kv-cache-mib", "8")


def test_the_serving_line_names_address_model_method_and_engine(server: LiveServer, engine: Path) -> None:
    engine_id = json.loads((engine / "manifest.json").read_text())["engine_id"]
    assert server.line == f"SERVING {server.address} model=model method=ngram engine={engine_id[:12]}\n"
    assert server.address.startswith("127.0.0.1:") and not server.address.endswith(":0")


async def test_generate_json_tells_every_event_and_then_a_summary(server: LiveServer, client: Client) -> None:
    flags = ("--temperature", "0", "--max-tokens", "80", "--ignore-eos")
    ended = run("generate", "--server", server.address, "--json", "--raw", *flags, "the answer")
    assert (ended.code, ended.err) == (0, "")
    accepted, *chunks, finished, summary = map(json.loads, ended.out.splitlines())
    assert [accepted["event"], finished["event"], summary["event"]] == ["accepted", "finished", "summary"]
    assert {chunk["event"] for chunk in chunks} == {"chunk"}
    answer = await client.complete("the answer", temperature=0, max_tokens=80, ignore_eos=True, speculation="off")
    assert [id_ for chunk in chunks for id_ in chunk["token_ids"]] == list(answer.token_ids)
    assert "".join(chunk["text"] for chunk in chunks) == summary["text"] == answer.text
    assert finished["outputs"][0]["reason"] == summary["finish_reason"] == "length"
    assert finished["completion_tokens"] == summary["completion_tokens"] == 80
    passes = [record for chunk in chunks for record in chunk["passes"]]
    assert summary["speculation"]["decode_passes"] == len(passes) - 1 == finished["stats"]["decode_passes"]
    assert sum(summary["speculation"]["accepted_length_histogram"]) == summary["speculation"]["spec_steps"] > 0


def test_generate_prints_text_to_one_stream_and_numbers_to_the_other(server: LiveServer) -> None:
    ended = run("generate", "--server", server.address, "--max-tokens", "20", "--ignore-eos", "--seed", "1", "hello")
    assert ended.code == 0 and ended.out.endswith("\n")
    assert "tokens per pass" in ended.err and "finish reason           length" in ended.err


def test_a_refused_request_is_one_line_and_exit_code_1(server: LiveServer) -> None:
    ended = run("generate", "--server", server.address, "--top-p", "0", "hello")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: sampling.top_p is 0.0; allowed is above 0 and at most 1")
    assert ended.err.count("\n") == 1


def test_info_tells_what_the_server_serves(server: LiveServer, engine: Path) -> None:
    told = run("info", engine, "--json")
    facts = json.loads(told.out)
    assert (told.code, told.err) == (0, "")
    assert server.line.endswith(f"engine={facts['engine_id'][:12]}\n")
    assert facts["speculative"]["method"] == "ngram" and facts["dtype"] == "float32"
    plain = run("info", engine)
    assert plain.code == 0 and "method             ngram" in plain.out and facts["engine_id"] in plain.out


def test_info_on_what_is_no_engine_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    ended = run("info", tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert str(tmp_path) in ended.err and ended.err.count("\n") == 1
