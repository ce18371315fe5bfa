"""The values that travel between the service and an executor.

Frozen, picklable, and free of torch, gRPC and text: an executor sees token ids only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from trtspec.errors import RequestError
from trtspec.guides import Guide
from trtspec.sampling_params import GREEDY_TEMPERATURE as GREEDY_TEMPERATURE
from trtspec.sampling_params import SamplingParams as SamplingParams
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit


class Method(enum.Enum):
    """How tokens are proposed; values are the words of flags, manifests and metrics."""

    NONE = "none"
    NGRAM = "ngram"
    DRAFT_MODEL = "draft_model"
    MEDUSA = "medusa"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MTP = "mtp"
    LOOKAHEAD = "lookahead"
    DFLASH = "dflash"


class OutputLaw(enum.Enum):
    """What is known of the tokens' law compared with plain decoding."""

    EXACT = "exact"
    TYPICAL = "typical"
    UNPROVEN = "unproven"


class FinishReason(enum.Enum):
    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """One admitted request, resolved: no default is left open."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    """Already cut to what the context leaves."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    """64 bits."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids of the request that end an output with STOP."""
    eos_ids: frozenset[int] = frozenset()
    """End-of-text ids of the model; empty under `ignore_eos`."""
    max_draft_tokens: int = 0
    """Deepest draft; 0 is plain decoding."""
    priority: int = 0
    deadline: float | None = None
    """On `time.monotonic()`, which all processes of a Linux machine share."""
    tenant: str = ""
    """Separates prefix caches."""
    client: str = ""
    n: int = 1
    """Independent outputs."""
    logprobs: int | None = None
    """Log-probabilities of each token of the output: its own and this many best; None for none at all."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    guide: Guide | None = None
    """What every output conforms to."""

    @property
    def drafts(self) -> bool:
        """A draft can be of use: it is asked for, and there is more than one token to generate."""
        return self.max_draft_tokens > 0 and self.max_tokens > 1

    @property
    def edits(self) -> bool:
        """Logits change before the choice, by what was generated or by token."""
        return self.sampling.edits or self.guide is not None

    @property
    def end_ids(self) -> frozenset[int]:
        """All ids that end an output."""
        return self.eos_ids | self.stop_ids


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one token under the model, before temperature and truncation."""

    token_id: int
    logprob: float | None
    """None for the first token of a prompt, which nothing predicts, and where an engine tells only of likelier ones."""
    rank: int | None
    """1 for the most likely token."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()
    """Best first."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one target pass did for one output. `decoding.stats` defines the numbers."""

    pass_index: int
    """Index of the pass in the engine's life."""
    nodes_by_depth: tuple[int, ...] = ()
    """Element i: nodes submitted at depth i + 1. Empty without a draft."""
    accepted: int = 0
    emitted: int = 1
    prefill: bool = False
    """The pass ended a prompt: its token is in no speculation statistic."""
    cut: bool = False
    """The pass ended the output."""

    @property
    def drafted(self) -> int:
        return len(self.nodes_by_depth)

    @property
    def verified_nodes(self) -> int:
        return sum(self.nodes_by_depth)

    def cut_to(self, kept: int) -> PassRecord:
        """The record where the output ends after `kept` of the emitted tokens: what comes later counts nowhere."""
        return replace(
            self,
            nodes_by_depth=self.nodes_by_depth[:kept],
            accepted=min(self.accepted, kept),
            emitted=kept,
            cut=True,
        )


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    stop_id: int | None = None
    """The token id that ended the output, for EOS and STOP."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the queue; nothing comes before this. Sent once, whatever n."""

    request_id: str
    cached_tokens: int | None = None
    """Tokens of the prompt found in the prefix cache; None where the executor does not tell."""
    max_draft_tokens: int | None = None
    """Deepest draft from now on, where that is less than the request asks for."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """New tokens of one output; the last one carries `finish`. A request ends when all of its outputs did."""

    request_id: str
    output_index: int
    token_ids: tuple[int, ...]
    passes: tuple[PassRecord, ...]
    finish: Finish | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token id, where asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token of the prompt, once, with the first token of output 0, where asked for."""

    def merge(self, later: StepOutput) -> StepOutput:
        """Both outputs as one, for a reader that is slower than the engine."""
        return replace(
            self,
            token_ids=self.token_ids + later.token_ids,
            passes=self.passes + later.passes,
            finish=later.finish,
            logprobs=self.logprobs + later.logprobs,
            prompt_logprobs=self.prompt_logprobs + later.prompt_logprobs,
        )


RequestEvent = Started | StepOutput


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ends with an error; no event of it follows."""

    request_id: str
    error: RequestError


EngineEvent = Started | StepOutput | Failed
"""What an engine publishes after a pass; executors turn `Failed` into a raised error."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an opened engine can hold; requests beyond are refused before they are queued."""

    max_context_tokens: int
    max_batch_size: int
    max_draft_tokens: int
    max_tree_nodes: int
    max_pass_tokens: int
    kv_cache_tokens: int
    vocabulary_size: int
    """Ids below this are valid and are all that is ever emitted; weights may be padded beyond."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an executor serves."""

    model: str
    engine_id: str
    engine_facts: str
    """Canonical JSON behind `engine_id`."""
    backend: str
    method: Method
    architecture: str
    dtype: str
    quantization: str
    limits: Limits
    output_law: OutputLaw
    default_draft_tokens: int
    """Depth where a request names none; 0 where speculation is off by default."""
    acceptance: str = "exact"
    """The rule by which drafts are accepted."""
    flow: str = "embedded"
    """What runs the passes, as the table of capabilities names it."""
    derived_statistics: bool = False
    """Pass records are worked out from what the engine answers, and not counted where drafts are verified."""
    unverified_target: bool = False
    """A drafter was loaded although nothing shows that it was made for this target."""
    lacks: tuple[tuple[str, str], ...] = ()
    """Features that the table of capabilities honours and this engine does not have here, each with the reason."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A reading of an engine's state, for health, tests and metrics."""

    passes: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    preemptions: int = 0
    limit: SpeculationLimit = NO_LIMIT
    """What bounds the drafts of its passes."""


class Health(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    FAILED = "failed"
