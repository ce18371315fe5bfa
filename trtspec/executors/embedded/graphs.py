"""CUDA graphs: a pass is launched kernel by kernel once, then as a whole. Knows nothing of what a pass computes.

Not yet run on a GPU: tests record with other recorders, and `scripts/gpu-check` compares this one where a GPU is.
"""

from __future__ import annotations

import torch

from trtspec.decoding.plan import TargetOutput
from trtspec.executors.embedded.padded import Replay


class CudaGraphs:
    """Records passes as CUDA graphs; all share one memory, so a replay may overwrite what another one returned."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, run: Replay) -> Replay:
        """Record a pass and return its replay. It runs once before, so that libraries are set up when it counts."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Only this thread is held to what a recording allows; others of the process may use the device meanwhile.
        with torch.cuda.graph(graph, self._memory, self._stream, capture_error_mode="thread_local"):
            output = run()

        def replay() -> TargetOutput:
            graph.replay()
            return output

        return replay
