"""Over the wire to the real engine: sampling fields, log-probabilities and several outputs, drafted or not."""

from __future__ import annotations

import string
from typing import Any

import pytest

from trtspec.client import Client, Completion
from trtspec.types import TokenLogprobs

FLAGS = ("--kv-cache-mib", "8")
PROMPT = tuple(range(200, 220))
"""Its greedy text comes back to what it said, so drafts of many lengths are accepted."""
COMMON: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True, "temperature": 0}


def told(items: tuple[TokenLogprobs, ...]) -> list[float]:
    """All numbers, the chosen token's first."""
    return [token.logprob or 0.0 for item in items for token in (item.chosen, *item.top)]


async def drafted_or_not(client: Client, **options: Any) -> Completion:
    """The answer with speculation off, after a look at that with speculation on."""
    plain = await client.complete(PROMPT, **COMMON | options, speculation="off")
    drafted = await client.complete(PROMPT, **COMMON | options, speculation="on", max_draft_tokens=8)
    assert [output.token_ids for output in drafted.outputs] == [output.token_ids for output in plain.outputs]
    for one, other in zip(plain.outputs, drafted.outputs, strict=True):
        assert told(other.logprobs) == pytest.approx(told(one.logprobs), abs=1e-4)
    return plain


async def test_each_field_changes_the_text_as_it_says_drafted_or_not(client: Client) -> None:
    plain = await drafted_or_not(client)
    often = max(plain.token_ids, key=plain.token_ids.count)
    assert often not in (await drafted_or_not(client, logit_bias={often: -100})).token_ids
    letter = max(sorted(set(plain.text) & set(string.ascii_letters)), key=plain.text.count)
    [id_] = await client.tokenize(letter)
    assert id_ in plain.token_ids and id_ not in (await drafted_or_not(client, bad_words=[letter])).token_ids
    for field in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert (await drafted_or_not(client, **{field: 2})).token_ids != plain.token_ids, field


async def test_nothing_ends_an_output_among_its_first_tokens(client: Client) -> None:
    plain = await client.complete(PROMPT, **COMMON)
    stop = plain.token_ids[3]
    for least in (0, 9):
        answer = await drafted_or_not(client, stop_token_ids=[stop], min_tokens=least)
        assert stop not in answer.token_ids[:least] and len(answer.token_ids) > least
        assert answer.token_ids[:3] == plain.token_ids[:3]


async def test_log_probabilities_of_an_output_are_those_of_the_same_tokens_in_a_prompt(client: Client) -> None:
    answer = await drafted_or_not(client, logprobs=3)
    assert [item.chosen.token_id for item in answer.outputs[0].logprobs] == list(answer.token_ids)
    assert all(item.chosen.rank == 1 and item.chosen == item.top[0] for item in answer.outputs[0].logprobs)
    again = await client.complete([*PROMPT, *answer.token_ids], max_tokens=1, prompt_logprobs=3)
    scored = again.finished.prompt_logprobs
    assert len(scored) == len(PROMPT) + len(answer.token_ids) and scored[0].chosen.logprob is None
    assert told(scored[len(PROMPT) :]) == pytest.approx(told(answer.outputs[0].logprobs), abs=1e-4)


async def test_several_outputs_are_independent_and_the_same_drafted_or_not(client: Client) -> None:
    answer = await drafted_or_not(client, n=3, temperature=1, seed=7, logprobs=1)
    assert len({output.token_ids for output in answer.outputs}) == 3
    assert answer.finished.completion_tokens == sum(len(output.token_ids or ()) for output in answer.outputs) == 150
    alone = await client.complete(PROMPT, **COMMON | {"temperature": 1, "seed": 7})
    assert alone.token_ids == answer.outputs[0].token_ids
