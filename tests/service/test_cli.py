"""The command line: flags, colours, JSON, messages and exit codes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path

import grpc
import pytest

from tests.fakes import FakeExecutor, engine_folder, ids_of, script_of, serving
from tests.models import tiny_tokenizer
from trtspec import cache
from trtspec.cli import build_first, info
from trtspec.cli.compare import Comparison, Side, verdict
from trtspec.cli.generate import explain
from trtspec.cli.main import main, parser
from trtspec.cli.render import RunPainter, StreamPrinter, bars, visible
from trtspec.cli.serve_settings import serve_options_of, settings_of
from trtspec.client import Chunk, Pass, RequestFailed
from trtspec.config import EmbeddedOptions, EngineOptions
from trtspec.declared import groups
from trtspec.errors import ConfigError, EngineLost
from trtspec.service.options import ServeOptions, TimeOptions
from trtspec.types import SamplingParams


async def command(*arguments: str) -> int:
    """Run the command in a thread, as it has a loop of its own."""
    return await asyncio.to_thread(main, arguments)


def options_of(*arguments: str) -> tuple[ServeOptions, EngineOptions]:
    """What `trtspec serve` makes of its command line."""
    settings = settings_of(parser().parse_args(["serve", "x", *arguments]), {})
    return serve_options_of(settings), settings.build(EngineOptions)


def test_every_option_of_the_dataclasses_is_a_flag_with_its_default() -> None:
    assert options_of() == (ServeOptions(), EngineOptions())
    server, engine = options_of("--port", "0", "--drain-seconds", "1.5", "--verify", "--threads", "1")
    assert server == ServeOptions(port=0, time=TimeOptions(drain_seconds=1.5))
    assert engine == EngineOptions(verify=True, threads=1)
    nested = {name for name, _ in groups(ServeOptions)}
    assert all("help" in item.metadata for item in fields(ServeOptions) if item.name not in nested)


def test_a_default_that_is_given_is_told_from_one_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    _, given = options_of("--kv-cache-mib", "1024", "--cuda-graphs")
    assert (given.kv_cache_mib, given.cuda_graphs, given.threads) == (1024, True, None)
    assert given != EngineOptions() and given.embedded == EngineOptions().embedded == EmbeddedOptions()
    with pytest.raises(SystemExit):
        parser().parse_args(["serve", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "TensorRT-LLM takes what is free (default: 1024 for embedded engines)" in told
    assert "--no-cuda-graphs" in told and "as CUDA graphs (default: on for embedded engines)" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, "--port is 70000; allowed is 0 to 65535"),
        ({"default_speculation": "maybe"}, "--default-speculation is maybe; allowed is on or off"),
    ],
)
def test_a_wrong_server_option_names_its_flag(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeOptions(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["generate", "--help"], ["info", "--help"]])
def test_help_is_there(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "usage: trtspec" in capsys.readouterr().out


def token(text: str, *passes: Pass) -> Chunk:
    return Chunk((1,), text, passes)


def run_of(accepted: int, emitted: int) -> Pass:
    return Pass(0, accepted, accepted, accepted, emitted, False)


def test_accepted_tokens_have_a_colour_that_changes_with_the_pass_and_the_bonus_has_none() -> None:
    painter = RunPainter()
    passes = [(run_of(0, 1),), (run_of(2, 3),), (), (), (run_of(1, 2),), ()]
    chunks = [token("x", *records) for records in passes]
    styles = [painter.style(chunk) for chunk in chunks]
    assert styles == ["", "cyan", "cyan", "", "green", ""]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "escapes"), [("", True), ("1", False)])
def test_only_a_terminal_that_wants_colour_gets_it(
    no_color: str, escapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    for file, coloured in ((Terminal(), escapes), (io.StringIO(), False)):
        printer = StreamPrinter(file)
        printer.print(token("green", run_of(1, 2)))
        printer.end()
        assert ("\x1b[" in file.getvalue()) is coloured is printer.coloured
        assert ("drafted and accepted" in file.getvalue()) is coloured


def test_a_model_cannot_steer_the_terminal() -> None:
    assert visible("a\x1b[2J\tb\n") == "a\N{REPLACEMENT CHARACTER}[2J\tb\n"
    # What only looks odd is left alone.
    family = "\N{MAN}\u200d\N{WOMAN}\u00a0!"
    assert visible(family) == family


@pytest.mark.parametrize("no_color", ["", "1"])
def test_control_characters_reach_a_pipe_and_no_terminal(no_color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", no_color)
    for file, kept in ((Terminal(), False), (io.StringIO(), True)):
        StreamPrinter(file).print(token("a\x1b]0;title\x07b"))
        assert ("\x1b]0" in file.getvalue()) is kept


def test_each_output_is_coloured_from_its_own_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "")
    file = Terminal()
    printer = StreamPrinter(file, several=True)
    for chunk in (token("a", run_of(2, 3)), replace(token("x"), output_index=1), token("b"), token("c")):
        printer.print(chunk)
    assert "b" in file.getvalue() and "x" not in file.getvalue()
    printer.end()
    lines = file.getvalue().splitlines()
    assert "output 0:" in lines[0] and "output 1:" in lines[3]
    assert "\x1b[36mb" in lines[1] and lines[4] == "x"


def test_bars_show_each_position() -> None:
    assert bars((1.0, 0.5, 0.0)) == "█ 100%  ▅ 50%  ▁ 0%"
    assert bars(()) == "-"


async def test_generate_streams_text_and_prints_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor(script_of("abcdefgh", 4, 3))
    async with serving(executor) as server:
        code = await command("generate", "--server", server.address, "--system", "be brief", "hello")
    out, err = capsys.readouterr()
    assert code == 0 and out == "abcdefgh\n"
    assert "tokens per pass         3.50" in err and "finish reason           length" in err
    prompt = executor.requests[0].prompt
    async with serving(executor) as server:
        await command("generate", "--server", server.address, "--raw", "hello")
    assert len(executor.requests[1].prompt) < len(prompt)


async def test_json_is_one_object_a_line_and_the_last_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeExecutor(script_of("abcdefgh", 4, 3))) as server:
        code = await command("generate", "--server", server.address, "--json", "hello")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert [line["event"] for line in lines] == ["accepted", "chunk", "chunk", "chunk", "finished", "summary"]
    assert lines[0]["method"] == "ngram" and lines[2]["passes"][0]["accepted"] == 3
    assert lines[-1]["text"] == "abcdefgh" and lines[-1]["speculation"]["accepted_length_histogram"] == [0, 0, 1, 1]


async def test_compare_runs_both_sides_by_turns_with_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor(script_of("abcdefgh", 4, 3))
    async with serving(executor) as server:
        code = await command("generate", "--server", server.address, "--compare", "--repeat", "2", "hello")
    assert code == 0
    assert [live.max_draft_tokens for live in executor.requests] == [0, 4, 4, 0]
    assert len({live.seed for live in executor.requests}) == 1
    out = capsys.readouterr().out
    assert "tokens per pass" in out and "3.50" in out and "the texts are equal" in out


async def test_each_of_several_outputs_stands_under_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor(script_of("abc", 2), script_of("v.wxyz", 5), script_of("st", 1), cached_tokens=2)
    flags = ["--n", "3", "--stop", "."]
    async with serving(executor) as server:
        assert await command("generate", "--server", server.address, *flags, "hello") == 0
        out, err = capsys.readouterr()
        assert await command("generate", "--server", server.address, *flags, "--json", "hello") == 0
    assert out == "output 0:\nabc\n\noutput 1:\nv\n\noutput 2:\nst\n"
    assert "finish reason of output 0  length" in err and "finish reason of output 1  stop '.'" in err
    assert " in (2 from the cache), 7 out" in err
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [output["text"] for output in summary["outputs"]] == ["abc", "v", "st"]
    assert [output["finish_reason"] for output in summary["outputs"]] == ["length", "stop", "length"]


@pytest.mark.parametrize("n", ["1", "2"])
async def test_log_probabilities_are_a_table_after_the_text(n: str, capsys: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor(script_of("a\x1b", 1), script_of("[b]", 2))
    flags = ["--logprobs", "2", "--prompt-logprobs", "0", "--n", n, "--raw"]
    async with serving(executor) as server:
        assert await command("generate", "--server", server.address, *flags, "hi") == 0
    text, _, tables = capsys.readouterr().out.partition("\nprompt:")
    assert text.endswith("[b]\n" if n == "2" else "a\x1b\n")
    lines = [line.split() for line in tables.splitlines()]
    h, i = ids_of("hi")
    assert [str(h), "-", "-"] in lines and [str(i), f"{-i / 64:.3f}", "2"] in lines
    (a, escape), brackets = ids_of("a\x1b"), ids_of("[b]")
    best = ["1:", "-0.125", "2:", "-0.250"]
    assert [str(a), "'a'", f"{-a / 64:.3f}", "2", *best] in lines
    assert [str(escape), r"'\x1b'", f"{-escape / 64:.3f}", "2", *best] in lines
    shown = [str(brackets[0]), "'['", f"{-brackets[0] / 64:.3f}", "2", *best] in lines
    assert shown is (["output", "1:"] in lines) is (n == "2")


async def test_sampling_flags_reach_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    flags = [
        "--repetition-penalty",
        "1.5",
        "--presence-penalty",
        "-1",
        "--frequency-penalty",
        "0.5",
        "--min-tokens",
        "2",
    ]
    flags += ["--logit-bias", "7=-1.5", "--logit-bias", "9=2", "--bad-word", "no", "--bad-word", "so"]
    async with serving(executor) as server:
        assert await command("generate", "--server", server.address, *flags, "hello") == 0
    words = tuple(ids_of(text) for text in ("no", " no", "so", " so"))
    expected = SamplingParams(0.0, 0, 1.0, 0.0, 1.5, -1.0, 0.5, ((7, -1.5), (9, 2.0)), words, 2)
    assert executor.requests[0].sampling == expected


def test_a_different_text_is_a_fault_in_float32_only() -> None:
    side = Side(10.0, 0.1, 1.0, 0.1)
    differing = Comparison(side, Side(30.0, 0.1, 4.0, 4 / 30), equal_text=False)
    assert differing.pass_factor * differing.time_factor == pytest.approx(differing.speed_up)
    assert "please report" in verdict(differing, "float32")
    assert "near-ties" in verdict(differing, "bfloat16")


async def test_a_failure_in_mid_stream_ends_the_line_and_shows_how_far_it_came(
    capsys: pytest.CaptureFixture[str],
) -> None:
    executor = FakeExecutor([*script_of("abcd", 3), EngineLost("the engine's process died")])
    async with serving(executor) as server:
        code = await command("generate", "--server", server.address, "hello")
    out, err = capsys.readouterr()
    assert code == 1 and out == "abcd\n"
    assert "4 out" in err and "tokens per second" in err and "(this request)" in err
    assert err.endswith("error: the engine's process died (UNAVAILABLE)\n")


def test_only_silence_from_the_start_means_that_no_server_answers() -> None:
    broken = RequestFailed(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
    assert explain(broken, "host:1") == "the connection to host:1 was lost (Connection reset by peer)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "argument --seed: -1 is out of range; allowed is 0 to 18446744073709551615"),
        (["--seed", str(2**64)], "argument --seed"),
        (["--max-tokens", "3000000000"], "argument --max-tokens: 3000000000 is out of range"),
        (["--top-k", "x"], "argument --top-k: 'x' is no whole number"),
        (["--max-draft-tokens", str(-(2**31) - 1)], "argument --max-draft-tokens"),
        (["--system", "a\udcff"], "argument --system: is not UTF-8 from character 1 on"),
        (["--stop", "\udcff"], "argument --stop: is not UTF-8"),
        (["--bad-word", "\udcff"], "argument --bad-word: is not UTF-8"),
        (["--logit-bias", "7"], "argument --logit-bias: '7' is no ID=VALUE, such as 198=-5.0"),
        (["--logit-bias", "7=x"], "argument --logit-bias: '7=x' is no ID=VALUE"),
        (["--logit-bias", f"{2**31}=1"], "argument --logit-bias: 2147483648 is out of range"),
        (["\udcff"], "argument prompt: is not UTF-8 from character 0 on"),
    ],
)
def test_a_value_that_cannot_be_sent_names_its_flag(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", *arguments] if len(arguments) == 1 else ["generate", "hello", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--raw", "--system", "be brief"], "--system is part of the chat and --raw sends none"),
        (["--repeat", "2"], "--repeat counts the runs of --compare"),
        (["--compare", "--speculation", "on"], "--compare runs with speculation off and on"),
        (["--compare", "--speculation", "default"], "--compare runs with speculation off and on"),
        (["--compare", "--n", "2"], "--compare measures one output and shows no tokens; leave --n out"),
        (["--compare", "--prompt-logprobs", "0"], "shows no tokens; leave --prompt-logprobs out"),
        (["--logit-bias", "7=1", "--logit-bias", "7=2"], "--logit-bias is given for token id 7 more than once"),
    ],
)
def test_flags_that_another_one_makes_useless_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", *arguments]) == 2
    assert message in capsys.readouterr().err


async def test_a_system_message_needs_a_template(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    async with serving(FakeExecutor(script_of("ab", 1)), tokenizer=tokenizer) as server:
        assert await command("generate", "--server", server.address, "--system", "be brief", "hello") == 2
        assert "--system needs a chat template" in capsys.readouterr().err
        assert await command("generate", "--server", server.address, "hello") == 0


def test_standard_input_that_is_no_text_is_refused() -> None:
    command = [sys.executable, "-m", "trtspec", "generate", "--server", "127.0.0.1:1", "-"]
    ended = subprocess.run(command, input=b"\xff\xfe", capture_output=True)
    assert ended.returncode == 2 and b"standard input is not UTF-8 text" in ended.stderr


@pytest.mark.parametrize("name", ["generate", "info"])
async def test_a_reader_that_leaves_ends_the_command_quietly(name: str) -> None:
    async with serving(FakeExecutor(script_of("abcdefgh", 4, 3))) as server:
        arguments = ["--server", server.address, "hello"] if name == "generate" else []
        read, write = os.pipe()
        os.close(read)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trtspec", name, *arguments),
            stdout=write,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # what is buffered fails last
        )
        os.close(write)
        _, err = await process.communicate()
    assert process.returncode == 141
    assert b"Traceback" not in err and b"BrokenPipe" not in err


async def test_a_refused_request_names_the_field_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeExecutor()) as server:
        code = await command("generate", "--server", server.address, "--temperature", "-1", "hello")
    assert code == 1
    assert capsys.readouterr().err == ("error: sampling.temperature is -1.0; allowed is 0 to 100 (INVALID_ARGUMENT)\n")


def test_no_server_is_told_with_the_command_that_starts_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--server", "127.0.0.1:1", "hello"]) == 1
    assert "no server answers at 127.0.0.1:1; start one with" in capsys.readouterr().err


async def test_the_prompt_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    async with serving(executor) as server:
        assert await command("generate", "--raw", "--server", server.address, "-") == 0
    assert len(executor.requests[0].prompt) == len("from a pipe") - 1  # " a" is one token


def test_serve_refuses_what_is_neither_engine_nor_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert main(["serve", str(tmp_path)]) == 2
    assert main(["serve", str(tmp_path), "--speculative-config", "{}"]) == 2
    err = capsys.readouterr().err
    assert err.count("is no engine folder") == 2 and '"method" is missing' in err


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What looks like a model, and a cache of the test."""
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_serve_builds_a_model_into_the_cache_with_a_named_method(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(build_first, "run_builder", lambda command: commands.append(command) or 0)
    plain = build_first.build(model, None)
    assert "method none" in capsys.readouterr().err
    ngram = build_first.build(model, {"method": "ngram"})
    assert commands[0][1:5] == ["-m", "builders.build", "--method", "none"]
    assert commands[1][-2:] == ["--speculative-config", '{"method": "ngram"}']
    assert plain != ngram and plain.parent == ngram.parent == cache.cache_directory() / "engines"


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (1, 1), (-9, 1)])
def test_the_exit_code_of_the_builder_tells_wrong_input_from_failure(
    code: int, expected: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_first, "run_builder", lambda command: code)
    assert main(["serve", str(model)]) == expected


