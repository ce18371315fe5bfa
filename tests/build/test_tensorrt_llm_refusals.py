"""What a build for TensorRT-LLM cannot do is refused before it costs minutes, with both values and the way out."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builders.build import main
from tests.draft_files import write_eagle, write_eagle3, write_medusa
from tests.models import tiny_llama, tiny_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target") / "tiny")


def refused(capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    assert main(["--backend", "tensorrt_llm", "--dry-run", *map(str, flags)]) == 2
    return capsys.readouterr().err


def config(**keys: object) -> list[str]:
    return ["--method", str(keys["method"]), "--speculative-config", json.dumps(keys)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "none", "--tp", "0"], "--tp is 0; allowed is 1 or more"),
        (["--method", "none", "--tp", "3"], "--tp 3: the target's 4 heads, 2 key-value heads and 128 inner values"),
        (["--method", "none", "--pp", "3"], "--pp 3: the target has 2 layers; give at most as many"),
        (["--method", "none", "--max-input-len", "512"], "--max-input-len is 512 and the context --max-seq-len is 512"),
        (["--method", "none", "--max-seq-len", "513"], "--max-context-tokens is 513 and the model's max_position"),
        (["--method", "none", "--max-draft-len", "4"], "--max-draft-len is 4 and --method none needs no room"),
        (["--method", "ngram", "--max-draft-len", "4"], "leave it out, and set num_speculative_tokens"),
        (["--method", "ngram", "--flow", "pytorch", "--max-draft-len", "4"], "--flow pytorch compiles nothing"),
        (["--method", "ngram", "--flow", "pytorch", "--workers", "2"], "--workers is 2 and --flow pytorch"),
        (["--method", "ngram", "--pp", "2"], "--pp is 2 and --method is ngram: no such engine has been tried"),
        (["--method", "none", "--runner", "eager"], "--runner is eager, and only --backend embedded has it"),
        (["--method", "none", "--runner", "auto"], "--runner is auto, and only --backend embedded has it"),
        (["--method", "none", "--tree-nodes", "4"], "--tree-nodes is 4, and only --backend embedded has it"),
        (["--method", "none", "--draft", "x"], "--draft is for methods that have a drafter"),
        (["--method", "mtp", "--flow", "engine"], "build with --flow pytorch"),
        (["--method", "none", "--flow", "pytorch", "--quantization", "int8"], "serves checkpoints as they are"),
        (
            ["--method", "eagle3", "--flow", "pytorch"],
            "--flow pytorch needs a drafter; give --draft DIR",
        ),
        (["--method", "ngram", "--flow", "pytorch", "--draft", "x"], "--flow pytorch takes none; leave it out"),
        (["--method", "draft_model", "--flow", "pytorch", "--draft", "/x/y"], "--draft /x/y: no such folder"),
        (["--method", "none", "--flow", "pytorch", "--pp", "2", "--max-seq-len", "1"], "--max-context-tokens is 1"),
        (["--method", "none", "--flow", "pytorch", "--tp", "3"], "has 4 heads; give a divisor"),
        (config(method="ngram", prompt_lookup_min=2, prompt_lookup_max=1), "prompt_lookup_min is 2"),
        (
            [*config(method="ngram", prompt_lookup_min=2), "--flow", "pytorch"],
            "is 2, which the pytorch flow",
        ),
        (config(method="draft_model", ngram_first=3, model="/x"), "ngram_first is 3, which the engine flow"),
        (config(method="draft_model", dynamic_tree=True, model="/x"), "dynamic_tree is True, which the engine flow"),
        ([*config(method="ngram", acceptance="engine"), "--flow", "pytorch"], "'engine', which the pytorch flow"),
        ([*config(method="ngram", acceptance="engine"), "--dtype", "float32"], "--dtype is float32"),
        ([*config(method="ngram", acceptance="engine"), "--pp", "2"], "no such engine has been tried"),
        (config(method="medusa", acceptance="typical"), "acceptance is 'typical', which the engine flow"),
        (config(method="eagle", min_confidence=0.5), "min_confidence is 0.5, which the engine flow"),
        ([*config(method="eagle3", tree=[[0]]), "--flow", "pytorch"], "tree is [[0]], which the pytorch flow"),
    ],
)
def test_arguments(flags: list[str], message: str, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, "--target", target, *flags)


def test_values_that_ask_for_nothing_are_no_reason_to_refuse(target: Path, tmp_path: Path) -> None:
    write_medusa(tmp_path / "heads")
    argv = ["--backend", "tensorrt_llm", "--dry-run", "--target", str(target), "--draft", str(tmp_path / "heads")]
    argv += config(method="medusa", acceptance="exact", ngram_first=0, min_confidence=0)
    assert main([*argv, "--allow-unverified-target"]) == 0


def test_heads_are_refused_without_the_flag_that_takes_an_unnamed_target(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_medusa(tmp_path / "heads")
    told = refused(capsys, "--method", "medusa", "--target", target, "--draft", tmp_path / "heads")
    assert "give --allow-unverified-target if you know it" in told


def test_a_reduced_vocabulary_is_of_the_embedded_backend(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The heads that come along with the demo model draft 8192 of its tokens."""
    told = refused(capsys, "--method", "medusa")
    assert "this drafter has a reduced vocabulary; serve it with --backend embedded" in told


