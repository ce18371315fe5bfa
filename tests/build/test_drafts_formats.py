"""Drafters of every format: what they come to, tensor by tensor, from their headers to their values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from builders.checkpoint import Checkpoint, open_checkpoint
from builders.drafts import native
from builders.drafts.card import Card, read_card
from builders.drafts.formats import open_draft
from builders.drafts.layout import drafter_shapes, optional_shapes
from builders.drafts.mtp import open_mtp
from builders.drafts.source import DraftSource
from tests.checkpoint_files import edit_weights
from tests.draft_files import (
    DRAFTED,
    HIDDEN,
    VOCABULARY,
    Tensors,
    deepseek_tensors,
    eagle3_tensors,
    qwen_tensors,
    random_tensors,
    speculators_eagle_tensors,
    write_eagle,
    write_eagle3,
    write_medusa,
    write_speculators,
)
from tests.models import tiny_llama, tiny_model
from trtspec.executors.embedded.drafter_config import FEATURES, DrafterConfig
from trtspec.types import Method

QKV = tuple(f"self_attn.{name}_proj.weight" for name in "qkv")


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with layers enough for three features."""
    return tiny_llama(tmp_path_factory.mktemp("deep") / "deep", layers=8)


@pytest.fixture(scope="session")
def target(deep: Path) -> Checkpoint:
    return open_checkpoint(deep)


def values(source: DraftSource) -> Tensors:
    """Every weight as it is packed, after checking that names and shapes are those of its kind of drafter."""
    return {
        item.name: torch.cat([source.tensor(name) for name in item.sources])[: item.shape[0]] for item in source.packed
    }


def read(path: Path, target: Checkpoint) -> tuple[DraftSource, Tensors]:
    """The drafter and its weights, once these are what its config promises."""
    return checked(open_draft(path).source(target).for_vocabulary(VOCABULARY), target)


def checked(source: DraftSource, target: Checkpoint) -> tuple[DraftSource, Tensors]:
    found = values(source)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    needed, optional = drafter_shapes(source.config, target.config), optional_shapes(source.config)
    assert shapes.items() >= needed.items()
    assert {name: shape for name, shape in shapes.items() if name not in needed}.items() <= optional.items()
    return source, found


def equal_layer(found: Tensors, name: str, stored: Tensors, prefix: str, zero: float = 0.0) -> bool:
    """Whether a packed layer is made of the stored one, whose norms count from `zero`; its input norms aside."""
    pairs = {
        "qkv": QKV,
        "output": ("self_attn.o_proj.weight",),
        "post_norm": ("post_attention_layernorm.weight",),
        "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "down": ("mlp.down_proj.weight",),
    }
    return all(
        torch.equal(
            found[f"{name}{part}"],
            torch.cat([stored[prefix + item] for item in items]) + (zero if part == "post_norm" else 0.0),
        )
        for part, items in pairs.items()
    )


@pytest.mark.parametrize("blocks", [1, 2])
def test_medusa(tmp_path: Path, target: Checkpoint, blocks: int) -> None:
    stored = write_medusa(tmp_path, heads=3, blocks=blocks)
    draft = open_draft(tmp_path)
    assert (draft.format, draft.card.method, draft.card.target_name) == ("medusa", Method.MEDUSA, "authors/tiny")
    assert draft.card.speculative == {"num_speculative_tokens": 3}
    source, found = read(tmp_path, target)
    assert (source.config.modules, source.config.blocks, source.config.features) == (3, blocks, (-1,))
    for head in range(3):
        for block in range(blocks):
            for part in ("weight", "bias"):
                assert torch.equal(
                    found[f"heads.{head}.blocks.{block}.{part}"], stored[f"{head}.{block}.linear.{part}"]
                )
        assert torch.equal(found[f"heads.{head}.head"], stored[f"{head}.{blocks}.weight"])


def test_padding_of_a_head_is_left_out(tmp_path: Path, target: Checkpoint) -> None:
    stored = write_medusa(tmp_path, rows=VOCABULARY + 53)
    source, found = read(tmp_path, target)
    assert source.config.vocabulary_size == VOCABULARY
    assert torch.equal(found["heads.2.head"], stored["2.1.weight"][:VOCABULARY])


@pytest.mark.parametrize("bias", [True, False])
def test_eagle(tmp_path: Path, target: Checkpoint, bias: bool) -> None:
    stored = write_eagle(tmp_path, bias=bias)
    source, found = read(tmp_path, target)
    config, decoder = source.config, source.config.decoder
    assert (config.first_input_norm, config.final_norm, config.own_embedding, config.own_head) == (False,) * 4
    assert decoder is not None and (decoder.num_layers, decoder.rope_theta) == (1, 500000.0)
    assert decoder.max_position_embeddings == 256
    assert torch.equal(found["modules.0.fuse"], stored["fc.weight"])
    assert ("modules.0.fuse_bias" in found) == bias
    assert not bias or torch.equal(found["modules.0.fuse_bias"], stored["fc.bias"])
    assert equal_layer(found, "modules.0.layers.0.", stored, "layers.0.")
    assert open_draft(tmp_path).card.method is Method.EAGLE


