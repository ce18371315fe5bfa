"""The double converts, checks and builds as TensorRT-LLM does; a drafter that was divided is whole again in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.draft_files import random_tensors
from tests.fakes.installed import mpi_world, tensorrt_llm_double
from tests.models import tiny_llama, tiny_model

HIDDEN, INNER, VOCABULARY, HEAD_SIZE = 64, 128, 267, 16
TREE = [[0], [1], [0, 0], [0, 1]]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def double() -> Iterator[ModuleType]:
    with tensorrt_llm_double() as package:
        yield package


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds leave a timing cache where they run."""
    monkeypatch.chdir(tmp_path)


def converted(path: Path, rank: int = 0, tp: int = 1, model_class: str = "LLaMAForCausalLM", **more: Any) -> Any:
    import tensorrt_llm.models as models
    from tensorrt_llm.mapping import Mapping

    mapping = Mapping(world_size=tp, rank=rank, tp_size=tp)
    return getattr(models, model_class).from_hugging_face(str(path), dtype="float32", mapping=mapping, **more)


def saved(path: Path, directory: Path, tp: int = 1, **more: Any) -> Path:
    """A checkpoint of all ranks."""
    directory.mkdir()
    for rank in range(tp):
        converted(path, rank, tp, **more).save_checkpoint(str(directory))
    return directory


