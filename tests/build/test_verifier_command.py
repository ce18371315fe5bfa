"""The command that builds verification engines: what it refuses, what it prints, and what is left of a failed build."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import verifier
from builders.verification import kinds
from builders.verification.kinds import COMPILERS, KINDS, RTX_DEFAULT
from builders.verification.limits import Limits, Range, parse_range
from plugins import verifier_folder
from plugins.aot import ARCHITECTURES
from plugins.verification_specs import MOST_NODES
from trtspec import manifest
from trtspec.errors import ConfigError, KernelError
from trtspec.generation import MARK

NATIVE = ["--kind", "native", "--vocabulary", "5"]


@pytest.fixture
def onnx_double(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The compiler that writes files, with bytes that tell the network; what it was asked for is in the list."""
    asked: list[Any] = []

    def compile_network(module: Any, network: Any, limits: Any, architectures: Any) -> bytes:
        asked.append((network.name, limits, tuple(architectures)))
        return network.name.encode()

    changed = SimpleNamespace(__version__="1.2.3")
    compiler = kinds.Compiler("onnx", "writes", lambda: changed, compile_network, "onnx")
    native = KINDS["native"]
    route = kinds.Route(compiler)
    monkeypatch.setitem(KINDS, "native", kinds.Kind("native", native.summary, native.networks, (route,)))  # type: ignore[misc]
    return asked


def test_from_flags_to_a_folder(onnx_double: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "verifier"
    sizes = ["--rows", "2:3:4", "--nodes", "7", "--width", "5:6:8", "--logits", "float16"]
    assert verifier.main([*NATIVE, *sizes, "--output", str(output)]) == 0
    limits = Limits(Range(2, 3, 4), Range(7, 7, 7), Range(5, 6, 8), 5, "float16")
    assert onnx_double == [("trees", limits, ())]
    assert (output / "trees.onnx").read_bytes() == b"trees"
    document = json.loads((output / verifier_folder.NAME).read_text())
    assert document["dimensions"] == {"rows": [2, 3, 4], "nodes": [7] * 3, "places": [8] * 3, "width": [5, 6, 8]}
    assert (document["compiler"], document["compiler_version"], document["logits"]) == ("onnx", "1.2.3", "float16")
    said = capsys.readouterr().out
    assert "logits     float16, 5:6:8 wide, 5 tokens" in said
    assert f"onnx 1.2.3 built\n  {output}/trees.onnx  0.00 MB  4 inputs\n  {output}/verifier.json" in said


def test_a_folder_of_ours_is_replaced_and_another_is_not(
    onnx_double: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "verifier"
    for vocabulary in ("5", "6"):
        assert verifier.main(["--kind", "native", "--vocabulary", vocabulary, "--output", str(output)]) == 0
    assert verifier_folder.read(output).vocabulary == 6
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    assert verifier.main([*NATIVE, "--output", str(taken)]) == 2
    assert "exists and is no engine folder" in capsys.readouterr().err
    (taken / MARK).touch()
    (taken / manifest.NAME).touch()
    assert verifier.main([*NATIVE, "--output", str(taken)]) == 2
    assert f"{taken} has manifest.json, so it holds the engine of a model" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KernelError("no engine"), 1), (KeyboardInterrupt(), 130)])
