"""How the target's token is chosen from its logits: what a request says of it."""

from __future__ import annotations

from dataclasses import dataclass

GREEDY_TEMPERATURE = 1e-5
"""Temperatures up to this are greedy: dividing logits by less overflows float32 long before it matters."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's token is chosen from its logits."""

    temperature: float = 0.0
    top_k: int = 0
    """0 keeps all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive logits, and multiplies negative ones, of tokens in the prompt or the output."""
    presence_penalty: float = 0.0
    """Taken once from the logit of a token in the output."""
    frequency_penalty: float = 0.0
    """Taken from the logit of a token for each time it is in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit), by token."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not be completed in the output; they may begin in the prompt."""
    min_tokens: int = 0
    """No end-of-text and no stop id among this many first tokens of the output."""

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def edits(self) -> bool:
        """Logits change before the choice, by what was generated or by token."""
        return self.edits_any_length or self.min_tokens > 0

    @property
    def edits_any_length(self) -> bool:
        """They do however long the output is."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0) or bool(
            self.logit_bias or self.bad_words
        )
