"""The gateway's service over a real engine: equal requests get equal ids from it and from Inference."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import trtllm_service_pb2 as smg
from smg_grpc_proto.generated import trtllm_service_pb2_grpc as rpc

from trtspec.client import Client

pytestmark = pytest.mark.slow
FLAGS = ("--smg", "--frontends", "2")
PROMPT = (40, 50, 60, 40, 50, 60, 40)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9, "seed": 11},
        {"temperature": 1.1, "top_k": 20, "seed": 12, "repetition_penalty": 1.1, "frequency_penalty": 0.3},
    ],
    ids=["greedy", "nucleus", "penalties"],
)
async def test_ids_are_those_of_inference(
    client: Client, channel: grpc.aio.Channel, sampling: dict[str, Any], streaming: bool
) -> None:
    answer = await client.complete(PROMPT, max_tokens=60, n=2, logprobs=1, ignore_eos=True, **sampling)
    message = smg.GenerateRequest(
        request_id="same",
        tokenized=smg.TokenizedInput(input_token_ids=PROMPT),
        sampling_config=smg.SamplingConfig(beam_width=1, num_return_sequences=2, **sampling),
        output_config=smg.OutputConfig(logprobs=1, exclude_input_from_output=True),
        max_tokens=60,
        streaming=streaming,
        ignore_eos=True,
    )
    got = [item async for item in rpc.TrtllmServiceStub(channel).Generate(message)]
    wholes = [item.complete for item in got if item.WhichOneof("response") == "complete"]
    assert [tuple(whole.output_token_ids) for whole in wholes] == [output.token_ids for output in answer.outputs]
    for whole, output in zip(wholes, answer.outputs, strict=True):
        assert [item.logprob for item in whole.logprobs] == pytest.approx(
            [item.chosen.logprob for item in output.logprobs], abs=1e-5
        )
        deltas = [id_ for item in got if item.chunk.sequence_index == output.index for id_ in item.chunk.token_ids]
        assert deltas == (list(whole.output_token_ids) if streaming else [])
    stats = answer.finished.stats
    assert stats is not None and stats.accepted > 0
    assert sum(whole.spec_accepted_tokens for whole in wholes) == stats.accepted
    assert sum(whole.spec_draft_tokens for whole in wholes) == stats.drafted
