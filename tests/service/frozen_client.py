"""A client that begins a request, says so and reads no more: `python -m tests.service.frozen_client ADDRESS [N]`.

It reads N messages before that. What happens to its process then is the test's matter.
"""

from __future__ import annotations

import sys
import threading

import grpc

from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc


def main(address: str, messages: int) -> None:
    with grpc.insecure_channel(address) as channel:
        call = rpc.InferenceStub(channel).Generate(pb.GenerateRequest(text="hi"))
        for _ in range(messages):
            next(call)
        print("READING", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
