"""Log-probabilities from the best logits of a position, as many as it tells."""

from __future__ import annotations

from trtspec.executors.tensorrt_llm.loop.top_rows import TopRow
from trtspec.types import TokenLogprob, TokenLogprobs


def token_logprobs(row: TopRow | None, token: int, top: int) -> TokenLogprobs:
    """Those of the model itself, before edits and temperature: of the token, and of the `top` best.

    A token that the row does not tell, which a plain pass can draw, has neither log-probability nor rank.
    """
    if row is None:
        return TokenLogprobs(TokenLogprob(token, None, None))
    values, ids = row.values.tolist(), row.ids.tolist()
    told = [
        TokenLogprob(id_, value - row.normaliser, values.index(value) + 1)
        for id_, value in zip(ids, values, strict=True)
    ]
    own = next((item for item in told if item.token_id == token), TokenLogprob(token, None, None))
    return TokenLogprobs(own, tuple(told[:top]))
