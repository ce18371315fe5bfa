"""The tensors of a drafter under TensorRT-LLM's names: all ranks' shares together are what the drafter's files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from builders.checkpoint import Checkpoint, open_checkpoint
from builders.drafts.formats import open_draft
from builders.drafts.source import DraftSource
from builders.tensorrt_llm.additions import Additions, eagle, medusa
from builders.tensorrt_llm.export import export
from builders.tensorrt_llm.families import FAMILIES
from builders.tensorrt_llm.tensors import COLUMNS, ROWS, Added, Part, padded_vocabulary
from tests.checkpoint_files import gguf_of
from tests.draft_files import HIDDEN, INNER, VOCABULARY, write_eagle, write_medusa
from tests.models import tiny_llama
from trtspec.errors import CheckpointError
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method

CHAIN = SpeculativeConfig(Method.EAGLE, num_speculative_tokens=2)
PADDED = 268
"""267 tokens for two ranks."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(tiny_llama(tmp_path_factory.mktemp("target") / "tiny", tie=False))


def source(folder: Path, target: Checkpoint) -> DraftSource:
    return open_draft(folder).source(target)


def ranks(additions: Additions, name: str, tp: int = 2) -> list[Tensor]:
    item = next(item for item in additions.tensors if item.name == name)
    shares = [item.of_rank(rank, tp, torch.float32) for rank in range(tp)]
    assert {tuple(share.shape) for share in shares} == {item.rank_shape(tp)}
    return shares


def test_heads_are_split_by_rows_and_their_vocabulary_is_padded(target: Checkpoint, tmp_path: Path) -> None:
    files = write_medusa(tmp_path, heads=2, blocks=2)
    made = medusa(source(tmp_path, target), target, FAMILIES["LlamaForCausalLM"], 4, tp=2)
    assert made.settings == {
        "architecture": "MedusaForCausalLM",
        "model_type": "llama",
        "num_medusa_heads": 2,
        "num_medusa_layers": 2,
        "max_draft_len": 4,
    }
    for head in range(2):
        for block in range(2):
            for part in ("weight", "bias"):
                name = f"medusa_heads.{head}.medusa_layers.{block}.linear.{part}"
                assert torch.equal(torch.cat(ranks(made, name)), files[f"{head}.{block}.linear.{part}"])
        whole = torch.cat(ranks(made, f"medusa_heads.{head}.lm_head.weight"))
        assert whole.shape == (PADDED, HIDDEN) and not whole[VOCABULARY:].any()
        assert torch.equal(whole[:VOCABULARY], files[f"{head}.2.weight"])
    assert len(made.tensors) == 2 * (2 * 2 + 1)


def test_an_eagle_layer_becomes_a_net_for_each_depth(target: Checkpoint, tmp_path: Path) -> None:
    files = write_eagle(tmp_path)
    made = eagle(source(tmp_path, target), target, CHAIN, 2, 1, tp=2)
    names = {item.name for item in made.tensors}
    assert len(names) == 20 and {name.split(".")[1] for name in names} == {"0", "1"}
    layer = "eagle_nets.1.drafter.layers.0."
    for name, original in (
        (f"{layer}mlp.fc.weight", "layers.0.mlp.gate_proj.weight"),
        (f"{layer}mlp.gate.weight", "layers.0.mlp.up_proj.weight"),
        ("eagle_nets.1.drafter.fc.weight", "fc.weight"),
        ("eagle_nets.1.drafter.fc.bias", "fc.bias"),
    ):
        assert torch.equal(torch.cat(ranks(made, name)), files[original])
    for name, original in (("attention.dense", "self_attn.o_proj"), ("mlp.proj", "mlp.down_proj")):
        whole = torch.cat(ranks(made, f"{layer}{name}.weight"), dim=1)
        assert torch.equal(whole, files[f"layers.0.{original}.weight"])
    for share in ranks(made, f"{layer}post_layernorm.weight"):
        assert torch.equal(share, files["layers.0.post_attention_layernorm.weight"])


def test_attention_heads_stay_together(target: Checkpoint, tmp_path: Path) -> None:
    """A rank holds its query heads over its key heads over its value heads."""
    files = write_eagle(tmp_path)
    made = eagle(source(tmp_path, target), target, CHAIN, 2, 1, tp=2)
    for rank, share in enumerate(ranks(made, "eagle_nets.0.drafter.layers.0.attention.qkv.weight")):
        parts = [files[f"layers.0.self_attn.{name}_proj.weight"].chunk(2)[rank] for name in "qkv"]
        assert torch.equal(share, torch.cat(parts))


