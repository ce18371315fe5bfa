"""Engines of plugins from flags to numbers: NVIDIA's Python layer, our kernels, and a double of the builder between.

What the double executes is the network that was built, so that what is proven by numbers is the wiring: which array
goes where, in which shape, and what plugins announce of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from builders import verifier
from builders.verification.networks import REJECTION_CHAINS, SAMPLED_TREES, Network
from plugins import defs, eager, eager_verification, runtime
from plugins.aot import compile_kernel
from plugins.contract import Array
from plugins.runtime import Verifier
from plugins.specs import KERNELS
from scripts.gpu_check.kernels.chains import Shape, clear, random_chains
from scripts.gpu_check.kernels.rows import ATOL, RTOL, rows
from tests.fakes import nvinfer_plugins
from tests.fakes.nvinfer_engine import Context, Plan, engines, plugins_of
from tests.nvinfer import asked, builder_of_expressions, dimensions, tensorrt_without_libraries
from tests.plugins.greedy_rows import LARGEST, GreedyRows, greedy_rows

pytest.importorskip("triton", reason="the kernels need Triton: pip install 'trtspec[plugins]'")

VOCABULARY, WIDTH, STREAM = 11, 13, 77
SIZES = {"rows": 3, "nodes": 4, "places": 5, "width": WIDTH}
FLAGS = ["--vocabulary", str(VOCABULARY), "--width", f"{VOCABULARY}:{WIDTH}:16", "--rows", "1:4:30", "--nodes", "1:2:9"]


@pytest.fixture(scope="module")
def trt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with (
        tensorrt_without_libraries(tmp_path_factory.mktemp("tensorrt")) as module,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(runtime, "current_stream", lambda device: STREAM)
        yield module


@pytest.fixture(scope="module")
def built(trt: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Plan]]]:
    """A folder of both engines, and what was built into it."""
    folder = tmp_path_factory.mktemp("built") / "verifier"
    with engines(trt) as plans:
        assert verifier.main(["--kind", "plugins", *FLAGS, "--architecture", "90", "--output", str(folder)]) == 0
        yield folder, plans


@pytest.fixture(scope="module")
def opened(built: tuple[Path, list[Plan]]) -> Verifier:
    return runtime.open_verifier(built[0], "cpu")


def sampled(greedy: GreedyRows, seed: int = 3) -> dict[str, torch.Tensor]:
    """Inputs of the engine for trees: every other place has noise."""
    count, places, width = greedy.logits.shape
    near = greedy.logits.where(greedy.logits != LARGEST, 2.5)  # beside it the twin's log-probabilities are rounded
    drawn = rows(near.reshape(count * places, width), vocabulary=VOCABULARY, seed=seed)
    return {**{name: value.reshape(count, places, *value.shape[1:]) for name, value in drawn._asdict().items()}} | {
        name: getattr(greedy, name) for name in ("tokens", "parents", "counts")
    }


def compare_trees(opened: Verifier, inputs: dict[str, torch.Tensor]) -> None:
    found = opened.run("trees", **inputs)
    names = [item.name for item in SAMPLED_TREES.inputs[:6]]
    count, places, width = inputs["logits"].shape
    flat = [inputs[name].reshape(count * places, *inputs[name].shape[2:]) for name in names]
    chosen = eager.choose_token(*flat, vocabulary=VOCABULARY)
    ids = chosen.ids.reshape(count, places)
    walked = eager_verification.walk_tree(ids, inputs["tokens"], inputs["parents"], inputs["counts"])
    for name, tensor in {"ids": ids, **walked._asdict()}.items():
        assert torch.equal(found[name], tensor), (name, found[name], tensor)
    for name in ("logprobs", "wanted_logprobs"):
        near = {"atol": ATOL, "rtol": RTOL, "equal_nan": True}
        torch.testing.assert_close(found[name], getattr(chosen, name).reshape(count, places), **near)  # type: ignore[arg-type]
    assert list(found) == [item.name for item in SAMPLED_TREES.outputs]


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=greedy_rows(VOCABULARY, most_nodes=6))
def test_sampled_and_greedy_trees(opened: Verifier, rows: GreedyRows) -> None:
    """Draws that follow, ties, rows without a law, padding that is poison."""
    compare_trees(opened, sampled(rows))


def test_trees_that_are_followed(opened: Verifier) -> None:
    """Drafted are the tokens that the target draws."""
    source = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(3, 6, WIDTH, generator=source)
    parents = torch.tensor([[-1, 0, 1, 2, 3], [-1, -1, 1, 1, 3], [-1, 0, 0, 2, 2]]).int()
    inputs = sampled(GreedyRows(logits, torch.zeros(3, 5).int(), parents, torch.tensor([5, 5, 3]).int()))
    ids = opened.run("trees", **inputs)["ids"]
    inputs["tokens"] = ids.gather(1, parents.long() + 1)
    assert opened.run("trees", **inputs)["accepted"].tolist() == [5, 1, 2]
    compare_trees(opened, inputs)


@pytest.mark.parametrize(("rows", "seed"), [(10, 8), pytest.param(30, 45, marks=pytest.mark.slow)])
def test_chains_by_rejection(opened: Verifier, rows: int, seed: int) -> None:
    chains = random_chains(Shape(rows, 3, VOCABULARY, padding=2), seed=seed)
    inputs = {name: value for name, value in chains._asdict().items() if name != "vocabulary"}
    found, expected, sure = opened.run("chains", **inputs), chains.eager(), clear(chains)
    assert sure.sum() >= 0.9 * rows
    assert list(found) == ["accepted", "token"]
    assert torch.equal(found["accepted"][sure], expected.accepted[sure])
    assert torch.equal(found["token"][sure], expected.token[sure])
    assert len(set(expected.accepted.tolist())) == 4


def test_engines_are_queued_on_the_current_stream(opened: Verifier) -> None:
    compare_trees(opened, sampled(GreedyRows(*(tensor[:1] for tensor in small()))))
    assert Context.streams[-1] == STREAM


def small() -> GreedyRows:
    return GreedyRows(
        torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[1, 2], [3, 4]]).int(),
        torch.tensor([[-1, 0], [-1, -1]]).int(),
        torch.tensor([2, 1]).int(),
    )


def test_what_is_in_the_engines(built: tuple[Path, list[Plan]]) -> None:
    """The launches in order, each for the architecture that was asked for, and sizes as they were given."""
    trees, chains = built[1]
    names = [[layer.given["plugin"].plugin_name for layer in plugins_of(plan)] for plan in (trees, chains)]
    assert names == [
        ["ChooseTokenParts", "ChooseTokenMerge", "WalkTree"],
        ["ChainStatistics", "ChainAcceptance", "ChainDraw", "ChainFollow"],
    ]
    attributes = [layer.given["plugin"].attrs for plan in built[1] for layer in plugins_of(plan)]
    assert {int(item["architecture"][0]) for item in attributes} == {90}
    assert {int(item["vocabulary"][0]) for item in attributes if "vocabulary" in item} == {VOCABULARY}
    assert trees.profile["logits"] == ((1, 2, VOCABULARY), (4, 3, WIDTH), (30, 10, 16))
    assert trees.profile["tokens"] == ((1, 1), (4, 2), (30, 9))
    assert [(plan.network.name, set(plan.flags)) for plan in built[1]] == [
        ("trees", {"STRICT_NANS"}),
        ("chains", {"STRICT_NANS"}),
    ]


@pytest.mark.parametrize("index", range(7))
def test_launches_are_those_of_our_own_launcher(
    trt: Any, built: tuple[Path, list[Plan]], index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grids and numbers that an engine would compute for its inputs."""
    stub = SimpleNamespace(entry="entry", ptx="", block_x=32, shared_bytes=0)
    monkeypatch.setattr(defs, "compile_kernel", lambda *arguments, **names: stub)
    baked, wanted = both_launches(trt, built[1], index)
    assert (baked.grid, baked.numbers) == (wanted.grid, wanted.numbers)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(7))