@pytest.mark.parametrize(("method", "shown"), [("medusa", True), ("ngram", False)])
def test_a_refused_drafter_is_told_with_the_command_that_builds_it(
    method: str, shown: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_first, "run_builder", lambda command: 2)
    with pytest.raises(ConfigError) as refused:
        build_first.build(model, {"method": method})
    line = f"`python -m builders.build --method {method} --target {model} --output {cache.cache_directory()}"
    assert (line in str(refused.value)) is shown
    assert ("--allow-unverified-target` and serve" in str(refused.value)) is shown


def test_the_builder_refuses_what_is_no_model_with_code_2(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(model)]) == 2
    assert f"error: {model} cannot be built; see above" in capfd.readouterr().err


@pytest.mark.parametrize("name", [".trtspec-build", "generation.json"])
def test_an_unfinished_engine_is_no_model_to_build_from(
    name: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / name).touch()
    assert main(["serve", str(model)]) == 2
    assert "has no manifest.json: it is not an engine, or its build did not finish" in capsys.readouterr().err


BUILDER = """\
import pathlib, signal, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
place = pathlib.Path(sys.argv[1])
place.write_text("begun")
try:
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    place.unlink()
    sys.exit(130)
"""


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_signal_during_the_build_ends_the_builder_too(stubborn: bool, tmp_path: Path) -> None:
    place, script = tmp_path / "place", tmp_path / "builder.py"
    script.write_text(BUILDER)
    command = [sys.executable, str(script), str(place), *["stubborn"] * stubborn]
    code = f"from trtspec.cli import build_first as first; first._GRACE_SECONDS = 0.2; first.run_builder({command!r})"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        # The pipe ends when nobody holds it any more, the builder included.
        assert process.stderr.read() == ""
        assert process.wait() == 128 + signal.SIGTERM
    assert place.exists() is stubborn


