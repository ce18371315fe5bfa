"""Engines with a drafter, from `--draft` to a manifest, and what shows that drafter and target belong together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from builders import inspect
from builders.build import main
from builders.checkpoint import open_checkpoint
from builders.drafts import choose, native
from builders.drafts.card import Card
from builders.drafts.formats import open_draft
from builders.identity import target_sha256
from builders.methods import resolve
from tests.checkpoint_files import edit_weights, gguf_of
from tests.draft_files import (
    DRAFTED,
    VOCABULARY,
    Tensors,
    deepseek_tensors,
    write_eagle,
    write_eagle3,
    write_medusa,
)
from tests.drafter_files import stored_as
from tests.models import tiny_llama
from trtspec import manifest
from trtspec.executors.embedded import weights
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.manifest import DrafterRecord, Manifest
from trtspec.types import Method

ALLOW = "--allow-unverified-target"
Fails = Callable[..., str]


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("deep") / "deep", layers=8)


@pytest.fixture(scope="session")
def with_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that holds modules of its own."""
    folder = tiny_llama(tmp_path_factory.mktemp("modules") / "modules", layers=2)
    edit_weights(folder, deepseek_tensors(2, 2))
    return folder


def build(method: str, target: Path, output: Path, *argv: object, draft: Path | None = None) -> Manifest:
    command = ["--method", method, "--target", target, "--output", output, "--runner", "eager", *argv]
    assert main([str(item) for item in (*command, *(("--draft", draft) if draft else ()))]) == 0
    return manifest.read(output, verify=True)


def packed(engine: Path) -> Tensors:
    return dict(load_file(engine / "drafter.safetensors"))


@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle3"])
def test_community_drafter_becomes_part_of_an_engine(deep: Path, tmp_path: Path, method: str) -> None:
    write: Mapping[str, Callable[[Path], Tensors]] = {
        "medusa": write_medusa,
        "eagle": write_eagle,
        "eagle3": write_eagle3,
    }
    write[method](tmp_path / "d")
    found = build(method, deep, tmp_path / "engine", ALLOW, draft=tmp_path / "d")
    assert found.drafter == DrafterRecord(method, None, "nothing") and found.drafter.unverified
    assert found.speculative.num_speculative_tokens == {"medusa": 3, "eagle": 5, "eagle3": 5}[method]
    assert found.smoke["equal"] is True
    assert {"drafter.json", "drafter.safetensors"} <= set(found.artifacts)
    source = open_draft(tmp_path / "d").source(open_checkpoint(deep)).for_vocabulary(VOCABULARY)
    assert DrafterConfig.from_json(tmp_path / "engine" / "drafter.json") == source.config
    stored = packed(tmp_path / "engine")
    assert stored.keys() == {item.name for item in source.packed}
    assert all(tuple(stored[item.name].shape) == item.shape for item in source.packed)


def test_draft_model_is_shown_by_its_tokenizer(deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tiny_llama(tmp_path / "small", layers=1, vocab=320, max_positions=64, seed=3)
    found = build("draft_model", deep, tmp_path / "engine", draft=small)
    assert found.drafter == DrafterRecord("model", None, "tokenizer") and not found.drafter.unverified
    assert found.smoke["equal"] is True
    config = DrafterConfig.from_json(tmp_path / "engine" / "drafter.json")
    assert config.vocabulary_size == VOCABULARY and config.decoder is not None
    assert (config.decoder.vocab_size, config.decoder.max_position_embeddings) == (320, 64)
    assert "pauses where a text is longer than 64 tokens" in capsys.readouterr().out


def test_modules_of_the_target_are_its_own(with_modules: Path, tmp_path: Path) -> None:
    found = build("mtp", with_modules, tmp_path / "engine")
    assert found.drafter == DrafterRecord("mtp", None, "target folder") and found.smoke["equal"] is True
    assert found.speculative.num_speculative_tokens == 2
    assert not [item["name"] for item in found.build["inputs"] if item["name"].startswith("draft/")]


def test_other_methods_let_a_targets_modules_be(with_modules: Path, tmp_path: Path) -> None:
    assert build("none", with_modules, tmp_path / "engine").drafter is None
    assert not (tmp_path / "engine" / "drafter.safetensors").exists()


def test_heads_and_base_of_one_folder_belong_together(shared_folder: Path, tmp_path: Path) -> None:
    heads = write_medusa(tmp_path / "heads", heads=2)
    whole = Path(shutil.copytree(shared_folder, tmp_path / "whole"))
    edit_weights(whole, {f"medusa_head.{name}": tensor for name, tensor in heads.items()})
    raw = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({**raw, "medusa_num_heads": 2}))
    found = build("medusa", whole, tmp_path / "engine", draft=whole)
    assert found.drafter == DrafterRecord("medusa", None, "target folder")
    assert torch.equal(packed(tmp_path / "engine")["heads.1.head"], heads["1.1.weight"])