def test_eagle_for_a_target_with_biases(tmp_path: Path, target: Checkpoint) -> None:
    stored = write_eagle(tmp_path)
    biases = random_tensors({f"layers.0.self_attn.{x}_proj.bias": (64 if x == "q" else 32,) for x in "qkv"}, seed=1)
    edit_weights(tmp_path, stored | biases)
    source, found = read(tmp_path, target)
    assert source.config.decoder is not None and source.config.decoder.qkv_bias
    assert torch.equal(found["modules.0.layers.0.qkv_bias"], torch.cat(list(biases.values())))


@pytest.mark.parametrize(
    ("keys", "longest"),
    [({"sliding_window": 100}, 100), ({"sliding_window": 100, "use_sliding_window": False}, 256), ({}, 256)],
)
def test_layer_that_looks_back_less_far_drafts_shorter_texts(
    tmp_path: Path, target: Checkpoint, keys: dict[str, object], longest: int
) -> None:
    write_eagle(tmp_path, **keys)
    decoder = read(tmp_path, target)[0].config.decoder
    assert decoder is not None and decoder.max_position_embeddings == longest


def check_eagle3(found: Tensors, stored: Tensors, layer: str) -> None:
    assert torch.equal(found["modules.0.fuse"], stored["fc.weight"])
    assert torch.equal(found["modules.0.norm"], stored["norm.weight"])
    assert torch.equal(found["head"], stored["lm_head.weight"])
    assert equal_layer(found, "modules.0.layers.0.", stored, layer)
    for part, name in (("input_norm", "input_layernorm"), ("state_norm", "hidden_norm")):
        assert torch.equal(found[f"modules.0.layers.0.{part}"], stored[f"{layer}{name}.weight"])


def test_eagle3(tmp_path: Path, target: Checkpoint) -> None:
    stored = write_eagle3(tmp_path)
    source, found = read(tmp_path, target)
    config = source.config
    assert config.features == (2, 4, 5) and config.own_head and not config.own_embedding
    assert (config.norm_before_residual, config.normalised_states) == (False, False)
    assert torch.equal(found["token_ids"], DRAFTED)
    check_eagle3(found, stored, "midlayer.")


def test_ids_in_the_targets_padding_are_left_out_with_their_rows(tmp_path: Path, target: Checkpoint) -> None:
    stored = write_eagle3(tmp_path)
    source = open_draft(tmp_path).source(target).for_vocabulary(200)
    kept, found = int((DRAFTED < 200).sum()), values(source)
    assert source.config.vocabulary_size == kept == 7
    assert torch.equal(found["token_ids"], DRAFTED[:kept]) and torch.equal(
        found["head"], stored["lm_head.weight"][:kept]
    )


def test_eagle3_that_drafts_every_token_needs_no_mapping(tmp_path: Path, target: Checkpoint) -> None:
    write_eagle3(tmp_path, ids=None)
    source, found = read(tmp_path, target)
    assert source.token_ids is None and found["head"].shape == (VOCABULARY, HIDDEN)


def test_eagle3_of_another_width_has_an_embedding_of_its_own(tmp_path: Path) -> None:
    wide = open_checkpoint(tiny_llama(tmp_path / "wide", layers=8, hidden=96, heads=4, head_dim=16))
    stored = write_eagle3(tmp_path / "draft", target_hidden=96)
    embedding = random_tensors({"embed_tokens.weight": (VOCABULARY, HIDDEN)}, seed=3)
    edit_weights(tmp_path / "draft", stored | embedding)
    source, found = read(tmp_path / "draft", wide)
    assert source.config.own_embedding
    assert torch.equal(found["embedding"], embedding["embed_tokens.weight"])
    assert found["modules.0.fuse"].shape == (HIDDEN, 3 * 96)


def test_speculators_eagle(tmp_path: Path, target: Checkpoint) -> None:
    stored = write_speculators(tmp_path, "eagle", speculators_eagle_tensors())
    draft = open_draft(tmp_path)
    assert (draft.card.method, draft.card.target_name) == (Method.EAGLE, "authors/tiny")
    assert draft.card.speculative == {"num_speculative_tokens": 4}
    _, found = read(tmp_path, target)
    assert torch.equal(found["modules.0.fuse"], stored["fusion_fc.weight"])
    assert equal_layer(found, "modules.0.layers.0.", stored, "transformer.")


def test_speculators_eagle3(tmp_path: Path, target: Checkpoint) -> None:
    stored = eagle3_tensors("layers.0.", DRAFTED, features=2) | random_tensors(
        {"embed_tokens.weight": (VOCABULARY, HIDDEN)}
    )
    write_speculators(
        tmp_path,
        "eagle3",
        stored,
        draft_vocab_size=len(DRAFTED),
        norm_before_residual=True,
        norm_output=True,
        embed_requires_grad=True,
        eagle_aux_hidden_state_layer_ids=[1, 6],
    )
    source, found = read(tmp_path, target)
    config = source.config
    assert (config.norm_before_residual, config.normalised_states, config.own_embedding) == (True,) * 3
    assert config.features == (1, 6)
    assert torch.equal(found["token_ids"], DRAFTED)
    check_eagle3(found, stored, "layers.0.")