def test_info_describes_the_machine_without_loading_torch() -> None:
    code = "import sys; from trtspec.cli.main import main; main(['info', '--json']); sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    facts = json.loads(result.stdout)
    assert facts["backends"]["embedded"] == "available: every method but lookahead"
    assert facts["backends"]["tensorrt_llm"].startswith("not available: the package is not installed; ")
    assert facts["kernels"].startswith(f"available: on a GPU, Triton {metadata.version('triton')} chooses tokens")
    assert facts["packages"]["tensorrt-llm"] is None
    assert facts["tensorrt_llm"] is None
    assert facts["cpu"]["cores"] == os.cpu_count()


def test_info_tells_who_chooses_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info.util, "find_spec", lambda name: None)
    assert info.kernels().startswith("not available: Triton is missing; on a GPU, PyTorch chooses tokens")


def test_info_describes_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine_folder(tmp_path)
    assert main(["info", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "method             ngram" in out and "dtype                float32" in out
    assert main(["info", str(tmp_path / "tokenizer")]) == 2


def test_cpu_features_are_read_from_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu avx2 amx_bf16\n\nflags : fpu\n")
    monkeypatch.setattr(info, "_CPUINFO", cpuinfo)
    assert info.cpu_features() == ["avx2", "amx_bf16"]


async def test_ctrl_c_cancels_the_request_and_exits_130() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    executor.queue_open.clear()
    async with serving(executor) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trtspec", "generate", "--server", server.address, "hello"
        )
        await executor.asked.wait()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        await executor.freed.wait()