@pytest.mark.parametrize(("flag", "value"), [("--dtype", "bfloat16"), ("--quantization", "int8")])
def test_weights_take_the_form_of_the_engine(deep: Path, tmp_path: Path, flag: str, value: str) -> None:
    stored = write_eagle3(tmp_path / "d")
    build("eagle3", deep, tmp_path / "engine", ALLOW, flag, value, draft=tmp_path / "d")
    found = packed(tmp_path / "engine")
    assert torch.equal(found["token_ids"], DRAFTED) and found["token_ids"].dtype is torch.int64
    if value == "bfloat16":
        assert torch.equal(found["head"], stored["lm_head.weight"].bfloat16())
        assert {tensor.dtype for name, tensor in found.items() if name != "token_ids"} == {torch.bfloat16}
    else:
        dense = found["head"].float() * found["head.scales"].unsqueeze(1)
        assert found["head"].dtype is torch.int8
        assert (dense - stored["lm_head.weight"]).abs().amax() <= found["head.scales"].amax() / 2 + 1e-6
        assert found["modules.0.norm"].dtype is torch.float32


DEPTH = {"num_speculative_tokens": 3}
TREE = [[0], [1], [0, 0], [0, 0, 0]]


def native_drafter(path: Path, medusa: Path, target: Path, sha256: str | None, **speculative: Any) -> None:
    """The heads of a Medusa folder as a folder of our own."""
    source = open_draft(medusa).source(open_checkpoint(target)).for_vocabulary(VOCABULARY)
    tensors = {item.name: source.tensor(item.sources[0]) for item in source.packed}
    native.write(path, source.config, tensors, Card(Method.MEDUSA, sha256, "tiny", {**DEPTH, **speculative}))


def test_card_names_the_target_and_its_settings(shared_folder: Path, tmp_path: Path) -> None:
    write_medusa(tmp_path / "m")
    identity = target_sha256(open_checkpoint(shared_folder))
    native_drafter(tmp_path / "d", tmp_path / "m", shared_folder, identity, tree=TREE)
    found = build("medusa", shared_folder, tmp_path / "engine", "--dtype", "bfloat16", draft=tmp_path / "d")
    assert found.drafter == DrafterRecord("native", identity, "identity") and found.target_sha256 == identity
    assert found.speculative.tree == ((0,), (1,), (0, 0), (0, 0, 0))


