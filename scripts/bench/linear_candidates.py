"""Which compiler for the products of a decoder on this CPU? Times all linear layers of the demo model, in one run.

    python scripts/bench/linear_candidates.py --output scripts/bench/linear_candidates.md

Every candidate multiplies the same shapes: 30 layers of qkv, output, gate_up and down, and the head. OpenVINO's rows
are whole passes, attention and norms included. Inductor needs a C++ compiler and takes minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from scripts.bench.peers.machine import cpu_name
from trtspec.decoding.plan import PlanRow, StepPlan
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.weights import DecoderWeights, Int8Weight, LayerWeights, Weight
from trtspec.types import Request

LAYERS = 30
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Of one layer of SmolLM2-135M: [out, in]."""
HEAD = (49152, 576)
ROWS = (1, 2, 4, 8, 9, 16, 32, 64)
CONFIG = DecoderConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_layers=LAYERS,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    rope_scaling=None,
    vocab_size=HEAD[0],
    max_position_embeddings=256,
    tie_word_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
)
FEW_ROWS = (1, 8)
"""For a candidate that takes minutes to compile for each."""
Products = Callable[[dict[int, Tensor]], object]
"""Multiplies inputs, by width, with every matrix."""


def matrices(dtype: torch.dtype) -> list[Tensor]:
    """All matrices, random; a shape is repeated as often as the model has it."""
    values = torch.Generator().manual_seed(0)
    shapes = [shape for _ in range(LAYERS) for shape in SHAPES] + [HEAD]
    return [torch.randn(shape, generator=values).to(dtype) for shape in shapes]


def eager(dtype: torch.dtype) -> Products:
    weights = matrices(dtype)
    return lambda x: [linear(x[w.shape[1]], w) for w in weights]


def weight_first(dtype: torch.dtype) -> Products:
    weights = matrices(dtype)
    return lambda x: [(w @ x[w.shape[1]].t()).t().contiguous() for w in weights]


def packed_onednn(dtype: torch.dtype) -> Products:
    """oneDNN's linear with weights reordered once, as PyTorch's own compiler calls it."""
    reorder, run = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    weights = [(w.shape[1], reorder(w, 16)) for w in matrices(dtype)]
    return lambda x: [run(x[width], w, None, "none", [], "") for width, w in weights]


def inductor(dtype: torch.dtype) -> Products:
    """torch.compile with max-autotune and frozen weights: all products as one compiled function."""
    import torch._inductor.config as config

    config.freezing = config.max_autotune = True
    model = _Products(matrices(dtype)).eval()
    return torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)


class _Products(torch.nn.Module):
    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, x: dict[int, Tensor]) -> list[Tensor]:
        return [linear(x[w.shape[1]], w) for w in self.weights]


def openvino(kind: str) -> Products:
    """The compiled runner: whole passes, attention and norms included. OpenVINO keeps weights small only in graphs
    with paged attention, so products alone would not show what the engine does."""
    from trtspec.decoding.draft import Draft
    from trtspec.executors.embedded.openvino.compiled import BLOCK_TOKENS
    from trtspec.executors.embedded.openvino.runner import OpenVinoRunner

    runner = OpenVinoRunner(
        CONFIG,
        random_weights(kind),
        positions=256,
        vocabulary_size=CONFIG.vocab_size,
        blocks=256 // BLOCK_TOKENS,
        dtype=torch.float32,
        threads=torch.get_num_threads(),
    )
    return lambda x: runner.forward(prompt_pass(len(x[576])), Draft.empty(1))


def random_weights(kind: str) -> DecoderWeights[Weight]:
    """The demo model's shapes in one of the stored forms."""

    def stored(matrix: Tensor) -> Weight:
        return Int8Weight.of(matrix) if kind == "int8" else matrix.to(getattr(torch, kind))

    *rest, head = (stored(matrix) for matrix in matrices(torch.float32))
    ones = torch.ones(CONFIG.hidden_size)
    layers = tuple(
        LayerWeights(ones, rest[i], None, None, None, rest[i + 1], ones, rest[i + 2], rest[i + 3])
        for i in range(0, len(rest), len(SHAPES))
    )
    return DecoderWeights(head, layers, ones, head)


def prompt_pass(rows: int) -> StepPlan:
    """A prompt of so many tokens, every place of it scored."""
    row = PlanRow(
        sequence_id=0,
        request=Request("prompt", (5,) * rows, 1),
        history=[5] * rows,
        start=0,
        fed=rows,
        samples=True,
        prefill=True,
        max_depth=0,
        max_nodes=0,
        blocks=tuple(range(8)),
        choice=0,
        scored=rows,
    )
    return StepPlan(0, (row,))


CANDIDATES: dict[str, tuple[torch.dtype, Callable[[], Products]]] = {
    "PyTorch float32": (torch.float32, lambda: eager(torch.float32)),
    "PyTorch float32, weight first": (torch.float32, lambda: weight_first(torch.float32)),
    "PyTorch bfloat16": (torch.bfloat16, lambda: eager(torch.bfloat16)),
    "oneDNN packed float32": (torch.float32, lambda: packed_onednn(torch.float32)),
    "oneDNN packed bfloat16": (torch.bfloat16, lambda: packed_onednn(torch.bfloat16)),
    "Inductor float32": (torch.float32, lambda: inductor(torch.float32)),
    "Inductor bfloat16": (torch.bfloat16, lambda: inductor(torch.bfloat16)),
    "OpenVINO float32, whole pass": (torch.float32, lambda: openvino("float32")),
    "OpenVINO bfloat16 weights, whole pass": (torch.float32, lambda: openvino("bfloat16")),
    "OpenVINO int8 weights, whole pass": (torch.float32, lambda: openvino("int8")),
}


def rows_of(name: str) -> tuple[int, ...]:
    return FEW_ROWS if "Inductor" in name else ROWS


@torch.no_grad()
def measure(name: str, repeats: int) -> Iterator[float]:
    """Milliseconds for all products, by number of rows: the median after two calls that do not count."""
    dtype, make = CANDIDATES[name]
    products = make()
    for rows in rows_of(name):
        x = {width: torch.randn(rows, width).to(dtype) for width in (576, 1536)}
        times = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            products(x)
            times.append(time.perf_counter() - start)
        yield statistics.median(times[2:]) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table to a file too")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", help="candidates whose name contains this")
    options = parser.parse_args()
    lines = [f"| ms, by rows | {' | '.join(map(str, ROWS))} |", f"|---|{'---:|' * len(ROWS)}"]
    for name in CANDIDATES:
        if options.only is None or options.only in name:
            try:
                values = dict(zip(rows_of(name), measure(name, options.repeats), strict=True))
                cells = [f"{values[rows]:.1f}" if rows in values else "" for rows in ROWS]
            except Exception as error:  # a candidate that this machine cannot run is a row of the table too
                cells = [f"not run: {type(error).__name__}: {str(error).splitlines()[0][:80]}"]
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if options.output:
        machine = f"{cpu_name()}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
        options.output.write_text(f"# Products of the demo model\n\n{machine}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
