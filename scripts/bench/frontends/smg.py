"""The vLLM servicer of the Shepherd Model Gateway over the scripted engine, in the place of vLLM's own engine client.

It needs `smg-grpc-servicer` and vLLM, whose types it speaks. It streams ids without text, for its gateway detokenises.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as rpc
from smg_grpc_servicer.vllm.servicer import VllmEngineServicer
from vllm.outputs import CompletionOutput, RequestOutput

from scripts.bench.frontends.answering import Load, Told
from scripts.bench.frontends.scripted import PROMPT_IDS, Gate, Step, steps_of
from scripts.bench.frontends.wire import MARK


class Renderer:
    """Prompts are ids already."""

    def process_for_engine(self, prompt: Any, arrival_time: float) -> Any:
        return prompt


class ScriptedClient:
    """What the servicer asks of an engine client; each request gets the same steps, as fast as they are read."""

    vllm_config = None
    errored = False
    renderer = Renderer()

    def __init__(self, steps: Sequence[Step], streams: int) -> None:
        self._steps = steps
        self._gate = Gate(streams)

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
        ids = list(PROMPT_IDS)
        async with self._gate.passed():
            for step in self._steps:
                reason = "length" if step.finish else None
                output = CompletionOutput(0, "", step.token_ids, None, None, finish_reason=reason)
                yield RequestOutput(request_id, None, ids, None, [output], bool(step.finish), num_cached_tokens=0)


async def smg(load: Load, tell: Callable[[Told], None]) -> None:
    """Serve, as the gateway's launcher does."""
    steps = steps_of(load.accepted, load.tokens)
    server = grpc.aio.server()
    servicer = VllmEngineServicer(ScriptedClient(steps, load.streams), time.time())
    rpc.add_VllmEngineServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    request = pb.GenerateRequest(
        request_id=MARK.decode(),
        tokenized=pb.TokenizedInput(input_ids=PROMPT_IDS, original_text=""),
        sampling_params=pb.SamplingParams(max_tokens=load.tokens, ignore_eos=True),
        stream=True,
    )
    # A chunk for each step, and the end.
    tell(Told(port, "/vllm.grpc.engine.VllmEngine/Generate", request.SerializeToString().hex(), len(steps) + 1))
    await server.wait_for_termination()