def test_what_a_drafter_shares_with_its_target_is_the_targets(target: Checkpoint, tmp_path: Path) -> None:
    write_eagle(tmp_path, bias=False, embedding=False)
    made = eagle(source(tmp_path, target), target, CHAIN, 2, 1, tp=2)
    weights = load_file(target.path / "model.safetensors")
    for share in ranks(made, "eagle_nets.0.drafter.vocab_embedding.weight"):
        assert torch.equal(share, weights["model.embed_tokens.weight"])
    head = torch.cat(ranks(made, "eagle_nets.0.lm_head.weight"))
    assert torch.equal(head[:VOCABULARY], weights["lm_head.weight"]) and not head[VOCABULARY:].any()
    assert not torch.cat(ranks(made, "eagle_nets.0.drafter.fc.bias")).any()  # upstream's fusion always has one


def test_a_tied_target_gives_its_embedding_as_head(tmp_path: Path) -> None:
    tied = open_checkpoint(tiny_llama(tmp_path / "tied"))
    write_eagle(tmp_path / "eagle")
    made = eagle(source(tmp_path / "eagle", tied), tied, CHAIN, 2, 1, tp=1)
    (head,) = ranks(made, "eagle_nets.0.lm_head.weight", tp=1)
    assert torch.equal(head, tied.read("model.embed_tokens.weight"))


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"rope_theta": 5000.0}, "rotary_base", 5000.0),
        ({"rms_norm_eps": 1e-4}, "norm_epsilon", 1e-4),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            "rotary_scaling",
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ],
)
def test_rotation_and_norm_are_the_drafters_where_they_differ(
    change: dict[str, Any], key: str, value: object, target: Checkpoint, tmp_path: Path
) -> None:
    same = {"rope_theta": target.config.rope_theta, "rms_norm_eps": target.config.rms_norm_eps}
    write_eagle(tmp_path, **{**same, **change})
    made = eagle(source(tmp_path, target), target, CHAIN, 2, 1, tp=1)
    net = made.settings["eagle_net_config"]
    assert {name: net[name] for name in set(net) & {"rotary_base", "norm_epsilon", "rotary_scaling"}} == {key: value}
    assert (net["intermediate_size"], net["num_attention_heads"]) == (INNER, 4)


def test_a_layer_of_another_kind_is_refused(target: Checkpoint, tmp_path: Path) -> None:
    write_medusa(tmp_path)
    with pytest.raises(CheckpointError, match="compiles EAGLE's one layer without norms around it"):
        eagle(source(tmp_path, target), target, CHAIN, 2, 1, tp=1)


@pytest.mark.parametrize(("split", "shape"), [(ROWS, (4, 6)), (COLUMNS, (8, 3)), (None, (8, 6))])
def test_shares(split: int | None, shape: tuple[int, ...]) -> None:
    values = torch.arange(42.0).view(7, 6)
    item = Added("x", (Part((7, 6), lambda: values, 8),), split)
    shares = [item.of_rank(rank, 2, torch.float32) for rank in range(2)]
    assert [tuple(share.shape) for share in shares] == [shape, shape] == [item.rank_shape(2)] * 2
    assert item.rank_bytes(2, 2) == 2 * shape[0] * shape[1]
    whole = shares[0] if split is None else torch.cat(shares, dim=split)
    assert torch.equal(whole[:7], values) and not whole[7:].any()


@pytest.mark.parametrize(("size", "tp", "padded"), [(267, 2, 268), (268, 2, 268), (5, 8, 8), (7, 1, 7)])
def test_vocabularies_are_padded_to_the_ranks(size: int, tp: int, padded: int) -> None:
    assert padded_vocabulary(size, tp) == padded


@pytest.mark.parametrize("tie", [True, False])
def test_a_gguf_file_is_exported_as_a_folder_that_is_the_same_model(tie: bool, tmp_path: Path) -> None:
    import gguf

    folder = tiny_llama(tmp_path / "tiny", tie=tie)
    stored = open_checkpoint(gguf_of(folder, tmp_path / "tiny.gguf", gguf.MODEL_ARCH.LLAMA))
    again = open_checkpoint(export(stored, "float32", tmp_path / "again"))
    assert again.config == stored.config and again.architecture == stored.architecture
    assert set(again.tensors) == set(stored.tensors)
    assert all(torch.equal(again.read(name), stored.read(name)) for name in again.tensors)
