"""How large `finished` can get, so that every client can read it.

It bounds log-probabilities, which take hundreds of bytes a token; those of chunks are bounded by `assemble`.
"""

from __future__ import annotations

from trtspec.errors import InvalidField
from trtspec.service.requests import ParsedRequest

MOST_BYTES = 3 << 20
"""For log-probabilities; gRPC clients read messages of 4 MiB by default, and the rest of `finished` needs room."""
_POSITION_BYTES = 4
"""Tag and length of a `TokenLogprobs`."""


def check_answer_size(parsed: ParsedRequest, prompt_tokens: int, max_tokens: int, vocabulary: int) -> None:
    """Refuse log-probabilities that make `finished` too large. `max_tokens` is that of one output."""
    entry, left = entry_bytes(vocabulary), MOST_BYTES
    if parsed.prompt_logprobs is not None:
        field, where = "logprobs.prompt_logprobs", f"a prompt of {prompt_tokens} tokens"
        left -= _reserved(field, parsed.prompt_logprobs, prompt_tokens, entry, left, where)
    if parsed.logprobs is not None and parsed.keeps_output:
        where = (
            f"{parsed.n} x {max_tokens} tokens at the end; lower stopping.max_tokens, or let stream_options send them "
            "in chunks only"
        )
        _reserved("logprobs.logprobs", parsed.logprobs, parsed.n * max_tokens, entry, left, where)


def entry_bytes(vocabulary: int) -> int:
    """Most bytes of a `TokenLogprob`: its tag and length, a tagged double, and an id and a rank below `vocabulary`."""
    varint = -(-vocabulary.bit_length() // 7)
    return 2 + 9 + 2 * (1 + varint)


def _reserved(field: str, best: int, positions: int, entry: int, left: int, where: str) -> int:
    most = (left // positions - _POSITION_BYTES) // entry - 1
    if best > most:
        allowed = f"0 to {most}" if most >= 0 else "none"
        raise InvalidField(field, best, f"{allowed} for {where}")
    return positions * (_POSITION_BYTES + entry * (best + 1))
