"""Requests on their way to TensorRT-LLM: what is refused before, and what is passed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.fakes import LIMITS
from trtspec.errors import (
    EngineFault,
    EngineLost,
    InvalidField,
    Overloaded,
    PromptTooLong,
    RequestError,
    SpeculationRefused,
    Unsupported,
)
from trtspec.executors.tensorrt_llm import failures, gate
from trtspec.executors.tensorrt_llm.request_arguments import request_arguments, salt
from trtspec.types import EngineInfo, Method, OutputLaw, Request, SamplingParams

ASK = Request("a", (5, 6), 10, max_draft_tokens=8)
SAMPLED = SamplingParams(temperature=0.8)


def info(method: Method = Method.MEDUSA, flow: str = "engine", acceptance: str = "exact") -> EngineInfo:
    limits = LIMITS if method is not Method.NONE else replace(LIMITS, max_draft_tokens=0, max_tree_nodes=0)
    return EngineInfo(
        "m", "0", "{}", "tensorrt_llm", method, "L", "bfloat16", "none", limits, OutputLaw.EXACT, 8, acceptance, flow
    )


def checked(request: Request, engine: EngineInfo) -> None:
    gate.check(request, engine, max_prompt_tokens=100)


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        ({"sampling": SAMPLED}, "temperature"),
        ({"sampling": SamplingParams(repetition_penalty=1.1)}, "repetition_penalty"),
        ({"sampling": SamplingParams(presence_penalty=0.1)}, "presence_penalty"),
        ({"sampling": SamplingParams(frequency_penalty=-0.1)}, "frequency_penalty"),
        ({"sampling": SamplingParams(bad_words=((5,),))}, "bad_words"),
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_what_a_medusa_engine_would_ignore_is_refused(change: dict[str, Any], feature: str) -> None:
    with pytest.raises(Unsupported, match=f"^{feature}: ") as caught:
        checked(replace(ASK, **change), info())
    assert caught.value.details == {"feature": feature}


@pytest.mark.parametrize(("depth", "feature"), [(0, "speculation_off"), (3, "max_draft_tokens")])
def test_an_engine_that_always_drafts_refuses_less(depth: int, feature: str) -> None:
    with pytest.raises(SpeculationRefused, match=f"^{feature}: "):
        checked(replace(ASK, max_draft_tokens=depth), info())
    checked(replace(ASK, max_draft_tokens=depth, max_tokens=1), info())  # nothing to draft for


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sampling": SamplingParams(min_tokens=3)},
        {"sampling": SamplingParams(logit_bias=((5, 1.0),))},
        {"sampling": SamplingParams(top_k=5, top_p=0.5, min_p=0.1)},
        {"stop_ids": frozenset({7}), "priority": 5, "tenant": "t", "seed": 3, "n": 2},
    ],
)
def test_what_it_honours_passes(change: dict[str, Any]) -> None:
    checked(replace(ASK, **change), info())


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
def test_eagle_refuses_truncation_where_it_samples(name: str) -> None:
    engine = info(Method.EAGLE, acceptance="typical")
    checked(replace(ASK, sampling=SAMPLED), engine)
    with pytest.raises(Unsupported, match=name):
        checked(replace(ASK, sampling=replace(SAMPLED, **{name: 2 if name == "top_k" else 0.5})), engine)


def test_the_plain_engine_honours_all_of_sampling_but_not_more_than_the_runtime_takes() -> None:
    engine, ask = info(Method.NONE), replace(ASK, max_draft_tokens=0)
    every = SamplingParams(0.8, 1024, 0.9, 0.1, 1.1, 0.1, 0.1, ((5, 1.0),), ((6,),), 2)
    checked(replace(ask, sampling=every), engine)
    with pytest.raises(InvalidField, match=r"sampling.top_k is 1025; allowed is 0 to 1024"):
        checked(replace(ask, sampling=replace(SAMPLED, top_k=1025)), engine)


def test_lengths_are_checked_because_the_runtime_shortens_without_a_word() -> None:
    with pytest.raises(PromptTooLong, match="101 prompt tokens exceed the 100 of this engine"):
        checked(replace(ASK, prompt=(5,) * 101), info())
    with pytest.raises(PromptTooLong, match="exceed 128 positions"):
        checked(replace(ASK, max_tokens=127), info())


def test_greedy_is_the_best_token_and_nothing_else() -> None:
    made = request_arguments(replace(ASK, seed=2**64 - 1), 1, now=0)
    assert made["sampling_config"] == {"seed": 0, "min_tokens": 0, "top_k": 1}
    assert made["output_config"] == {"exclude_input_from_output": True, "return_perf_metrics": True}
    assert made["streaming"] is True and made["priority"] == 0.5
    assert {"allotted_time_ms", "cache_salt_id", "embedding_bias"} & set(made) == set()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SAMPLED, {"temperature": 0.8, "top_p": 1.0}),
        (replace(SAMPLED, top_k=5), {"temperature": 0.8, "top_p": 1.0, "top_k": 5}),
        (replace(SAMPLED, top_p=0.5, min_p=0.1), {"temperature": 0.8, "top_p": 0.5, "min_p": 0.1}),
        (
            SamplingParams(repetition_penalty=1.2, min_tokens=4),
            {"top_k": 1, "repetition_penalty": 1.2, "min_tokens": 4},
        ),
        (
            SamplingParams(presence_penalty=1.0, frequency_penalty=2.0),
            {"top_k": 1, "presence_penalty": 1.0, "frequency_penalty": 2.0, "prompt_ignore_length": 2},
        ),
        (  # the runtime takes them off after it divided by the temperature
            SamplingParams(0.5, repetition_penalty=1.2, presence_penalty=1.0, frequency_penalty=-2.0),
            {
                **{"temperature": 0.5, "top_p": 1.0, "repetition_penalty": 1.2},
                **{"presence_penalty": 2.0, "frequency_penalty": -4.0, "prompt_ignore_length": 2},
            },
        ),
    ],
)
def test_sampling_names_the_whole_law(sampling: SamplingParams, expected: dict[str, Any]) -> None:
    """With neither top_k nor top_p the runtime takes the best token, whatever the temperature."""
    made = request_arguments(replace(ASK, sampling=sampling, seed=4), 0, now=0)
    assert made["sampling_config"] == {"seed": 4, "min_tokens": 0, **expected}


def test_one_id_ends_the_text_and_the_others_are_stop_words() -> None:
    made = request_arguments(replace(ASK, eos_ids=frozenset({9, 3, 7}), stop_ids=frozenset({7, 1})), 0, now=0)
    assert (made["end_id"], made["pad_id"], made["stop_words"]) == (3, 3, [[1], [7], [9]])
    alone = request_arguments(ASK, 0, now=0)
    assert (alone["end_id"], alone["stop_words"]) == (None, None)


def test_min_tokens_beside_other_ends_is_refused() -> None:
    request = replace(ASK, sampling=SamplingParams(min_tokens=2), eos_ids=frozenset({3}))
    assert request_arguments(request, 0, now=0)["end_id"] == 3
    with pytest.raises(Unsupported, match="min_tokens is 2 and 1 ids beside the end of the text"):
        request_arguments(replace(request, stop_ids=frozenset({5})), 0, now=0)


def test_the_rest_of_a_request() -> None:
    request = replace(ASK, deadline=12.5, tenant="a", priority=-100, sampling=SamplingParams(logit_bias=((5, 2.0),)))
    made = request_arguments(request, 0, now=10.0)
    assert made["allotted_time_ms"] == timedelta(seconds=2.5)
    assert made["priority"] == 0.0 and request_arguments(replace(request, priority=100), 0, 0)["priority"] == 1.0
    assert made["embedding_bias"] == {5: 2.0}
    assert made["cache_salt_id"] == salt("a") != salt("b") and 0 <= salt("a") < 2**63
    assert request_arguments(request, 0, now=20.0)["allotted_time_ms"] > timedelta(0)


TRACE = " (/src/tensorrt_llm/cpp/x.cpp:12)\n1  0x7f0 /usr/lib/libtensorrt_llm.so\n"


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        (
            f"{failures.ADMISSION}Prompt length (9) exceeds maximum input length (8). Set log level{TRACE}",
            PromptTooLong,
            "Prompt length (9) exceeds maximum input length (8). Set log level",
        ),
        (f"{failures.ADMISSION}[TensorRT-LLM][ERROR] Assertion failed: EndId{TRACE}", InvalidField, "EndId"),
        (f"Maximum queue size of 3 has been reached, please try again later{TRACE}", Overloaded, "queue size of 3"),
        (f"Shutdown called, cannot enqueue requests{TRACE}", EngineLost, "closing"),
        (f"{failures.FORWARD[0]}CUDA runtime error{TRACE}", EngineLost, "a step of the engine failed: CUDA runtime"),
        (f"{failures.FORWARD[1]}x{TRACE}", EngineLost, "failed: x"),
        ("something else", EngineFault, "something else"),
        ("", EngineFault, "no text"),
    ],
)
def test_error_texts_are_known_by_their_prefixes(message: str, kind: type[RequestError], text: str) -> None:
    error = failures.request_error(message)
    assert type(error) is kind and text in str(error) and "libtensorrt" not in str(error) and "/src" not in str(error)


def test_a_failed_step_is_told_from_a_refused_request() -> None:
    assert failures.is_forward_failure(f"[x] {failures.FORWARD[0]}boom")
    assert not failures.is_forward_failure(f"{failures.ADMISSION}boom")
