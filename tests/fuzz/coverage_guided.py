"""Coverage-guided fuzzing of request bytes, for those who have time: `pip install atheris`, then
`python -m tests.fuzz.coverage_guided [libFuzzer's flags, such as -max_total_time=600]`."""

from __future__ import annotations

import sys

import atheris  # no dependency of ours: it has wheels for some Pythons only

with atheris.instrument_imports(include=["trtspec.service"]):
    from google.protobuf.message import DecodeError

    from tests.fuzz.test_requests import check
    from trtspec.v1 import inference_pb2 as pb


def one(data: bytes) -> None:
    """A message, if it is one."""
    try:
        request = pb.GenerateRequest.FromString(data)
    except DecodeError:
        return
    check(request)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
