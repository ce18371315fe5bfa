"""A parsed prompt to the token ids that the engine gets, checked against the engine's limits."""

from __future__ import annotations

from trtspec.errors import InvalidField, PromptTooLong
from trtspec.service.model import ServedModel
from trtspec.service.requests import Prompt
from trtspec.service.text import ChatPrompt, Tokenizer


def encode(prompt: Prompt, tokenizer: Tokenizer, model: ServedModel) -> tuple[int, ...]:
    """Token ids of a prompt. Slow for long texts: call it off the event loop."""
    if isinstance(prompt, tuple):
        return prompt
    field = "chat" if isinstance(prompt, ChatPrompt) else "text"
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.encode_rendered(tokenizer.render(prompt))
    if not ids:
        raise InvalidField(field, "without a token", "at least one token")
    if max(ids) >= model.info.limits.vocabulary_size:
        raise InvalidField(field, f"with token id {max(ids)}", f"ids below {model.info.limits.vocabulary_size}")
    return ids


def room(prompt_tokens: int, max_tokens: int | None, model: ServedModel) -> int:
    """Tokens that the answer may have."""
    context = model.context_tokens
    if prompt_tokens >= context:
        raise PromptTooLong(
            f"the prompt has {prompt_tokens} tokens and the context holds {context}, the answer included; "
            f"shorten it to at most {context - 1}",
            prompt_tokens=str(prompt_tokens),
            max_context_tokens=str(context),
        )
    return min(max_tokens or context, context - prompt_tokens)
