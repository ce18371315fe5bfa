"""`python -m builders.build` from flags to folder, mostly in this process."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from builders import folder as folders
from builders import smoke
from builders.build import main
from builders.layout import layout
from builders.methods import METHODS
from builders.text import tokenizer_sha256
from tests.models import tiny_llama
from trtspec import manifest
from trtspec.errors import EngineFault, EngineFolderError
from trtspec.executors.embedded.decoder_config import DecoderConfig

ROOT = Path(__file__).parent.parent.parent


def build(target: Path, output: Path, *argv: str, method: str = "none") -> manifest.Manifest:
    assert main(["--method", method, "--target", str(target), "--output", str(output), *argv]) == 0
    return manifest.read(output, verify=True)


def packed_sources(engine: Path, reference: Mapping[str, torch.Tensor]) -> set[str]:
    """The tensors that an engine's weights are made of, once its weights equal them."""
    weights = load_file(engine / "weights.safetensors")
    items = layout(DecoderConfig.from_json(engine / "config.json"))
    assert set(weights) == {item.name for item in items}
    for item in items:
        assert torch.equal(weights[item.name], torch.cat([reference[source] for source in item.sources]))
    return {source for item in items for source in item.sources}


def test_folder_holds_weights_config_tokenizer_and_defaults(shared_engine: Path, shared_folder: Path) -> None:
    found = manifest.read(shared_engine, verify=True)
    assert (found.model, found.backend, found.architecture) == ("tiny", "embedded", "LlamaForCausalLM")
    assert (found.dtype, found.max_context_tokens, found.vocabulary_size) == ("float32", 512, 267)
    assert found.speculative.facts()["method"] == "ngram"
    assert set(found.artifacts) >= {"weights.safetensors", "config.json", "generation.json", "tokenizer/tokenizer.json"}
    reference = LlamaForCausalLM.from_pretrained(shared_folder).state_dict()
    assert set(reference) - packed_sources(shared_engine, reference) == {"lm_head.weight"}
    config = DecoderConfig.from_json(shared_engine / "config.json")
    assert (config.num_layers, config.num_kv_heads, config.tie_word_embeddings) == (2, 2, True)


def test_end_ids_of_generation_config_tokenizer_and_model_config_are_united(tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "m", generation={"eos_token_id": [2, 5], "do_sample": True, "temperature": 0.6})
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "eos_token_id": 9}))
    build(target, tmp_path / "engine")
    document = json.loads((tmp_path / "engine" / "generation.json").read_text())
    assert document["eos_token_ids"] == [0, 2, 5, 9]
    assert document["sampling"].items() >= {"temperature": 0.6, "top_k": 50, "top_p": 1.0, "min_p": 0.0}.items()


def test_tokenizer_and_template_survive(shared_engine: Path, shared_folder: Path) -> None:
    packed = AutoTokenizer.from_pretrained(shared_engine / "tokenizer")
    original = AutoTokenizer.from_pretrained(shared_folder)
    text = "the thin man's café <|im_end|>\n\t한"
    assert packed.encode(text) == original.encode(text)
    assert packed.chat_template == original.chat_template is not None


def test_smoke_result_and_inputs_are_recorded(shared_engine: Path, shared_folder: Path) -> None:
    found = manifest.read(shared_engine)
    assert found.smoke["tokens"] == 16 and found.smoke["equal"] is True and found.smoke["text"]
    inputs = {item["name"]: item for item in found.build["inputs"]}
    weights = shared_folder / "model.safetensors"
    assert inputs["model.safetensors"]["sha256"] == manifest.hash_file(weights).sha256
    assert inputs["model.safetensors"]["mtime_ns"] == weights.stat().st_mtime_ns
    assert "--method" in found.build["argv"] and "torch" in found.versions


def test_untied_sharded_bfloat16_is_packed_as_asked(tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "m", tie=False, shards=3, dtype=torch.bfloat16)
    found = build(target, tmp_path / "engine", "--dtype", "bfloat16", method="ngram")
    reference = LlamaForCausalLM.from_pretrained(target, dtype=torch.bfloat16).state_dict()
    assert found.dtype == "bfloat16"
    assert packed_sources(tmp_path / "engine", reference) == set(reference)


def test_padded_embedding_does_not_widen_the_vocabulary(tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "m", vocab=320)
    found = build(target, tmp_path / "engine")
    assert found.vocabulary_size == 267
    assert DecoderConfig.from_json(tmp_path / "engine" / "config.json").vocab_size == 320


