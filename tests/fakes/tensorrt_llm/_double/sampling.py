"""What a request's sampling settings do in each mode: honoured, or dropped without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tensorrt_llm._double.errors import assertion
from torch import Tensor

from trtspec.types import SamplingParams

_GREEDY = 1e-6
_LARGEST_TOP_K = 1024
_MISSING = ("top_p_min", "top_p_decay", "top_p_reset_ids", "no_repeat_ngram_size", "beam_width_array")
"""Settings that plain engines honour and the double does not have."""
_TEXT = "Embedding bias data type must be same as model logits type."


class Refused(Exception):
    """The request alone ends with an error."""


class Fatal(Exception):
    """The step that the request joins fails, for all that are in it."""


@dataclass(frozen=True)
class Asked:
    """A request's own settings."""

    request: Any
    max_tokens: int
    vocabulary: int
    logits: Callable[[], Tensor]
    """What the network says after the prompt, [V]."""
    typical: bool = False
    """EAGLE's executor-wide switch."""
    held: bool = False
    """Some request has set `min_tokens`: from then on, those that have not are held back for their default of 1."""

    @property
    def config(self) -> Any:
        return self.request.sampling_config

    @property
    def min_tokens(self) -> int:
        given = self.config.min_tokens
        return min(int(self.held) if given is None else given, self.max_tokens)

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        given = self.request.embedding_bias
        if given is None:
            return ()
        if str(given.dtype) != "torch.float32" or tuple(given.shape) != (self.vocabulary,):
            raise Fatal(assertion(_TEXT))
        return tuple((int(i), float(given[i])) for i in given.nonzero().flatten())


def sampling_of(mode: str, asked: Asked) -> SamplingParams:
    """The law of a request's tokens."""
    return _BY_MODE[mode](asked)


def _plain(asked: Asked) -> SamplingParams:
    config, request = asked.config, asked.request
    for name in _MISSING:
        if getattr(config, name):
            raise Refused(assertion(f"the double has no {name}"))
    temperature = 1.0 if config.temperature is None else config.temperature
    # The kernel takes them off after it divided by the temperature, our engine before.
    presence = (config.presence_penalty or 0.0) * temperature
    frequency = (config.frequency_penalty or 0.0) * temperature
    bias = _with_counted(asked, presence, frequency)
    if (not config.top_k and config.top_p is None) or config.top_k == 1 or temperature < _GREEDY:
        temperature = 0.0
    return SamplingParams(
        temperature=temperature,
        top_k=min(config.top_k or 0, _LARGEST_TOP_K),
        top_p=1.0 if config.top_p is None else config.top_p,
        min_p=config.min_p or 0.0,
        repetition_penalty=_repetition(config),
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        bad_words=tuple(tuple(word) for word in request.bad_words or ()),
        min_tokens=asked.min_tokens,
    )


def _repetition(config: Any) -> float:
    return 1.0 if config.repetition_penalty is None else float(config.repetition_penalty)


def _with_counted(asked: Asked, presence: float, frequency: float) -> tuple[tuple[int, float], ...]:
    """The bias, with what is taken off for tokens of the prompt that `prompt_ignore_length` leaves to be counted.

    Our engine counts none of them. Where one token is asked for, a bias does the same: the one that leads, through
    what repetition does to it, to where the kernel ends, which adds the bias first, then penalises repetition, then
    takes off the rest.
    """
    config, bias = asked.config, dict(asked.bias)
    tail = list(asked.request.input_token_ids)[max(config.prompt_ignore_length or 0, 0) :]
    if not tail or not (presence or frequency):
        return asked.bias
    repetition = _repetition(config)
    if asked.max_tokens > 1 and (presence or repetition != 1.0):
        raise Refused(
            assertion("the double counts tokens of the prompt for one token alone, but for frequency_penalty")
        )
    logits = asked.logits()
    for token, count in Counter(tail).items():
        logit = float(logits[token])
        penalised = _penalised(logit + bias.get(token, 0.0), repetition) - presence - frequency * count
        bias[token] = _penalised(penalised, 1.0 / repetition) - logit
    return tuple(sorted(bias.items()))


def _penalised(logit: float, repetition: float) -> float:
    return logit / repetition if logit > 0 else logit * repetition


def _medusa(asked: Asked) -> SamplingParams:
    """Each node's token is drawn from the best of the logits as they are."""
    top_k = min(asked.config.top_k or 1, _LARGEST_TOP_K)
    temperature = 0.0 if top_k == 1 else 1.0
    return SamplingParams(temperature, top_k if temperature else 0, logit_bias=asked.bias, min_tokens=asked.min_tokens)


def _eagle(asked: Asked) -> SamplingParams:
    """Greedy; with the executor's switch, at a temperature, as a threshold of 0 would have it."""
    temperature = 1.0 if asked.config.temperature is None else asked.config.temperature
    return SamplingParams(temperature if asked.typical and temperature >= _GREEDY else 0.0)


def _external(asked: Asked) -> SamplingParams:
    """As in plain engines, but for what is no part of the layer."""
    return replace(_plain(asked), min_p=0.0)


def _lookahead(asked: Asked) -> SamplingParams:
    return SamplingParams(logit_bias=asked.bias, min_tokens=asked.min_tokens)


_BY_MODE = {
    "NONE": _plain,
    "DRAFT_TOKENS_EXTERNAL": _external,
    "MEDUSA": _medusa,
    "EAGLE": _eagle,
    "LOOKAHEAD_DECODING": _lookahead,
}