def test_kernels_are_compiled_for_the_chip_that_was_asked_for(
    trt: Any, built: tuple[Path, list[Plan]], index: int
) -> None:
    baked, _ = both_launches(trt, built[1], index)
    spec = [*SAMPLED_TREES.launches, *REJECTION_CHAINS.launches][index]
    compiled = compile_kernel(spec, "float32", 90)
    assert (baked.entry, baked.text) == (compiled.entry, compiled.ptx)
    assert ".target sm_90" in baked.text


def both_launches(trt: Any, plans: list[Plan], index: int) -> tuple[Any, Any]:
    layer = [layer for plan in plans for layer in plugins_of(plan)][index]
    plugin = layer.given["plugin"]
    spec = nvinfer_plugins.spec_of(plugin)
    shapes = [array_shape(item) for item in spec.inputs]
    builder, kinds = builder_of_expressions(trt), [tensor.dtype for tensor in layer.inputs]
    baked = asked(trt, plugin, kinds, dimensions(builder, shapes), builder)
    numbers = {name: int(value[0]) for name, value in plugin.attrs.items()}
    return baked, nvinfer_plugins.launched(spec, shapes, numbers)


def array_shape(item: Array) -> list[int]:
    """Sizes that all differ."""
    known = {**SIZES, "splits": 2}
    return [known[size] if isinstance(size, str) else size for size in item.shape]


def test_the_record_says_what_the_engines_take(built: tuple[Path, list[Plan]]) -> None:
    document = json.loads((built[0] / "verifier.json").read_text())
    assert document["kind"] == "plugins"
    assert document["architectures"] == [90]
    assert set(document["versions"]) == {"trtspec", "triton"}
    assert document["dimensions"]["places"] == [2, 3, 10]
    for network in (SAMPLED_TREES, REJECTION_CHAINS):
        recorded = document["engines"][network.name]
        assert [item["name"] for item in recorded["inputs"]] == [item.name for item in network.inputs]
        assert all(item["dtype"] != "logits" for item in recorded["inputs"])


@pytest.mark.parametrize("network", [SAMPLED_TREES, REJECTION_CHAINS], ids=lambda network: network.name)
def test_networks_take_what_their_kernels_take(network: Network) -> None:
    """Every array that no launch of theirs writes."""
    written = {item.name for spec in network.launches for item in spec.outputs}
    taken = dict.fromkeys(item.name for spec in network.launches for item in spec.inputs if item.name not in written)
    assert {item.name for item in network.inputs} == set(taken)
    assert {spec.name for spec in network.launches} <= set(KERNELS)
