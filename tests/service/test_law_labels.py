"""An engine whose output follows another law says so in every answer, in its description and at start."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tests.fakes import EOS, FakeExecutor, script_of, serving
from trtspec.cli.main import main
from trtspec.cli.serve import announce
from trtspec.generation import GenerationDefaults
from trtspec.service.model import ServedModel
from trtspec.speculative import TYPICAL
from trtspec.types import EngineInfo, Method, OutputLaw, SamplingParams
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec


class TypicalExecutor(FakeExecutor):
    """As an engine with Medusa's typical acceptance describes itself."""

    def info(self) -> EngineInfo:
        return replace(super().info(), method=Method.MEDUSA, output_law=OutputLaw.TYPICAL, acceptance=TYPICAL)


async def test_answers_and_model_info_tell_the_law() -> None:
    async with serving(TypicalExecutor(script_of("abcd", 3))) as server:
        stub = rpc.InferenceStub(server.channel)
        got = [response async for response in stub.Generate(pb.GenerateRequest(text="tell me"))]
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert got[0].accepted.output_law == spec.OUTPUT_LAW_TYPICAL
    assert info.output_law == spec.OUTPUT_LAW_TYPICAL
    speculation = next(item for item in info.capabilities if item.feature == "speculation_on")
    assert speculation.support == pb.SUPPORT_NOT_LOSSLESS and "another law" in speculation.reason


async def test_a_feature_that_is_not_lossless_is_not_refused() -> None:
    options = spec.SpeculationOptions(mode=spec.SPECULATION_MODE_ON)
    asked = pb.GenerateRequest(text="tell me", sampling=pb.SamplingOptions(seed=3), speculation=options)
    async with serving(TypicalExecutor(script_of("abcd", 3))) as server:
        got = [response async for response in rpc.InferenceStub(server.channel).Generate(asked)]
    assert got[-1].finished.usage.completion_token_count == 4


class UnverifiedExecutor(FakeExecutor):
    """As an engine whose drafter names no target."""

    def info(self) -> EngineInfo:
        return replace(super().info(), method=Method.EAGLE, unverified_target=True)


@pytest.mark.parametrize(
    ("executor", "law", "words"),
    [
        (TypicalExecutor, "typical", "output law typical: sampled text is not that of the model alone"),
        (UnverifiedExecutor, "exact", "drafter not verified: nothing shows that it was made for this model"),
        (FakeExecutor, "exact", ""),
    ],
)
async def test_who_asks_is_told(
    executor: type[FakeExecutor], law: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(executor(script_of("abcd", 3))) as server:
        assert await asyncio.to_thread(main, ["generate", "--server", server.address, "hello"]) == 0
        told = capsys.readouterr()
        assert await asyncio.to_thread(main, ["generate", "--server", server.address, "--json", "hello"]) == 0
    assert told.out == "abcd\n" and words in told.err
    assert ("output law" in told.err or "not verified" in told.err) is bool(words)
    assert json.loads(capsys.readouterr().out.splitlines()[0])["output_law"] == law


@pytest.mark.parametrize(("executor", "warns"), [(TypicalExecutor, True), (FakeExecutor, False)])
async def test_a_server_says_it_in_one_line_when_it_starts(
    executor: type[FakeExecutor], warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = GenerationDefaults(frozenset({EOS}), SamplingParams(), "test")
    announce("127.0.0.1:1", ServedModel(executor().info(), defaults))
    told = capsys.readouterr()
    assert told.out.startswith("SERVING 127.0.0.1:1 ") and told.out.count("\n") == 1
    assert told.err.count("\n") == warns and ("output law typical" in told.err) is warns
