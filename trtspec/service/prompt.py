"""A parsed prompt to the token ids that the engine gets, checked against the engine's limits."""

from __future__ import annotations

from trtspec.errors import InvalidField, PromptTooLong
from trtspec.service.checks import check_room
from trtspec.service.model import ServedModel
from trtspec.service.text import ChatPrompt, Tokenizer


def text_of(prompt: str | ChatPrompt, tokenizer: Tokenizer) -> str:
    """The prompt as text. Call it off the event loop: templates are programs."""
    return tokenizer.render(prompt) if isinstance(prompt, ChatPrompt) else prompt


def encode(prompt: str | ChatPrompt, tokenizer: Tokenizer, model: ServedModel) -> tuple[int, ...]:
    """Token ids of a prompt. Slow for long texts: call it off the event loop."""
    return encode_text(text_of(prompt, tokenizer), tokenizer, model, rendered=isinstance(prompt, ChatPrompt))


def encode_text(text: str, tokenizer: Tokenizer, model: ServedModel, *, rendered: bool) -> tuple[int, ...]:
    """Token ids of a text or of a rendered chat."""
    field = "chat" if rendered else "text"
    _check_length(text, tokenizer, model)
    ids = tokenizer.encode_rendered(text) if rendered else tokenizer.encode(text)
    if not ids:
        raise InvalidField(field, "without a token", "at least one token")
    if max(ids) >= model.info.limits.vocabulary_size:
        raise InvalidField(field, f"with token id {max(ids)}", f"ids below {model.info.limits.vocabulary_size}")
    return ids


def room(prompt_tokens: int, max_tokens: int | None, model: ServedModel) -> int:
    """Tokens that the answer may have."""
    context = model.context_tokens
    check_room(prompt_tokens, context)
    return min(max_tokens or context, context - prompt_tokens)


def _check_length(text: str, tokenizer: Tokenizer, model: ServedModel) -> None:
    """Refuse a text that cannot fit however it is cut into tokens, before time is spent on cutting it."""
    longest, context = tokenizer.longest_token, model.context_tokens
    if longest is not None and len(text) > context * longest:
        raise PromptTooLong(
            f"the prompt has {len(text)} characters and the context holds {context} tokens, the answer included, of at "
            f"most {longest} characters each; shorten it",
            prompt_characters=str(len(text)),
            max_context_tokens=str(context),
        )
