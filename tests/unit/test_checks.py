"""What an engine refuses at submit; the ranges of prompts and drafts are tested with the ends of outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtspec.decoding.checks import check_request
from trtspec.errors import InvalidField
from trtspec.types import Limits, Request, SamplingParams

LIMITS = Limits(
    max_context_tokens=40,
    max_batch_size=4,
    max_draft_tokens=4,
    max_tree_nodes=8,
    max_pass_tokens=64,
    kv_cache_tokens=80,
    vocabulary_size=16,
)
REQUEST = Request("a", (1, 2), 8)

WRONG = {
    "n is 0; allowed is 1..4": replace(REQUEST, n=0),
    "n is 5; allowed is 1..4": replace(REQUEST, n=5),
    "logprobs is -1; allowed is 0..20": replace(REQUEST, logprobs=-1),
    "logprobs is 21; allowed is 0..20": replace(REQUEST, logprobs=21),
    "prompt_logprobs is 21; allowed is 0..20": replace(REQUEST, prompt_logprobs=21),
    "min_tokens is 9; allowed is 0..8": replace(REQUEST, sampling=SamplingParams(min_tokens=9)),
    "min_tokens is -1; allowed is 0..8": replace(REQUEST, sampling=SamplingParams(min_tokens=-1)),
    "logit_bias is 3..16; allowed is 0..15": replace(
        REQUEST, sampling=SamplingParams(logit_bias=((3, 1.0), (16, 1.0)))
    ),
    "bad_words is -1..2; allowed is 0..15": replace(REQUEST, sampling=SamplingParams(bad_words=((1,), (2, -1)))),
    "bad_words is an empty sequence": replace(REQUEST, sampling=SamplingParams(bad_words=((1,), ()))),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_would_break_a_pass_is_refused_by_name(message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        check_request(WRONG[message], LIMITS)


def test_the_ends_of_all_ranges_pass() -> None:
    sampling = SamplingParams(min_tokens=8, logit_bias=((0, 1.0), (15, -1.0)), bad_words=((0,), (15, 0)))
    check_request(Request("a", (0, 15), 8, sampling, max_draft_tokens=4, n=4, logprobs=20, prompt_logprobs=0), LIMITS)
    check_request(REQUEST, LIMITS)