@pytest.mark.parametrize("kind", ["deepseek", "qwen"])
def test_modules_inside_the_target(tmp_path: Path, kind: str) -> None:
    folder = tiny_llama(tmp_path / "m", layers=2)
    stored = deepseek_tensors(2, 2) if kind == "deepseek" else qwen_tensors(2)
    edit_weights(folder, stored)
    target = open_checkpoint(folder)
    draft = open_mtp(target)
    assert (draft.card.method, draft.card.speculative) == (Method.MTP, {"num_speculative_tokens": 2})
    source, found = checked(draft.source(target).for_vocabulary(VOCABULARY), target)
    assert source.beside_target and source.config.modules == 2 and source.config.normalised_inputs
    assert source.config.normalised_states == (kind == "qwen")
    zero = 1.0 if kind == "qwen" else 0.0  # Qwen3-Next's norms multiply by 1 + weight
    for module in range(2):
        own = f"model.layers.{2 + module}." if kind == "deepseek" else f"mtp.layers.{module}."
        assert equal_layer(found, f"modules.{module}.layers.0.", stored, own, zero)
        layer = f"modules.{module}.layers.0."
        assert torch.equal(found[f"{layer}input_norm"], zero + stored[f"{own}input_layernorm.weight"])
        names = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
        if kind == "qwen":
            own, names = "mtp.", ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        for part, name in zip(("fuse", "token_norm", "state_norm", "norm"), names, strict=True):
            extra = 0.0 if part == "fuse" else zero
            assert torch.equal(found[f"modules.{module}.{part}"], extra + stored[f"{own}{name}.weight"])


def test_whole_model(tmp_path: Path, target: Checkpoint) -> None:
    folder = tiny_llama(tmp_path / "small", layers=1, vocab=320, tie=False)
    source, found = read(folder, target)
    reference = open_checkpoint(folder)
    assert source.config.vocabulary_size == VOCABULARY and source.config.decoder == reference.config
    assert torch.equal(found["embedding"], reference.read("model.embed_tokens.weight"))
    assert torch.equal(found["head"], reference.read("lm_head.weight"))
    assert torch.equal(found["layers.0.down"], reference.read("model.layers.0.mlp.down_proj.weight"))


def test_model_that_looks_back_less_far_drafts_shorter_texts(tmp_path: Path, target: Checkpoint) -> None:
    folder = tiny_model(tmp_path / "small", "MistralForCausalLM", layers=1, sliding_window=100)
    decoder = open_draft(folder).source(target).config.decoder
    assert decoder is not None and decoder.max_position_embeddings == 100


CARD = Card(
    Method.EAGLE,
    target_sha256="ab" * 32,
    target_name="tiny",
    speculative={"num_speculative_tokens": 3, "dynamic_tree": True},
    training={"command": "python -m builders.train | tee", "tokens": 10},
    measured={"top1": [0.5, 0.3]},
)


def native_tensors(target: Checkpoint) -> tuple[DrafterConfig, Tensors]:
    """A drafter with a reduced vocabulary and one int8 matrix."""
    decoder = target.config
    config = DrafterConfig(FEATURES, decoder, (-1,), len(DRAFTED), own_embedding=False, own_head=True)
    config = replace(config, decoder=replace(decoder, num_layers=1))
    tensors = random_tensors(drafter_shapes(config, target.config))
    scales = torch.rand(HIDDEN) / 100
    integers = torch.randint(-127, 128, (HIDDEN, 2 * HIDDEN), dtype=torch.int8)
    return config, tensors | {"token_ids": DRAFTED, "modules.0.fuse": integers, "modules.0.fuse.scales": scales}


def test_native_folder_is_read_as_it_was_written(tmp_path: Path, target: Checkpoint) -> None:
    config, tensors = native_tensors(target)
    native.write(tmp_path, config, tensors, CARD)
    assert read_card(tmp_path) == CARD
    source, found = read(tmp_path, target)
    assert source.config == config
    expected: dict[str, Tensor] = {name: item for name, item in tensors.items() if not name.endswith(".scales")}
    expected["modules.0.fuse"] = tensors["modules.0.fuse"].float() * tensors["modules.0.fuse.scales"].unsqueeze(1)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], item) for name, item in expected.items())


def test_card_for_people_has_every_number(tmp_path: Path, target: Checkpoint) -> None:
    native.write(tmp_path, *native_tensors(target), CARD)
    words = (tmp_path / "README.md").read_text()
    assert "ab" * 32 in words and "python -m builders.train \\| tee" in words and "[0.5, 0.3]" in words
    assert json.loads((tmp_path / "proposer.json").read_text())["target"] == {"name": "tiny", "sha256": "ab" * 32}