def test_rerun_is_up_to_date_until_something_changes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "engine"
    build(folder, output)
    stamp = (output / manifest.NAME).stat().st_mtime_ns

    def rebuilt(*argv: str) -> bool:
        nonlocal stamp
        capsys.readouterr()
        build(folder, output, *argv)
        before, stamp = stamp, (output / manifest.NAME).stat().st_mtime_ns
        assert ("up to date" in capsys.readouterr().out) == (before == stamp)
        return before != stamp

    assert not rebuilt()
    os.utime(folder / "model.safetensors")
    assert not rebuilt()
    assert rebuilt("--force")
    assert rebuilt("--max-context-tokens", "64")
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    assert rebuilt("--max-context-tokens", "64")
    (output / "weights.safetensors").write_bytes(b"short")
    assert rebuilt("--max-context-tokens", "64")


def test_identity_ignores_path_argv_and_time(shared_engine: Path, folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "renamed")
    again = build(moved, tmp_path / "elsewhere", "--backend", "embedded", "--force", method="ngram")
    assert again.engine_id == manifest.read(shared_engine).engine_id
    assert again.build["argv"] != manifest.read(shared_engine).build["argv"]


@pytest.mark.parametrize(
    "argv",
    [
        ("--dtype", "bfloat16"),
        ("--max-context-tokens", "256"),
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
    ],
    ids=["dtype", "context", "depth"],
)
def test_identity_follows_what_changes_the_engine(
    shared_engine: Path, shared_folder: Path, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    other = build(shared_folder, tmp_path / "other", *argv, method="ngram")
    assert other.engine_id != manifest.read(shared_engine).engine_id


def test_identity_follows_the_method(shared_engine: Path, shared_folder: Path, tmp_path: Path) -> None:
    other = build(shared_folder, tmp_path / "other", method="none")
    assert other.engine_id != manifest.read(shared_engine).engine_id


def test_tokenizer_identity_ignores_run_time_settings(shared_engine: Path, tmp_path: Path) -> None:
    original = shared_engine / "tokenizer" / "tokenizer.json"
    document = json.loads(original.read_text())
    changed = tmp_path / "tokenizer.json"
    changed.write_text(json.dumps({**document, "truncation": {"max_length": 8}}, indent=1))
    assert tokenizer_sha256(changed) == tokenizer_sha256(original)
    changed.write_text(json.dumps({**document, "added_tokens": document["added_tokens"][1:]}))
    assert tokenizer_sha256(changed) != tokenizer_sha256(original)


def test_default_output_names_model_method_and_dtype(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--method", "none", "--target", str(folder)]) == 0
    assert manifest.read(tmp_path / "engines" / "tiny-none-float32").model == "tiny"


def test_dry_run_prints_the_plan_and_writes_nothing(
    shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "engine"
    assert main(["--method", "ngram", "--target", str(shared_folder), "--output", str(output), "--dry-run"]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert printed["method"] == "ngram: drafts up to 8 tokens, matching the last 4 to 1"
    assert printed["backend"].startswith("embedded (")
    assert printed["dtype"] == "float32 (the checkpoint is F32)"
    assert printed["model"] == "tiny: LlamaForCausalLM, 0.1 M parameters, 2 layers, stored as F32"
    assert printed["packed"] == "0.4 MB of weights"
    assert printed["context"] == "512 tokens of 512"
    assert printed["output"] == str(output)
    assert not output.exists()


def test_help_names_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert all(method.summary in text for method in METHODS.values())


def test_unknown_method_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--method", "redrafter"])
    text = capsys.readouterr().err
    assert end.value.code == 2 and all(name in text for name in METHODS)


Fails = Callable[..., str]


def test_method_and_config_that_disagree_are_refused(fails: Fails, shared_folder: Path) -> None:
    config = '{"method": "none"}'
    error = fails("--method", "ngram", "--target", shared_folder, "--speculative-config", config)
    assert "--method is 'ngram'" in error and "names 'none'" in error


@pytest.mark.parametrize(
    ("method", "config", "message"),
    [
        ("ngram", '{"method": "ngram", "model": "drafter"}', "method 'ngram' has no key 'model'"),
        ("none", '{"method": "none", "num_speculative_tokens": 4}', "has no key 'num_speculative_tokens'"),
        ("ngram", '{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens is 0"),
    ],
)
def test_setting_that_a_method_cannot_use_is_refused(
    fails: Fails, shared_folder: Path, method: str, config: str, message: str
) -> None:
    assert message in fails("--method", method, "--target", shared_folder, "--speculative-config", config)


@pytest.mark.parametrize("asked", [513, 1, 0, -4])
def test_context_outside_the_model_names_both_numbers(fails: Fails, shared_folder: Path, asked: int) -> None:
    error = fails("--method", "none", "--target", shared_folder, "--max-context-tokens", asked)
    assert f"--max-context-tokens is {asked}" in error and "512" in error


def test_a_build_for_tensorrt_llm_says_what_to_install(fails: Fails, shared_folder: Path) -> None:
    told = fails("--method", "none", "--target", shared_folder, "--backend", "tensorrt_llm")
    assert "pip install 'trtspec[tensorrt-llm]'" in told and "--dry-run" in told


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tp", "2"), "--tp is for --backend tensorrt_llm"),
        (("--pp", "1"), "--pp is for --backend tensorrt_llm"),
        (("--max-batch-size", "4"), "--max-batch-size is for --backend tensorrt_llm"),
        (("--flow", "engine"), "--flow is for --backend tensorrt_llm"),
        (("--timing-cache", "x"), "--timing-cache is for --backend tensorrt_llm"),
        (("--dtype", "float16"), "--dtype is float16; --backend embedded has auto, float32, bfloat16"),
        (("--quantization", "int4"), "--quantization is int4; --backend embedded has none, int8"),
        (("--method", "lookahead"), "--method lookahead --backend embedded: it is a mode of compiled engines"),
        (
            ("--method", "ngram", "--speculative-config", '{"method": "ngram", "acceptance": "engine"}'),
            "--speculative-config: acceptance 'engine' is TensorRT-LLM's own; build with --backend tensorrt_llm",
        ),
    ],
)
def test_what_only_the_other_backend_has_is_refused(
    flags: tuple[str, ...], message: str, fails: Fails, shared_folder: Path
) -> None:
    assert message in fails("--method", "none", "--target", shared_folder, *flags)


def test_checkpoint_error_leaves_no_folder(fails: Fails, folder: Path, tmp_path: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "is truncated" in fails("--method", "none", "--target", folder, "--output", tmp_path / "engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]


def test_checkpoint_without_tokenizer_is_refused_and_leaves_nothing(fails: Fails, folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "cannot load the tokenizer" in fails("--method", "none", "--target", folder, "--output", tmp_path / "engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"type": "BPE"}}'])
def test_damaged_tokenizer_is_refused(fails: Fails, folder: Path, tmp_path: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    assert "cannot load the tokenizer" in fails("--method", "none", "--target", folder, "--output", tmp_path / "engine")


def test_sampling_defaults_that_a_server_would_refuse_fail_the_build(
    fails: Fails, folder: Path, tmp_path: Path
) -> None:
    (folder / "generation_config.json").write_text('{"do_sample": true, "top_p": 1.5}')
    error = fails("--method", "none", "--target", folder, "--output", tmp_path / "engine")
    assert "generation_config.json: top_p is 1.5; allowed is a number above 0 and at most 1" in error
    assert not (tmp_path / "engine").exists()


def test_weights_that_are_not_finite_are_named(fails: Fails, folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors")
    error = fails("--method", "none", "--target", folder, "--output", tmp_path / "engine")
    assert "model.norm.weight is not finite as float32" in error


def test_output_that_holds_something_else_is_refused(fails: Fails, shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "is no engine folder" in fails("--method", "none", "--target", shared_folder, "--output", tmp_path)
    assert "is no engine folder" in fails("--method", "none", "--target", shared_folder, "--output", shared_folder)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_failed_smoke_fails_the_build_and_keeps_the_old_engine(
    fails: Fails, shared_folder: Path, shared_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(shutil.copytree(shared_engine, tmp_path / "engine"))

    def broken(view: Path, found: manifest.Manifest) -> smoke.Smoke:
        assert manifest.read(view).engine_id == found.engine_id
        raise EngineFault("smoke generation: NaN")

    monkeypatch.setattr(smoke, "run_smoke", broken)
    error = fails("--method", "none", "--target", shared_folder, "--output", output, code=1)
    assert "smoke generation: NaN" in error
    assert manifest.read(output, verify=True).speculative.facts()["method"] == "ngram"
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_build_killed_before_its_manifest_is_no_engine(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        shutil.copytree(tmp_path / "engine.building", tmp_path / "as-the-kill-left-it")
        raise Killed

    monkeypatch.setattr(manifest, "write", kill)
    with pytest.raises(Killed):
        main(["--method", "none", "--target", str(shared_folder), "--output", str(tmp_path / "engine")])
    left = tmp_path / "as-the-kill-left-it"
    assert (left / "weights.safetensors").is_file() and (left / folders.MARK).is_file()
    with pytest.raises(EngineFolderError, match="its build did not finish"):
        manifest.read(left)
    assert not (tmp_path / "engine").exists()


def test_wrong_input_is_told_from_failure_by_the_exit_code_of_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "builders.build", "--method", "none", "--target", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --target") and "Traceback" not in done.stderr


def test_full_disk_is_found_before_anything_is_packed(
    fails: Fails, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    error = fails("--method", "none", "--target", shared_folder, "--output", tmp_path / "engine")
    assert "1000 are free" in error
    assert list(tmp_path.iterdir()) == []


def test_missing_package_names_the_extra(
    fails: Fails, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    error = fails("--method", "none", "--target", shared_folder, "--output", tmp_path / "engine")
    assert "package torch" in error and "pip install 'trtspec[embedded]'" in error
