"""A parsed request in the engine's terms: token ids instead of texts, and all limits of the context applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtspec.errors import InvalidField
from trtspec.service import prompt as prompts
from trtspec.service.answer_size import check_answer_size
from trtspec.service.model import ServedModel
from trtspec.service.requests import ParsedRequest
from trtspec.service.text import Tokenizer
from trtspec.types import Request


def resolve(parsed: ParsedRequest, tokenizer: Tokenizer, model: ServedModel, deadline: float | None) -> Request:
    """The engine's request. Slow where the request `has_text`: call it off the event loop then."""
    prompt, vocabulary = parsed.prompt, model.info.limits.vocabulary_size
    ids = prompt if isinstance(prompt, tuple) else prompts.encode(prompt, tokenizer, model)
    max_tokens = prompts.room(len(ids), parsed.max_tokens, model)
    check_answer_size(parsed, len(ids), max_tokens, vocabulary)
    return Request(
        request_id=parsed.request_id,
        prompt=ids,
        max_tokens=max_tokens,
        sampling=replace(
            parsed.sampling,
            bad_words=spellings(parsed.bad_words, tokenizer, vocabulary),
            min_tokens=min(parsed.sampling.min_tokens, max_tokens),
        ),
        seed=parsed.seed,
        stop_ids=parsed.stop_ids,
        eos_ids=parsed.eos_ids,
        max_draft_tokens=parsed.speculation.max_draft_tokens,
        priority=parsed.priority,
        deadline=deadline,
        tenant=parsed.tenant,
        client=parsed.caller.name,
        n=parsed.n,
        logprobs=parsed.logprobs,
        prompt_logprobs=parsed.prompt_logprobs,
        guide=parsed.guide,
    )


def spellings(words: Sequence[str], tokenizer: Tokenizer, vocabulary: int) -> tuple[tuple[int, ...], ...]:
    """Each word as tokens directly behind other text, and behind a space."""
    found: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        field = f"sampling.bad_words[{index}]"
        for text in (word, " " + word):
            ids = tokenizer.encode_inside(text)
            if not ids:
                raise InvalidField(field, "without a token", "a text of at least one token")
            if max(ids) >= vocabulary:
                raise InvalidField(field, f"with token id {max(ids)}", f"ids below {vocabulary}")
            found[ids] = None
    return tuple(found)
