"""The network of native layers in numbers: as ONNX Runtime runs its graph, and as TensorRT's layers are documented."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from builders.verification.limits import Limits, Range
from builders.verification.networks import GREEDY_TREES, Network
from builders.verification.onnx_compiler import compile_network
from plugins.verification_specs import MOST_NODES
from tests.plugins.greedy_rows import GreedyRows, chain_that_is_liked, greedy_rows, same

onnx = pytest.importorskip("onnx", reason="exporting networks needs onnx: pip install onnx")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="running their graphs needs ONNX Runtime: pip install onnxruntime"
)

VOCABULARY = 5
LIMITS = Limits(Range(1, 8, 64), Range(1, 8, MOST_NODES), Range(VOCABULARY, 6, 8), VOCABULARY, "float32")
SETTINGS = settings(max_examples=150, deadline=None)


@functools.cache
def session(limits: Limits, network: Network = GREEDY_TREES) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    graph = compile_network(onnx, network, limits, ())
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run(rows: GreedyRows, limits: Limits = LIMITS) -> dict[str, torch.Tensor]:
    inputs = {name: tensor.numpy() for name, tensor in rows._asdict().items()}
    names = [item.name for item in GREEDY_TREES.outputs]
    return {
        name: torch.from_numpy(value) for name, value in zip(names, session(limits).run(names, inputs), strict=True)
    }


@SETTINGS
@given(greedy_rows(VOCABULARY, most_nodes=9))
def test_random_trees(rows: GreedyRows) -> None:
    same(run(rows), rows.expected(VOCABULARY))


@settings(max_examples=25, deadline=None)
@given(greedy_rows(VOCABULARY, most_nodes=MOST_NODES))
def test_large_trees(rows: GreedyRows) -> None:
    same(run(rows), rows.expected(VOCABULARY))


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 8, 9, 63, MOST_NODES])
@pytest.mark.parametrize("wrong", [None, 0, -1])
def test_a_chain_of_all_nodes_that_an_engine_takes(most: int, wrong: int | None) -> None:
    """One step too few and the end of the longest chain is not told from one that goes wrong."""
    limits = Limits(Range(1, 1, 2), Range(1, 1, most), Range(4, 4, 4), 4, "float32")
    rows = chain_that_is_liked(most, 4, wrong)
    found = run(rows, limits)
    same(found, rows.expected(4))
    assert found["accepted"].tolist() == [most if wrong is None else most + wrong if wrong < 0 else wrong]


@pytest.mark.parametrize(
    ("values", "token"),
    [
        ([0.0, 2.0, 2.0, 1.0, 2.0], 1),
        ([-1.0, -math.inf, -2.0, -1.0, -3.0], 0),
        ([math.nan, 1.0, 2.0, 3.0, 4.0], -1),
        ([1.0, 2.0, 3.0, 4.0, math.nan], -1),
        ([1.0, math.inf, 3.0, 4.0, 5.0], -1),
        ([-math.inf] * 5, -1),
        ([-0.0, 0.0, -1.0, -1.0, -1.0], 0),
        ([-5.0, -4.0, -3.0, -2.0, -1.0], 4),
        ([math.nan] * 5, -1),
    ],
)
def test_the_best_token_of_a_row(values: list[float], token: int) -> None:
    """Columns beyond the vocabulary would win, and are never looked at."""
    rows = chain_that_is_liked(1, VOCABULARY)
    logits = torch.tensor([[[*values, 9e9, math.nan]] * 2])
    found = run(rows._replace(logits=logits))
    assert found["ids"].tolist() == [[token, token]]
    same(found, rows._replace(logits=logits).expected(VOCABULARY))


def test_of_siblings_with_one_token_the_first_counts() -> None:
    ids = [3, 0, 2, 2, 1, 1]
    logits = torch.nn.functional.one_hot(torch.tensor([ids]), VOCABULARY).float()
    tokens, parents = torch.tensor([[1, 3, 3, 1, 2]]), torch.tensor([[-1, -1, -1, 1, 2]])
    rows = GreedyRows(logits, tokens.int(), parents.int(), torch.tensor([5]).int())
    assert run(rows)["path"].tolist() == [[1, -1, -1, -1, -1]]
    same(run(rows), rows.expected(VOCABULARY))


@pytest.mark.parametrize("seed", range(20))
def test_parents_that_are_no_nodes_lead_nowhere(seed: int) -> None:
    """Loops, and places outside of the row, where all tokens are liked: no wrong access, and the oracle's answer."""
    source = torch.Generator().manual_seed(seed)
    nodes = int(torch.randint(1, 12, (), generator=source))
    logits = torch.zeros(8, nodes + 1, VOCABULARY)
    logits[..., 1] = 1.0
    parents = torch.randint(-3, nodes + 3, (8, nodes), generator=source).int()
    parents[0, 0], parents[1, -1] = 2**31 - 1, -(2**31)
    rows = GreedyRows(logits, torch.ones(8, nodes).int(), parents, torch.full((8,), nodes).int())
    same(run(rows), rows.expected(VOCABULARY))


def test_rows_of_one_batch_do_not_disturb_each_other() -> None:
    parts = [chain_that_is_liked(4, VOCABULARY, wrong) for wrong in (None, 0, 2, None)]
    counts = torch.tensor([4, 4, 4, 0]).int()
    batch = GreedyRows(*(torch.cat(columns) for columns in zip(*parts, strict=True)))._replace(counts=counts)
    assert run(batch)["accepted"].tolist() == [4, 0, 2, 0]
    same(run(batch), batch.expected(VOCABULARY))


def test_half_precision_is_compared_as_it_is() -> None:
    limits = Limits(Range(1, 1, 4), Range(1, 1, 8), Range(300, 300, 300), 290, "float16")
    source = torch.Generator().manual_seed(5)
    rows = chain_that_is_liked(3, 300)._replace(logits=torch.randn(1, 4, 300, generator=source).half())
    same(run(rows, limits), rows.expected(290))


def test_a_graph_says_what_it_takes() -> None:
    inputs = {item.name: (item.type, item.shape) for item in session(LIMITS).get_inputs()}
    assert inputs == {
        "logits": ("tensor(float)", ["rows", "places", "width"]),
        "tokens": ("tensor(int32)", ["rows", "nodes"]),
        "parents": ("tensor(int32)", ["rows", "nodes"]),
        "counts": ("tensor(int32)", ["rows"]),
    }
    fixed = Limits(Range(2, 2, 2), Range(3, 3, 3), Range(6, 6, 6), 5, "bfloat16")
    graph = onnx.load_from_string(compile_network(onnx, GREEDY_TREES, fixed, ())).graph
    sizes = {item.name: [size.dim_value for size in item.type.tensor_type.shape.dim] for item in graph.input}
    assert sizes == {"logits": [2, 4, 6], "tokens": [2, 3], "parents": [2, 3], "counts": [2]}
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
