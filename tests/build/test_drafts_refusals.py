"""Drafters that do not fit: each refusal names both values and the way out, before any weight is read."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builders.build import main
from builders.drafts import choose, native
from builders.drafts.card import Card, write_card
from tests.checkpoint_files import edit_config, edit_weights
from tests.draft_files import (
    DRAFTED,
    HIDDEN,
    VOCABULARY,
    eagle3_tensors,
    random_tensors,
    speculators_eagle_tensors,
    write_eagle,
    write_eagle3,
    write_medusa,
    write_speculators,
)
from tests.models import tiny_llama
from trtspec import manifest
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.types import Method

Fails = Callable[..., str]


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("deep") / "deep", layers=8)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("wide") / "wide", hidden=96, heads=4, head_dim=16)


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("narrow") / "narrow", layers=1, vocab=266)


@pytest.fixture
def refused(fails: Fails, deep: Path, tmp_path: Path) -> Fails:
    """Build with a drafter that must be refused; returns the message. Nothing is left behind."""

    def run(method: str, draft: Path, *argv: object) -> str:
        output = tmp_path / "engine"
        told = fails("--method", method, "--target", deep, "--draft", draft, "--output", output, *argv)
        assert not output.exists() and not list(tmp_path.glob("engine.*"))
        return told

    return run


ALLOW = "--allow-unverified-target"


def config(**keys: object) -> tuple[str, str]:
    return "--speculative-config", json.dumps(keys)


@pytest.mark.parametrize(
    ("method", "flags", "message"),
    [
        ("ngram", ("--draft", "somewhere"), "--draft is for methods that have a drafter; --method ngram has none"),
        ("none", (ALLOW,), "--allow-unverified-target is for methods that have a drafter; --method none has none"),
        ("medusa", ("--draft", "nowhere"), "nowhere: no such folder, and no .gguf file"),
        ("medusa", (), "--method medusa needs a drafter for"),
        ("medusa", (), "train one with `python -m builders.train --method medusa` --target"),
        ("mtp", (), "has no multi-token-prediction modules; looked for model.layers.8.eh_proj.weight (DeepSeek-V3)"),
    ],
)
def test_flags_that_do_not_go_together(
    fails: Fails, deep: Path, method: str, flags: tuple[str, ...], message: str
) -> None:
    assert message in fails("--method", method, "--target", deep, *flags)


def test_two_different_drafters_are_refused(refused: Fails, tmp_path: Path) -> None:
    write_medusa(tmp_path / "one")
    told = refused("medusa", tmp_path / "one", *config(method="medusa", model="two"))
    assert "--draft is" in told and "names the model two; give one" in told


def test_demo_model_without_a_stored_drafter(fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "DEMO", tmp_path)
    told = fails("--method", "eagle")
    assert "no drafter of the demo model is stored" in told and "python -m builders.train --method eagle`" in told


def test_method_and_folder_that_disagree_name_both(refused: Fails, tmp_path: Path) -> None:
    write_eagle(tmp_path / "d")
    told = refused("medusa", tmp_path / "d")
    assert "--method is 'medusa'" in told and "holds a drafter for 'eagle' (eagle); give --method eagle" in told


@pytest.mark.parametrize("files", [{}, {"config.json": "{}", "model.safetensors": None}])
def test_unknown_folder_lists_what_was_looked_for(refused: Fails, tmp_path: Path, files: dict[str, str | None]) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for name, text in files.items():
        if text is None:
            save_file({"something": torch.zeros(2)}, folder / name)
        else:
            (folder / name).write_text(text)
    told = refused("eagle", folder)
    for mark in (
        "drafter.json",
        "speculators_model_type",
        "medusa_num_heads",
        "midlayer.",
        "fc.weight",
        "embed_tokens",
    ):
        assert mark in told


@pytest.mark.parametrize(
    ("write", "method", "weights", "pickle"),
    [
        (write_medusa, "medusa", "medusa_lm_head.safetensors", "medusa_lm_head.pt"),
        (write_eagle, "eagle", "model.safetensors", "pytorch_model.bin"),
    ],
)
def test_pickles_are_refused(
    refused: Fails, tmp_path: Path, write: Callable[[Path], object], method: str, weights: str, pickle: str
) -> None:
    write(tmp_path / "d")
    (tmp_path / "d" / weights).rename(tmp_path / "kept.safetensors")
    torch.save(load_file(tmp_path / "kept.safetensors"), tmp_path / "d" / pickle)
    told = refused(method, tmp_path / "d")
    assert f"as pickle ({pickle}), which can run code when read; convert them first: python -c '" in told
    before = {name: tensor.float() for name, tensor in load_file(tmp_path / "kept.safetensors").items()}
    code = shlex.split(told.strip().rpartition("convert them first: ")[2])[2]
    subprocess.run([sys.executable, "-c", code], check=True)
    after = load_file(tmp_path / "d" / weights)
    assert after.keys() == before.keys() and all(after[name].equal(before[name]) for name in before)


def test_heads_trained_together_with_their_base_are_its_own(refused: Fails, deep: Path, tmp_path: Path) -> None:
    heads = write_medusa(tmp_path / "heads")
    whole = Path(shutil.copytree(deep, tmp_path / "whole"))
    edit_weights(whole, {f"medusa_head.{name}": tensor for name, tensor in heads.items()})
    edit_config(whole, medusa_num_heads=3, medusa_num_layers=1)
    told = refused("medusa", whole, ALLOW)
    assert "holds a whole model beside its heads (Medusa-2)" in told and str(deep) in told
    assert f"give {whole} as --target and as --draft" in told


def without(name: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_eagle(path)
        edit_weights(path, {name: None})

    return write


def with_tensor(name: str, *shape: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_eagle(path)
        edit_weights(path, {name: torch.zeros(shape)})

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: write_eagle(path, hidden_size=96), "its hidden_size is 96 and the target's is 64"),
        (lambda path: write_eagle(path, vocab_size=2000), "its vocab_size is 2000 and the target's is 267"),
        (lambda path: write_eagle(path, num_hidden_layers=2), "num_hidden_layers is 2; supported are drafters of 1"),
        (lambda path: write_eagle(path, num_key_value_heads=4), "k_proj.weight has shape [32, 64], and its config"),
        (lambda path: write_eagle(path, quantization_config={"quant_method": "awq"}), "weights are quantized (awq)"),
        (lambda path: write_eagle(path, hidden_act="gelu"), "hidden_act is 'gelu'; supported is 'silu'"),
        (without("layers.0.mlp.down_proj.weight"), "tensor layers.0.mlp.down_proj.weight is missing, one of 1"),
        (with_tensor("layers.0.input_layernorm.weight", HIDDEN), "input_layernorm.weight has no place"),
        (with_tensor("fc.weight", HIDDEN, HIDDEN), "fc.weight has shape [64, 64], and its config and the target ask"),
    ],
)
def test_eagle_that_does_not_fit(refused: Fails, tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    write(tmp_path / "d")
    assert message in refused("eagle", tmp_path / "d", ALLOW)


def eagle3_with(path: Path, **changes: torch.Tensor | None) -> None:
    write_eagle3(path)
    edit_weights(path, changes)


SWAPPED = DRAFTED[[0, 2, 1, 3, 4, 5, 6, 7, 8, 9]] - torch.arange(10)
NO_MARKS = torch.zeros(VOCABULARY, dtype=torch.bool)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: eagle3_with(path, d2t=None), "drafts 10 of the target's 267 ids, and d2t"),
        (lambda path: eagle3_with(path, d2t=torch.zeros(9, dtype=torch.int64)), "d2t has shape [9]; it must be [10]"),
        (lambda path: eagle3_with(path, d2t=SWAPPED), "d2t gives id 2 after 3; ids must ascend"),
        (lambda path: eagle3_with(path, d2t=DRAFTED), "d2t gives ids from 0 to 275 and the target has 267"),
        (lambda path: eagle3_with(path, t2d=NO_MARKS), "d2t and t2d name different ids (10 and 0)"),
        (
            lambda path: eagle3_with(path, d2t=torch.zeros(10, dtype=torch.int64), t2d=None),
            "d2t holds only zeros, as if never filled in",
        ),
        (lambda path: write_eagle3(path, draft_vocab_size=11), "lm_head.weight has shape [10, 64]"),
        (lambda path: write_eagle3(path, target_hidden=96), "fc.weight has shape [64, 288]"),
        (lambda path: write_eagle3(path, hidden_size=32), "its hidden_size is 32 and the target's is 64"),
    ],
)
def test_eagle3_that_does_not_fit(
    refused: Fails, tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / "d")
    assert message in refused("eagle3", tmp_path / "d", ALLOW)


def test_features_of_a_target_with_too_few_layers(fails: Fails, shared_folder: Path, tmp_path: Path) -> None:
    write_eagle3(tmp_path / "d")
    told = fails("--method", "eagle3", "--target", shared_folder, "--draft", tmp_path / "d", ALLOW)
    assert "reads the target's layers [2, 1, -1] and the target has 2 layers" in told


DEEP = {
    "default_proposal_method": "greedy",
    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 65}],
    "verifier": {"name_or_path": "authors/tiny"},
}


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("peagle", {}, "speculators_model_type is 'peagle'; supported of this format are eagle, eagle3"),
        ("eagle", {"speculators_model_type": ["eagle"]}, "speculators_model_type is ['eagle']; supported"),
        ("eagle", {"speculators_config": DEEP}, "config.json: speculative_tokens is 65; supported is 1 to 64"),
        ("eagle", {"layernorms": True}, "layernorms is True in config.json; supported is False"),
        ("eagle", {"transformer_layer_config": None}, "config.json has no transformer_layer_config"),
        ("eagle", {"speculators_config": {}}, "speculators_config is damaged"),
        ("eagle3", {"fc_norm": True}, "fc_norm is True in config.json; supported is False"),
        ("eagle3", {"norm_before_fc": True}, "norm_before_fc is True"),
        (
            "eagle3",
            {"eagle_aux_hidden_state_layer_ids": [1, 4, 8]},
            "it reads what goes into layer 8 and the target has 8 layers, 0 to 7",
        ),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": ["1"]}, "eagle_aux_hidden_state_layer_ids is ['1']"),
    ],
)
def test_speculators_folder_that_does_not_fit(
    refused: Fails, tmp_path: Path, kind: str, keys: dict[str, object], message: str
) -> None:
    tensors = speculators_eagle_tensors() if kind == "eagle" else eagle3_tensors("layers.0.", DRAFTED)
    write_speculators(tmp_path / "d", kind, tensors, draft_vocab_size=len(DRAFTED), **keys)
    assert message in refused("eagle" if kind == "eagle" else "eagle3", tmp_path / "d", ALLOW)


@pytest.mark.parametrize(
    "keys",
    [{"num_speculative_tokens": 4}, {"tree": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]}],
    ids=["chain", "tree"],
)
def test_drafts_deeper_than_the_heads_name_both(refused: Fails, tmp_path: Path, keys: dict[str, object]) -> None:
    write_medusa(tmp_path / "d", heads=3)
    told = refused("medusa", tmp_path / "d", ALLOW, *config(method="medusa", **keys))
    assert "drafts are up to 4 deep" in told and "has 3 heads" in told and "at most 3" in told


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"medusa_num_heads": 10**9}, "config.json: medusa_num_heads is 1000000000; supported is 1 to 64"),
        ({"medusa_num_heads": 40}, "config.json: medusa_num_heads is 40 and there are 9 tensors"),
        ({"medusa_num_layers": 10**9}, "config.json: medusa_num_layers is 1000000000 and there are 9 tensors"),
    ],
)
def test_counts_of_heads_beyond_their_tensors(
    refused: Fails, tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    write_medusa(tmp_path / "d", **keys)
    assert message in refused("medusa", tmp_path / "d", ALLOW)


def test_layer_numbers_of_any_length_are_names_without_a_place(fails: Fails, deep: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(deep, tmp_path / "deep"))
    edit_weights(folder, {f"model.layers.{'9' * 5000}.eh_proj.weight": torch.zeros(2)})
    assert "has no place in LlamaForCausalLM" in fails("--method", "ngram", "--target", folder)


def test_engine_is_no_drafter_folder(refused: Fails, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("drafter.json", "manifest.json"):
        (tmp_path / "d" / name).write_text("{}")
    assert "is no drafter of a known format" in refused("medusa", tmp_path / "d")


def test_heads_of_another_width(fails: Fails, wide: Path, tmp_path: Path) -> None:
    write_medusa(tmp_path / "d")
    told = fails("--method", "medusa", "--target", wide, "--draft", tmp_path / "d", ALLOW)
    assert "0.0.linear.weight has shape [64, 64], and its config and the target ask for [96, 96]" in told


def test_head_with_fewer_rows_than_the_target_has_ids(refused: Fails, tmp_path: Path) -> None:
    write_medusa(tmp_path / "d", rows=VOCABULARY - 1)
    told = refused("medusa", tmp_path / "d", ALLOW)
    assert "its head has 266 rows and the target's ids ask for 267" in told


@pytest.mark.parametrize(("write", "method"), [(write_medusa, "medusa"), (write_eagle, "eagle")])
def test_drafter_that_does_not_name_its_target(
    refused: Fails, tmp_path: Path, write: Callable[[Path], object], method: str
) -> None:
    write(tmp_path / "d")
    told = refused(method, tmp_path / "d")
    assert "does not name its target by identity" in told and ALLOW in told
    assert ("only as 'authors/tiny'" in told) == (method == "medusa")


def edit_tokenizer(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def respell(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    one, other = (next(token for token, index in vocabulary.items() if index == wanted) for wanted in (50, 51))
    vocabulary[one], vocabulary[other] = 51, 50


def swap_merges(document: dict[str, Any]) -> None:
    merges = document["model"]["merges"]
    merges[2], merges[3] = merges[3], merges[2]


def end_elsewhere(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": "<|im_end|>"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: edit_tokenizer(folder, respell), "token 50 is "),
        (lambda folder: edit_tokenizer(folder, swap_merges), "merge 2 is ('a', 'n') in the drafter and ('i', 'n')"),
    ],
    ids=["spelling", "merges"],
)
def test_draft_model_with_another_tokenizer(
    refused: Fails, shared_folder: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    small = Path(shutil.copytree(shared_folder, tmp_path / "small"))
    change(small)
    for flags in ((), (ALLOW,)):
        told = refused("draft_model", small, *flags)
        assert "its tokenizer is not the target's" in told and message in told


def test_draft_model_that_ends_texts_otherwise_alone_can_be_allowed(
    refused: Fails, shared_folder: Path, deep: Path, tmp_path: Path
) -> None:
    small = Path(shutil.copytree(shared_folder, tmp_path / "small"))
    end_elsewhere(small)
    assert "has another eos_token_id, 2, than the target, 0, and is the same otherwise" in refused("draft_model", small)
    assert ALLOW in refused("draft_model", small)
    argv = ["--method", "draft_model", "--target", deep, "--draft", small, "--output", tmp_path / "engine", ALLOW]
    assert main([str(item) for item in argv]) == 0
    drafter = manifest.read(tmp_path / "engine").drafter
    assert drafter is not None and drafter.unverified


def test_draft_model_that_lacks_ids_of_the_target(refused: Fails, narrow: Path) -> None:
    told = refused("draft_model", narrow)
    assert "its embedding has 266 rows and the target's ids ask for 267" in told


HEADS_ONLY = DrafterConfig("heads", None, (-1,), 0, own_embedding=False, own_head=False)
DECODER = DecoderConfig(64, 128, 1, 4, 2, 16, 1e-5, 1e4, None, 267, 256, False, False, False)


def changed(**values: object) -> str:
    """`drafter.json` with other values."""
    return json.dumps({**HEADS_ONLY.to_dict(), **values})


def with_decoder(**values: object) -> str:
    return changed(kind="features", decoder={**asdict(DECODER), **values})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "its keys differ from the known ones in blocks"),
        (changed(modules="3"), "modules is '3'; it must be a whole number"),
        (changed(modules=10**9), "modules is 1000000000 and the drafter has 2 tensors"),
        (changed(blocks=10**9), "blocks is 1000000000 and the drafter has 2 tensors"),
        (changed(kind="features"), "decoder is None; it must be an object for a drafter of kind 'features'"),
        (changed(kind=["heads"]), "kind is ['heads']; it must be one of"),
        (changed(features="-1"), "features is '-1'; it must be a list of layers"),
        (changed(features=[True]), "features is [True]"),
        (changed(own_head=0), "own_head is 0; it must be true or false"),
        (changed(vocabulary_size=2.5), "vocabulary_size is 2.5; it must be a whole number"),
        (changed(vocabulary_size=9000), "its vocabulary_size is 9000 and the target's is 267"),
        (with_decoder(num_layers=10**9), "num_layers is 1000000000 and the drafter has 2 tensors"),
        (with_decoder(hidden_size="64"), "hidden_size is '64'; it must be a whole number"),
        (with_decoder(rms_norm_eps="x"), "rms_norm_eps is 'x'; it must be a finite number"),
        (with_decoder(rope_scaling=[1]), "rope_scaling is [1]; it must be an object or null"),
        (with_decoder(hidden_size=96), "its hidden_size is 96 and the target's is 64"),
    ],
)
def test_damaged_shape_of_a_native_folder(refused: Fails, tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "drafter.json").write_text(text)
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, folder / "drafter.safetensors")
    write_card(Card(Method.MEDUSA, speculative={"num_speculative_tokens": 1}), folder)
    told = refused("medusa", folder, ALLOW)
    assert "--draft" in told or "drafter.json" in told
    assert message in told


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "token_ids names no ids"), ([3, 3], "gives id 3 after 3"), ([-1, 2], "from -1 to 2 and the target has 267")],
)
def test_token_ids_of_a_native_folder(refused: Fails, tmp_path: Path, ids: list[int], message: str) -> None:
    config = replace(HEADS_ONLY, vocabulary_size=len(ids))
    shapes = {"heads.0.blocks.0.weight": (HIDDEN, HIDDEN), "heads.0.blocks.0.bias": (HIDDEN,)}
    tensors = random_tensors(shapes) | {"token_ids": torch.tensor(ids, dtype=torch.int64)}
    native.write(tmp_path / "d", config, tensors, Card(Method.MEDUSA, speculative={"num_speculative_tokens": 1}))
    assert message in refused("medusa", tmp_path / "d", ALLOW)


def test_kind_of_networks_and_method_that_disagree(refused: Fails, tmp_path: Path) -> None:
    shapes = {"heads.0.blocks.0.weight": (HIDDEN, HIDDEN), "heads.0.blocks.0.bias": (HIDDEN,)}
    native.write(tmp_path / "d", HEADS_ONLY, random_tensors(shapes), Card(Method.EAGLE))
    told = refused("eagle", tmp_path / "d", ALLOW)
    assert "networks are of kind 'heads' and method 'eagle' drafts with 'features'" in told


def card_with(**values: object) -> str:
    """`proposer.json` of a drafter for Medusa with other values."""
    good = {"method": "medusa", "target": {"name": None, "sha256": None}, "training": {}, "measured": {}}
    return json.dumps({**good, "speculative": {}, **values})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is no drafter of a known format; looked for drafter.json and proposer.json"),
        ("[]", "is damaged"),
        (card_with(target={"name": None, "sha256": 5}), "target.sha256 is 5"),
        (card_with(target={"name": [], "sha256": None}), "target.name is []"),
        (card_with(training=[]), "training is []"),
        (card_with(speculative={"acceptance": "typical"}), "speculative has 'acceptance', which a drafter's card must"),
        (card_with(speculative={"typical_alpha": 1}), "speculative has 'typical_alpha'"),
        (card_with(speculative={"typical_threshold": 0}), "speculative has 'typical_threshold'"),
        (card_with(speculative={"model": "/etc"}), "files and the rule of acceptance"),
        ('{"method": "eagle"}', "is damaged"),
        (
            '{"method": "eagle", "target": {"name": null, "sha256": null}, "training": {}, "measured": {}, '
            '"speculative": {"num_speculative_tokens": 0}}',
            "num_speculative_tokens is 0",
        ),
    ],
)
def test_damaged_card(refused: Fails, tmp_path: Path, text: str | None, message: str) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "drafter.json").write_text("{}")
    if text is not None:
        (folder / "proposer.json").write_text(text)
    told = refused("eagle", folder)
    assert message in told and "proposer.json" in told


def test_values_that_are_not_finite_are_named(refused: Fails, tmp_path: Path) -> None:
    write_medusa(tmp_path / "d")
    path = tmp_path / "d" / "medusa_lm_head.safetensors"
    tensors = load_file(path)
    tensors["1.1.weight"][5] = float("inf")
    save_file(tensors, path)
    assert "tensor 1.1.weight is not finite as float32" in refused("medusa", tmp_path / "d", ALLOW)


def test_weights_cut_short_name_both_sizes(refused: Fails, tmp_path: Path) -> None:
    write_eagle(tmp_path / "d")
    path = tmp_path / "d" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    assert "is truncated" in refused("eagle", tmp_path / "d", ALLOW)