def test_drafter_of_another_target_of_the_same_shape(
    fails: Fails, shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_medusa(tmp_path / "m")
    native_drafter(tmp_path / "d", tmp_path / "m", shared_folder, "f" * 64)
    argv = ("--method", "medusa", "--target", shared_folder, "--draft", tmp_path / "d", "--output", tmp_path / "engine")
    told = fails(*argv)
    found = target_sha256(open_checkpoint(shared_folder))
    assert f"was made for the target {'f' * 64} and this one is {found}" in told and ALLOW in told
    assert not (tmp_path / "engine").exists()
    allowed = build("medusa", shared_folder, tmp_path / "engine", ALLOW, draft=tmp_path / "d")
    assert allowed.drafter == DrafterRecord("native", "f" * 64, "nothing")
    capsys.readouterr()
    assert inspect.main([str(tmp_path / "engine")]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if " " in line)
    assert printed["drafter"].startswith(f"native, made for {'f' * 64}") and "NOT VERIFIED" in printed["drafter"]
    assert printed["target"] == found


def test_identity_is_of_values_whatever_their_form(shared_folder: Path, shared_engine: Path, tmp_path: Path) -> None:
    one = target_sha256(open_checkpoint(shared_folder))
    assert manifest.read(shared_engine).target_sha256 == one
    assert target_sha256(open_checkpoint(gguf_of(shared_folder, tmp_path / "m.gguf", gguf.MODEL_ARCH.LLAMA))) == one
    assert build("none", shared_folder, tmp_path / "int8", "--quantization", "int8").target_sha256 == one
    other = Path(shutil.copytree(shared_folder, tmp_path / "other"))
    norm = load_file(other / "model.safetensors")["model.norm.weight"]
    norm[3] += 0.5
    edit_weights(other, {"model.norm.weight": norm})
    assert target_sha256(open_checkpoint(other)) != one


def test_rerun_watches_the_drafter_too(shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = write_medusa(tmp_path / "d")

    def rebuilt(*argv: str) -> bool:
        capsys.readouterr()
        build("medusa", shared_folder, tmp_path / "engine", *argv, draft=tmp_path / "d")
        return "up to date" not in capsys.readouterr().out

    assert rebuilt(ALLOW) and not rebuilt(ALLOW)
    os.utime(tmp_path / "d" / "medusa_lm_head.safetensors")
    assert not rebuilt(ALLOW)
    stored["0.1.weight"][0] += 1
    write_medusa(tmp_path / "d", heads=2)
    assert rebuilt(ALLOW)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_drafter_of_integers_stays_one_whatever_the_engine_is(
    shared_folder: Path, tmp_path: Path, dtype: str
) -> None:
    write_medusa(tmp_path / "m")
    identity = target_sha256(open_checkpoint(shared_folder))
    native_drafter(tmp_path / "plain", tmp_path / "m", shared_folder, identity)
    shutil.copytree(tmp_path / "plain", tmp_path / "small")
    small = stored_as(dict(load_file(tmp_path / "plain" / "drafter.safetensors")), "int8")
    save_file(small, tmp_path / "small" / "drafter.safetensors")
    engine = tmp_path / "engine"
    assert build("medusa", shared_folder, engine, "--dtype", dtype, draft=tmp_path / "small").dtype == dtype
    found = packed(engine)
    assert found.keys() == small.keys()
    for name, tensor in small.items():
        if tensor.dtype is torch.int8:
            assert torch.equal(found[name], tensor)
        elif name.endswith(weights.SCALES):
            assert torch.allclose(found[name], tensor, rtol=1e-6)
    assert load_file(engine / "weights.safetensors")["layers.0.qkv"].dtype is getattr(torch, dtype)


def test_demo_model_takes_the_stored_drafter(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_medusa(tmp_path / "m")
    identity = target_sha256(open_checkpoint(shared_folder))
    native_drafter(tmp_path / "demo" / "medusa", tmp_path / "m", shared_folder, identity)
    monkeypatch.setattr(choose, "DEMO", tmp_path / "demo")
    monkeypatch.setattr("builders.demo_model.fetch", lambda: shared_folder)
    assert main(["--method", "medusa", "--output", str(tmp_path / "engine"), "--runner", "eager"]) == 0
    assert manifest.read(tmp_path / "engine").drafter == DrafterRecord("native", identity, "identity")


def test_folder_named_in_the_configuration_is_the_drafter(
    shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_medusa(tmp_path / "d")
    asked = json.dumps({"method": "medusa", "model": str(tmp_path / "d"), "num_speculative_tokens": 2})
    argv = ["--method", "medusa", "--target", str(shared_folder), "--speculative-config", asked, ALLOW, "--dry-run"]
    assert main(argv) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert printed["drafter"].startswith(f"{tmp_path / 'd'} (medusa), 0.3 MB")
    assert "authors/tiny" in printed["made"] and "NOT VERIFIED" in printed["made"]
    assert "chains of up to 2 tokens" in printed["method"]


def test_drafter_counts_in_what_is_packed(shared_folder: Path, tmp_path: Path) -> None:
    from builders.build import _recipe
    from builders.choices import Choice
    from builders.flags import parser
    from builders.recipe import make_plan

    write_medusa(tmp_path / "d")
    base = ["--method", "medusa", "--target", str(shared_folder), "--draft", str(tmp_path / "d"), ALLOW]
    plan = make_plan(_recipe(parser().parse_args(base), Choice("embedded", "")), open_checkpoint(shared_folder))
    assert plan.drafter is not None
    assert plan.drafter_bytes == 4 * sum(item.size for item in plan.drafter.packed)
    assert plan.packed_bytes == plan.drafter_bytes + replace(plan, drafter=None).packed_bytes


@pytest.mark.parametrize(
    ("asked", "depth", "tree"),
    [
        ({}, 3, TREE),
        ({"num_speculative_tokens": 2}, 2, [[0], [1], [0, 0]]),
        ({"num_speculative_tokens": 1}, 1, [[0], [1]]),
        ({"tree": [[0], [0, 0]]}, 2, [[0], [0, 0]]),
        ({"ngram_first": 3}, 3, TREE),
    ],
)
def test_settings_asked_for_come_before_the_drafters(asked: dict[str, Any], depth: int, tree: list[list[int]]) -> None:
    config = resolve("eagle", {"method": "eagle", **asked}, {**DEPTH, "tree": TREE})
    assert (config.num_speculative_tokens, [list(path) for path in config.tree]) == (depth, tree)


def test_another_kind_of_tree_or_rule_takes_the_drafters_tree_away() -> None:
    suited = {**DEPTH, "tree": TREE}
    assert resolve("eagle", {"method": "eagle", "dynamic_tree": True}, suited).tree == ()
    assert resolve("draft_model", {"method": "draft_model", "acceptance": "rejection"}, suited).tree == ()
    assert resolve("eagle", None, {}).num_speculative_tokens == 8


def test_a_drafters_growing_tree_has_room_for_the_depth_asked_for_and_gives_way_to_chains_and_other_trees() -> None:
    suited = {**DEPTH, "dynamic_tree": True, "max_tree_nodes": 4, "tree_width": 2}
    for asked, nodes in (({}, 4), ({"num_speculative_tokens": 6}, 6), ({"max_tree_nodes": 9}, 9)):
        config = resolve("eagle", {"method": "eagle", **asked}, suited)
        assert (config.dynamic_tree, config.draft_nodes, config.tree_width) == (True, nodes, 2)
    for asked, nodes in (({"dynamic_tree": False}, 3), ({"tree": []}, 3), ({"tree": [[0], [1]]}, 2)):
        config = resolve("eagle", {"method": "eagle", **asked}, suited)
        assert (config.dynamic_tree, config.draft_nodes) == (False, nodes)


def test_what_is_asked_for_and_agrees_with_the_drafters_settings_leaves_the_rest_of_them() -> None:
    grown = {**DEPTH, "dynamic_tree": True, "max_tree_nodes": 3, "tree_width": 3}
    same = resolve("eagle", {"method": "eagle", "dynamic_tree": True}, grown)
    assert (same.draft_nodes, same.tree_width) == (3, 3)
    fixed = resolve("eagle", {"method": "eagle", "dynamic_tree": False}, {**DEPTH, "tree": TREE})
    assert [list(path) for path in fixed.tree] == TREE
    bare = resolve("eagle", {"method": "eagle", "num_speculative_tokens": 5}, {**DEPTH, "dynamic_tree": True})
    assert bare.dynamic_tree and bare.num_speculative_tokens == 5