def test_a_build_that_fails_leaves_nothing(
    onnx_double: list[Any], tmp_path: Path, error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> bytes:
        raise error

    monkeypatch.setattr("builders.verification.building._compile", fail)
    assert verifier.main([*NATIVE, "--output", str(tmp_path / "verifier")]) == code
    assert list(tmp_path.iterdir()) == []


REFUSED = [
    (["--nodes", "1:8:65"], "--nodes is 1:8:65; at most 64 nodes a row"),
    (
        ["--nodes", "0:8:64"],
        "--nodes is 0:8:64; sizes go up, from 1 on. A batch that drafts nothing has one node a row",
    ),
    (["--rows", "8:4:64"], "--rows is 8:4:64; sizes go up"),
    (["--rows", "1:64"], "--rows is '1:64'; write LEAST:USUAL:MOST"),
    (["--rows", "1:x:64"], "--rows is '1:x:64'; write"),
    (["--width", "4:5:6"], "--width is 4:5:6 and --vocabulary 5; rows of logits cannot be narrower"),
    (["--vocabulary", "0", "--width", "5"], "--vocabulary is 0; from 1 to"),
    (["--architecture", "80"], "--architecture 80 with --compiler tensorrt: possible is none"),
    (
        ["--compiler", "tensorrt_rtx", "--architecture", "90"],
        "--compiler tensorrt_rtx: possible is 75, 80, 86, 89, 120, 121",
    ),
    (
        ["--compiler", "tensorrt_rtx", "--architecture", "80", "--architecture", "80"],
        "--architecture was given 2 times, as 80, 80",
    ),
    (["--kind", "plugins", "--architecture", "75"], "--architecture 75 with --compiler tensorrt: possible is 80, 86"),
    (
        ["--kind", "plugins", "--architecture", "80", "--architecture", "90"],
        "given 2 times, as 80, 90; this engine is for 1",
    ),
    (["--kind", "plugins", "--compiler", "onnx"], "--compiler onnx builds no --kind plugins; tensorrt does"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[" ".join(flags) for flags, _ in REFUSED])
def test_what_is_refused_before_anything_is_built(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verifier.main([*NATIVE, *flags, "--output", str(tmp_path / "verifier")]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_compiler_that_is_not_installed(
    compiler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*verifier_folder.MODULES.get(compiler, ()), "onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    assert verifier.main([*NATIVE, "--compiler", compiler, "--output", str(tmp_path / "verifier")]) == 2
    assert re.search(f"error: .*{compiler}.* cannot be imported .*pip install", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50))
def test_ranges_read_as_they_are_written(least: int, more: int, most: int) -> None:
    sizes = Range(least, least + more, least + more + most)
    assert parse_range(str(sizes), "--rows") == sizes
    assert sizes.size == (least if more + most == 0 else -1)
    assert sizes.plus(1) == Range(least + 1, least + more + 1, least + more + most + 1)


@pytest.mark.parametrize("text", ["", "1:2", "-1", "1:2:3:4", "1.5", "²", "1::2"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ConfigError, match="--rows is .*; write LEAST:USUAL:MOST"):
        parse_range(text, "--rows")


def test_what_is_built_for_when_nothing_is_said() -> None:
    plugins, native = KINDS["plugins"], KINDS["native"]
    assert plugins.route(None).resolve(()) == (80,)
    assert plugins.route("tensorrt").resolve((100,)) == (100,)
    assert plugins.route(None).architectures == ARCHITECTURES
    assert native.route(None).compiler.name == "tensorrt"
    assert native.route("tensorrt_rtx").resolve(()) == RTX_DEFAULT
    assert native.route("tensorrt_rtx").resolve((120, 75)) == (120, 75)


def test_help_tells_kinds_compilers_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        verifier.main(["--help"])
    said = capsys.readouterr().out
    assert done.value.code == 0
    for item in (*KINDS.values(), *COMPILERS.values()):
        assert f"  {item.name:<13} {item.summary}" in said
    assert f"at most {MOST_NODES} (default: 1:8:{MOST_NODES})" in said


def test_help_needs_neither_torch_nor_a_compiler() -> None:
    script = "import json, sys, builders.verifier; print(json.dumps([*sys.modules]))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    heavy = {"torch", "triton", "tensorrt", "tensorrt_rtx_bindings", "onnx"}
    assert heavy.isdisjoint(json.loads(done.stdout))


def test_a_build_without_torch_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert verifier.main([*NATIVE, "--output", str(tmp_path / "verifier")]) == 2
    assert "needs the package torch, which is not installed; pip install 'trtspec[embedded]'" in capsys.readouterr().err


def test_examples_of_the_help_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    parser = verifier._parser()
    lines = (parser.epilog or "").split("examples:")[1].replace("\\\n", "").strip().splitlines()
    for line in lines:
        assert verifier._request(parser.parse_args(line.split()[3:])).output == Path("verifier")
    assert len(lines) == 2