LIMITS = {"max_concurrency": 4, "draft_len_schedule": {"1": 8}, "acceptance_window": 9}
LIMITS |= {"acceptance_length_threshold": 0.5}


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize("backend", ["embedded", "tensorrt_llm"])
def test_limits_are_of_the_pytorch_flow(
    backend: str, key: str, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = LIMITS if key.startswith("acceptance") else {key: LIMITS[key]}
    argv = ["--backend", backend, "--dry-run", "--target", str(target)]
    assert main([*argv, *config(method="ngram", **dict(sorted(given.items(), key=lambda item: item[0] != key)))]) == 2
    told = capsys.readouterr().err
    assert f"{key} is {LIMITS[key]!r}, which the e" in told
    assert told.endswith("leave it out, or build with --backend tensorrt_llm --flow pytorch\n")


@pytest.mark.parametrize("backend", ["embedded", "tensorrt_llm"])
def test_limits_that_are_off_are_no_reason_to_refuse(backend: str, target: Path) -> None:
    off = {"max_concurrency": None, "draft_len_schedule": {}, "acceptance_window": 0, "acceptance_length_threshold": 0}
    argv = ["--backend", backend, "--dry-run", "--target", str(target)]
    assert main([*argv, *config(method="ngram", **off)]) == 0


def test_what_cannot_be_undone_stands_out_in_the_plan(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--backend", "tensorrt_llm", "--flow", "pytorch", "--dry-run", "--target", str(target)]
    assert main([*argv, *config(method="ngram", max_concurrency=4)]) == 0
    assert "WARNING" not in capsys.readouterr().out
    assert main([*argv, *config(method="ngram", acceptance_window=9, acceptance_length_threshold=0.5)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# WARNING: ")]
    assert "the last 9 requests is below 0.5" in line and "until the server is started again" in line


def test_a_drafter_that_is_limited_runs_beside_its_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_eagle3(tmp_path / "eagle3")
    deep = tiny_llama(tmp_path / "deep", layers=7)
    argv = ["--backend", "tensorrt_llm", "--dry-run", "--target", str(deep), "--draft", str(tmp_path / "eagle3")]
    argv += ["--allow-unverified-target"]
    assert main([*argv, *config(method="eagle3", max_concurrency=4)]) == 0
    assert "# NOTE: the drafter runs beside the target, because max_concurrency" in capsys.readouterr().out
    assert main([*argv, *config(method="eagle3")]) == 0
    assert "NOTE" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-batch-size", "513"], "--max-batch-size is 513; EAGLE engines have at most 512"),
        (["--max-draft-len", "257"], "--max-draft-len is 257; EAGLE engines have at most 256"),
        (["--quantization", "int8"], "--quantization is int8 and --method is eagle"),
        (["--tp", "4"], "its 4 heads, 2 key-value heads and 128 inner values cannot be shared among --tp 4"),
        (config(method="eagle", acceptance="typical", typical_threshold=1), "EAGLE engines take 0 up to less than 1"),
    ],
)
def test_eagle(
    flags: list[str], message: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_eagle(tmp_path / "eagle")
    base = ["--method", "eagle", "--target", target, "--draft", tmp_path / "eagle", "--allow-unverified-target"]
    assert message in refused(capsys, *base, *flags)


def test_medusa_on_qwen3_is_refused_by_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_model(tmp_path / "qwen3", "Qwen3ForCausalLM", head_dim=16)
    write_medusa(tmp_path / "heads")
    base = ["--method", "medusa", "--target", folder, "--draft", tmp_path / "heads", "--allow-unverified-target"]
    assert "with a target of architecture Qwen3ForCausalLM" in refused(capsys, *base)


def test_a_folder_without_weights_is_refused_in_the_pytorch_flow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["X"], "max_position_embeddings": 8, "vocab_size": 8}')
    told = refused(capsys, "--method", "none", "--flow", "pytorch", "--target", tmp_path)
    assert "has no *.safetensors" in told


def test_eagle3_takes_its_drafter_as_it_is(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This target is too small for one: its drafter would read three layers."""
    write_eagle3(tmp_path / "eagle3")
    deep = tiny_llama(tmp_path / "deep", layers=7)
    argv = ["--backend", "tensorrt_llm", "--dry-run", "--method", "eagle3", "--draft", str(tmp_path / "eagle3")]
    assert main([*argv, "--target", str(deep)]) == 2
    assert "give --allow-unverified-target if you know it" in capsys.readouterr().err
    assert main([*argv, "--target", str(target), "--allow-unverified-target"]) == 2
    assert "too few for three different ones" in capsys.readouterr().err
    assert main([*argv, "--target", str(deep), "--allow-unverified-target"]) == 0
    assert f'artifacts.draft = "{tmp_path / "eagle3"}"' in capsys.readouterr().out


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_methods_that_need_paged_attention_over_prompts_need_half_precision(
    method: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_eagle(tmp_path / "eagle")
    draft = ["--draft", tmp_path / "eagle", "--allow-unverified-target"] if method == "eagle" else []
    assert "--dtype is float32" in refused(capsys, "--method", method, "--target", target, "--dtype", "float32", *draft)


def test_without_fused_attention_prompts_come_whole_and_share_nothing(
    target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--backend", "tensorrt_llm", "--dry-run", "--method", "none", "--target", str(target)]
    assert main([*argv, "--dtype", "float32", "--max-num-tokens", "100"]) == 0
    out = capsys.readouterr().out
    for line in (
        "target.build.plugin_config.context_fmha = false",
        "target.build.plugin_config.use_paged_context_fmha = false",
        "serve.target.enable_chunked_context = false",
        "serve.target.kv_cache_config.enable_block_reuse = false",
        "target.build.max_num_tokens = 511",  # where a prompt is one pass, upstream's builder makes room for it
        "limits.max_prompt_tokens = 511",
    ):
        assert line in out
    assert main([*argv, "--max-num-tokens", "100"]) == 0  # a checkpoint in full precision is compiled in half
    out = capsys.readouterr().out
    assert 'target.convert.dtype = "bfloat16"' in out and "limits.max_prompt_tokens = 511" in out


@pytest.mark.parametrize(
    ("asked", "batch", "planned"), [("8192", "4", 2048), ("1000", "4", 1000), ("20", "4", 32), ("8192", "1", 512)]
)
def test_a_pass_has_no_more_tokens_than_all_sequences_and_no_less_than_a_block(
    target: Path, capsys: pytest.CaptureFixture[str], asked: str, batch: str, planned: int
) -> None:
    """As upstream's builder has it, whose number an engine's is compared with."""
    argv = ["--backend", "tensorrt_llm", "--dry-run", "--method", "none", "--target", str(target)]
    assert main([*argv, "--max-num-tokens", asked, "--max-batch-size", batch]) == 0
    out = capsys.readouterr().out
    assert f"target.build.max_num_tokens = {planned}\n" in out and f"target.engine.max_num_tokens = {planned}\n" in out


@pytest.mark.parametrize("flag", ["--target", "--draft"])
def test_a_gguf_file_needs_its_package(
    flag: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside TensorRT-LLM it may be missing, which other checkpoints do not notice."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else find(name))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    given = {"--target": target, "--draft": target, flag: tmp_path / "model.gguf"}
    argv = ["--backend", "tensorrt_llm", "--dry-run", "--method", "draft_model"]
    argv += [str(item) for pair in given.items() for item in pair]
    assert main(argv) != 0
    assert "needs the package gguf, which is not installed; pip install" in capsys.readouterr().err
    assert main(["--backend", "tensorrt_llm", "--dry-run", "--method", "none", "--target", str(target)]) == 0


def test_a_reader_that_leaves_is_no_error(target: Path) -> None:
    """`--dry-run | head`, as the shell does it; whoever reads has the first line, and then the pipe is closed."""
    command = [sys.executable, "-u", "-m", "builders.build", "--backend", "tensorrt_llm", "--method", "none"]
    with subprocess.Popen(
        [*command, "--target", str(target), "--dry-run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 128 + signal.SIGPIPE