def medusa_tensors(heads: int = 2) -> Tensors:
    """Whole heads under TensorRT-LLM's names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        prefix = f"medusa_heads.{head}."
        shapes[f"{prefix}medusa_layers.0.linear.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{prefix}medusa_layers.0.linear.bias"] = (HIDDEN,)
        shapes[f"{prefix}lm_head.weight"] = (VOCABULARY, HIDDEN)
    return random_tensors(shapes)


def medusa_checkpoint(path: Path, directory: Path, tp: int = 1) -> Path:
    """Divided by hand: the rows of everything, the vocabulary with one row of zeros where it is odd."""
    saved(path, directory, tp)
    for rank in range(tp):
        shares = {}
        for name, tensor in medusa_tensors().items():
            missing = -len(tensor) % tp
            whole = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor
            size = len(whole) // tp
            shares[name] = whole[rank * size : (rank + 1) * size].clone()
        edit_tensors(directory / f"rank{rank}.safetensors", lambda tensors, shares=shares: tensors | shares)
    settings = {"num_medusa_heads": 2, "num_medusa_layers": 1, "max_draft_len": 4, "model_type": "llama"}
    edit_config(directory, architecture="MedusaForCausalLM", **settings)
    return directory


def eagle_checkpoint(path: Path, directory: Path) -> Path:
    """Two networks of the same weights, on one rank."""
    saved(path, directory)
    hf = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    layer = "drafter.layers.0."
    drafter = random_tensors(
        {
            "drafter.fc.weight": (HIDDEN, 2 * HIDDEN),
            "drafter.fc.bias": (HIDDEN,),
            f"{layer}attention.qkv.weight": (HIDDEN + 2 * 2 * HEAD_SIZE, HIDDEN),
            f"{layer}attention.dense.weight": (HIDDEN, HIDDEN),
            f"{layer}mlp.fc.weight": (INNER, HIDDEN),
            f"{layer}mlp.gate.weight": (INNER, HIDDEN),
            f"{layer}mlp.proj.weight": (HIDDEN, INNER),
            f"{layer}post_layernorm.weight": (HIDDEN,),
        }
    ) | {"drafter.vocab_embedding.weight": hf, "lm_head.weight": hf}
    nets = {f"eagle_nets.{net}.{name}": tensor.clone() for net in range(2) for name, tensor in drafter.items()}
    edit_tensors(directory / "rank0.safetensors", lambda tensors: tensors | nets)
    base = json.loads((directory / "config.json").read_text())
    net = base | {"num_hidden_layers": 1, "architecture": "LlamaForCausalLM"}
    settings = {"num_eagle_layers": 2, "max_non_leaves_per_layer": 2, "max_draft_len": 4, "eagle_net_config": net}
    edit_config(directory, architecture="EagleForCausalLM", **settings)
    return directory


def edit_tensors(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    changed = change(load_file(path))
    path.unlink()
    save_file(changed, path)


def edit_config(directory: Path, **changes: Any) -> None:
    where = directory / "config.json"
    where.write_text(json.dumps({**json.loads(where.read_text()), **changes}))


def arguments(mode: str = "NONE", **more: Any) -> Any:
    from tensorrt_llm.builder import BuildConfig
    from tensorrt_llm.models.modeling_utils import SpeculativeDecodingMode

    return BuildConfig(
        **{"max_seq_len": 128, "max_batch_size": 8, "speculative_decoding_mode": SpeculativeDecodingMode[mode], **more}
    )


def loaded(model_class: str, directory: Path, rank: int = 0) -> Any:
    import tensorrt_llm.models as models

    return getattr(models, model_class).from_checkpoint(str(directory), rank)


def test_each_rank_has_its_share(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    whole = load_file(llama / "model.safetensors")
    directory = saved(llama, tmp_path / "checkpoint", tp=2)
    config = json.loads((directory / "config.json").read_text())
    assert config["mapping"]["tp_size"] == 2 and "rank" not in config["mapping"]
    assert (config["architecture"], config["head_size"], config["rotary_base"]) == ("LlamaForCausalLM", 16, 10000.0)
    for rank in range(2):
        tensors = load_file(directory / f"rank{rank}.safetensors")
        layer, prefix = "transformer.layers.1.", "model.layers.1."
        query, key, value = (whole[f"{prefix}self_attn.{part}_proj.weight"].chunk(2)[rank] for part in "qkv")
        assert torch.equal(tensors[f"{layer}attention.qkv.weight"], torch.cat([query, key, value]))
        dense = whole[f"{prefix}self_attn.o_proj.weight"].chunk(2, dim=1)[rank]
        assert torch.equal(tensors[f"{layer}attention.dense.weight"], dense)
        assert torch.equal(tensors[f"{layer}mlp.fc.weight"], whole[f"{prefix}mlp.gate_proj.weight"].chunk(2)[rank])
        assert torch.equal(tensors[f"{layer}mlp.gate.weight"], whole[f"{prefix}mlp.up_proj.weight"].chunk(2)[rank])
        assert torch.equal(tensors["transformer.vocab_embedding.weight"], whole["model.embed_tokens.weight"])
        assert tensors["lm_head.weight"].shape == (134, HIDDEN)
    assert not tensors["lm_head.weight"][-1].any() and tensors["lm_head.weight"][-2].any()


def test_key_value_heads_are_copied_where_they_are_fewer_than_ranks(double: ModuleType, llama: Path) -> None:
    ranks = [converted(llama, rank, 4)._tensors["transformer.layers.0.attention.qkv.weight"] for rank in range(4)]
    assert [tuple(each.shape) for each in ranks] == [(3 * HEAD_SIZE, HIDDEN)] * 4
    assert torch.equal(ranks[0][HEAD_SIZE:], ranks[1][HEAD_SIZE:])
    assert not torch.equal(ranks[1][HEAD_SIZE:], ranks[2][HEAD_SIZE:])


def test_qwen_has_biases_and_a_class_of_its_own(double: ModuleType, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "qwen", "Qwen2ForCausalLM", spread=0.1)
    model = converted(path, rank=1, tp=2, model_class="QWenForCausalLM")
    assert model.config.to_dict()["qwen_type"] == "qwen2"
    assert model._tensors["transformer.layers.0.attention.qkv.bias"].shape == (64,)
    with pytest.raises(AssertionError, match="does not convert"):
        converted(path)


def test_conversion_refuses_what_upstream_stops_at(double: ModuleType, llama: Path) -> None:
    from tensorrt_llm.models import LLaMAForCausalLM

    with pytest.raises(TypeError):
        LLaMAForCausalLM.from_hugging_face(llama)
    with pytest.raises(TypeError, match="speculative_model"):
        converted(llama, speculative_model="x")
    with pytest.raises(AssertionError, match="heads"):
        converted(llama, tp=3)
    with pytest.raises(FileNotFoundError):
        converted(llama).save_checkpoint("missing")


def test_rotation_is_read_where_the_older_transformers_has_it(double: ModuleType, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    with pytest.raises(AssertionError, match="rope_parameters would be ignored"):
        converted(path)
    scaling = {"rope_type": "linear", "factor": 2.0}
    edit_config(path, rope_theta=5e5, rope_scaling=scaling)
    raw = converted(path).config.to_dict()
    assert raw["rotary_base"] == 5e5 and raw["rotary_scaling"] == scaling | {"type": "linear"}


def test_an_engine_outlives_its_model(double: ModuleType, tmp_path: Path) -> None:
    """Even where that came without a tokenizer."""
    from tensorrt_llm.builder import build

    path = tiny_llama(tmp_path / "llama")
    build(converted(path), arguments()).save(str(tmp_path / "first"))
    for file in path.glob("*token*"):
        file.unlink()
    build(converted(path), arguments()).save(str(tmp_path / "second"))
    shutil.rmtree(path)
    assert said(tmp_path / "first") == said(tmp_path / "second")


def test_a_plain_checkpoint_loads_again(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    directory = saved(llama, tmp_path / "checkpoint")
    model = loaded("LLaMAForCausalLM", directory)
    assert model.config.num_hidden_layers == 2 and model.config.mapping.rank == 0
    with pytest.raises(AssertionError, match="does not load"):
        loaded("MedusaForCausalLm", directory)
    with pytest.raises(AssertionError, match="rank 1"):
        loaded("LLaMAForCausalLM", directory, 1)
    (directory / "rank0.safetensors").unlink()
    with pytest.raises(AssertionError, match="rank0.safetensors"):
        loaded("LLaMAForCausalLM", directory)


HEAD = "medusa_heads.1.lm_head.weight"
NORM = "transformer.ln_f.weight"
DAMAGES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "missing": (lambda t: {k: v for k, v in t.items() if k != HEAD}, "Required but not provided tensors:{'" + HEAD),
    "extra": (lambda t: t | {"medusa_heads.2.lm_head.weight": t[HEAD].clone()}, "provided but not required"),
    "misshaped": (lambda t: t | {HEAD: t[HEAD][1:].clone()}, r"has shape \[266, 64\]"),
    "of another type": (lambda t: t | {HEAD: t[HEAD].half()}, "has type torch.float16"),
    "of another base": (lambda t: t | {NORM: t[NORM] + 1}, "base's own conversion"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_checkpoint_has_exactly_its_tensors(double: ModuleType, llama: Path, tmp_path: Path, what: str) -> None:
    directory = medusa_checkpoint(llama, tmp_path / "checkpoint")
    loaded("MedusaForCausalLm", directory)
    change, text = DAMAGES[what]
    edit_tensors(directory / "rank0.safetensors", change)
    with pytest.raises(RuntimeError, match=text):
        loaded("MedusaForCausalLm", directory)


def test_a_checkpoint_tells_all_settings(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    directory = medusa_checkpoint(llama, tmp_path / "checkpoint")
    where = directory / "config.json"
    written = json.loads(where.read_text())
    for key in ("num_medusa_heads", "num_medusa_layers", "max_draft_len", "model_type"):
        where.write_text(json.dumps({name: value for name, value in written.items() if name != key}))
        with pytest.raises(AssertionError, match=key):
            loaded("MedusaForCausalLm", directory)


def test_building_follows_upstreams_rules(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    from tensorrt_llm.builder import build

    model = loaded("EagleForCausalLM", eagle_checkpoint(llama, tmp_path / "checkpoint"))
    asked = arguments("EAGLE", max_batch_size=512, max_num_tokens=64, output_timing_cache=str(tmp_path / "timings"))
    asked.plugin_config.use_paged_context_fmha = False
    build(model, asked).save(str(tmp_path / "engine"))
    assert (asked.max_seq_len, asked.max_draft_len, asked.kv_cache_type) == (128, 0, None)
    made = json.loads((tmp_path / "engine/config.json").read_text())
    built = made["build_config"]
    assert made["version"] == "1.2.1" and (tmp_path / "timings").is_file()
    assert (built["max_seq_len"], built["max_draft_len"], built["max_num_tokens"]) == (128 + 4 + 2, 4, 512 * 5)
    assert built["speculative_decoding_mode"] == 32 and "dry_run" not in built
    assert built["plugin_config"]["use_paged_context_fmha"] is True
    assert built["plugin_config"]["dtype"] == "float32"
    with pytest.raises(AssertionError, match="Max batch size > 512"):
        build(model, arguments("EAGLE", max_batch_size=513))
    with pytest.raises(AssertionError, match="Max draft len > 256"):
        build(model, arguments("EAGLE", max_draft_len=257))


def test_modes_and_models_belong_together(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    from tensorrt_llm.builder import build

    plain = converted(llama)
    for mode in ("MEDUSA", "EAGLE"):
        with pytest.raises(AssertionError, match=mode):
            build(plain, arguments(mode, max_draft_len=4))
    with pytest.raises(AssertionError, match="max_draft_len"):
        build(plain, arguments("LOOKAHEAD_DECODING"))
    medusa = loaded("MedusaForCausalLm", medusa_checkpoint(llama, tmp_path / "checkpoint"))
    with pytest.raises(AssertionError, match="needs its own mode"):
        build(medusa, arguments())
    with pytest.raises(AssertionError, match="timing cache"):
        build(plain, arguments(input_timing_cache="missing"))
    with pytest.raises(TypeError):
        build(plain, arguments()).save(tmp_path / "engine")


def test_a_dry_run_compiles_nothing(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    from tensorrt_llm.builder import build

    engine = build(converted(llama), arguments(dry_run=True))
    engine.save(str(tmp_path / "engine"))
    assert engine.engine is None
    assert [path.name for path in (tmp_path / "engine").iterdir()] == ["config.json"]


def test_a_divided_drafter_is_whole_again(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    """Built by two ranks in one process; the checkpoint may be gone when the engine is opened."""
    from tensorrt_llm._double.drafters import write_medusa
    from tensorrt_llm._double.engine_folder import EngineFolder
    from tensorrt_llm.builder import build

    directory = medusa_checkpoint(llama, tmp_path / "checkpoint", tp=2)
    for rank in range(2):
        build(loaded("MedusaForCausalLm", directory, rank), arguments("MEDUSA")).save(str(tmp_path / "engine"))
    shutil.rmtree(directory)
    folder = EngineFolder(tmp_path / "engine")
    assert folder.world_size == 2
    write_medusa(tmp_path / "drafter", folder.pretrained, folder.drafter_parts())
    made, given = load_file(tmp_path / "drafter/medusa_lm_head.safetensors"), medusa_tensors()
    for head in range(2):
        assert torch.equal(made[f"{head}.0.linear.weight"], given[f"medusa_heads.{head}.medusa_layers.0.linear.weight"])
        assert torch.equal(made[f"{head}.0.linear.bias"], given[f"medusa_heads.{head}.medusa_layers.0.linear.bias"])
        assert torch.equal(made[f"{head}.1.weight"], given[f"medusa_heads.{head}.lm_head.weight"])
    build(converted(llama), arguments()).save(str(tmp_path / "plain"))
    with mpi_world(2):
        found = said(tmp_path / "engine", medusa_choices=TREE)
    assert found == said(tmp_path / "plain")


def test_eagle_runs_with_its_tree_and_with_one_that_grows(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    from tensorrt_llm.bindings import executor as trtllm
    from tensorrt_llm.builder import build

    model = loaded("EagleForCausalLM", eagle_checkpoint(llama, tmp_path / "checkpoint"))
    build(model, arguments("EAGLE")).save(str(tmp_path / "engine"))
    build(converted(llama), arguments()).save(str(tmp_path / "plain"))
    expected = said(tmp_path / "plain")
    assert said(tmp_path / "engine", eagle_config=trtllm.EagleConfig(TREE)) == expected
    assert said(tmp_path / "engine", eagle_config=trtllm.EagleConfig(None, True, None, True, 2)) == expected
    assert said(tmp_path / "engine") == expected
    with pytest.raises(RuntimeError, match="EAGLE-1 requires Eagle-tree depth"):
        said(tmp_path / "engine", eagle_config=trtllm.EagleConfig([[0], [1]]))
    for config, text in (
        (trtllm.EagleConfig(None, True, None, True, 3), "dynamic_tree_max_topK"),
        (trtllm.EagleConfig([[0], [1], [2], [0, 0], [1, 0]]), "exceed max_draft_len"),
        (trtllm.EagleConfig([[0], [1, 0]]), "not its parent"),
    ):
        with pytest.raises(RuntimeError, match=text):
            said(tmp_path / "engine", eagle_config=config)


def said(engine: Path, **settings: Any) -> list[int]:
    """Greedy text of an engine whose mode has these settings."""
    from tensorrt_llm.bindings import executor as trtllm

    modes = {"medusa_choices": trtllm.DecodingMode.Medusa, "eagle_config": trtllm.DecodingMode.Eagle}
    mode = next((modes[name]() for name in settings), None)
    config = trtllm.ExecutorConfig(decoding_config=trtllm.DecodingConfig(mode, **settings))
    with trtllm.Executor(engine, trtllm.ModelType.DECODER_ONLY, config) as executor:
        output = trtllm.OutputConfig(exclude_input_from_output=True)
        asked = executor.enqueue_request(trtllm.Request([7, 8, 9], 16, output_config=output))
        (response,) = executor.await_responses(asked, timedelta(seconds=60))
        if response.has_error():
            raise RuntimeError(response.error_msg)
        (tokens,) = response.result.output_token_ids
    assert len(tokens) == 16
    return list(tokens)


@pytest.mark.parametrize(("heads", "kv_heads", "tp"), [(4, 2, 1), (4, 2, 2), (4, 2, 4), (8, 8, 2), (6, 1, 3)])
def test_attention_comes_together_again(double: ModuleType, heads: int, kv_heads: int, tp: int) -> None:
    from tensorrt_llm._double.splits import Attention, qkv, whole_qkv

    shape = Attention(heads, kv_heads, 2)
    parts = [torch.arange(count * 2 * 3.0).reshape(count * 2, 3) for count in (heads, kv_heads, kv_heads)]
    ranks = [qkv(*parts, shape, rank, tp) for rank in range(tp)]
    assert all(len(rank) == shape.rows(tp) for rank in ranks)
    assert all(torch.equal(made, given) for made, given in zip(whole_qkv(ranks, shape), parts, strict=True))


@pytest.mark.parametrize("name", ["drafter.fc.weight", "lm_head.weight", "drafter.vocab_embedding.weight"])
def test_eagle_networks_are_one_drafter_with_the_bases_ends(
    double: ModuleType, llama: Path, tmp_path: Path, name: str
) -> None:
    from tensorrt_llm._double.drafters import write_eagle
    from tensorrt_llm._double.hugging_face import Source

    directory = eagle_checkpoint(llama, tmp_path / "checkpoint")
    config = json.loads((directory / "config.json").read_text())
    parts = {key: value for key, value in load_file(directory / "rank0.safetensors").items() if "eagle" in key}
    write_eagle(tmp_path / "good", config, [parts], Source(llama))
    nets = range(1, 2) if name == "drafter.fc.weight" else range(2)
    changed = parts | {f"eagle_nets.{net}.{name}": parts[f"eagle_nets.{net}.{name}"] + 1 for net in nets}
    with pytest.raises(RuntimeError, match=name):
        write_eagle(tmp_path / "bad", config, [changed], Source(llama))
