"""The values that travel between the service and an executor.

Frozen, picklable, and free of torch, gRPC and text: an executor sees token ids only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from trtspec.errors import RequestError

GREEDY_TEMPERATURE = 1e-5
"""Temperatures up to this are greedy: dividing logits by less overflows float32 long before it matters."""


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
class SamplingParams:
    """How the target's token is chosen from its logits."""

    temperature: float = 0.0
    top_k: int = 0
    """0 keeps all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


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
    """The request left the queue; nothing comes before this."""

    request_id: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """New tokens of one output; the last one carries `finish`."""

    request_id: str
    output_index: int
    token_ids: tuple[int, ...]
    passes: tuple[PassRecord, ...]
    finish: Finish | None = None

    def merge(self, later: StepOutput) -> StepOutput:
        """Both outputs as one, for a reader that is slower than the engine."""
        return replace(
            self,
            token_ids=self.token_ids + later.token_ids,
            passes=self.passes + later.passes,
            finish=later.finish,
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


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A reading of an engine's state, for health, tests and metrics."""

    passes: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    preemptions: int = 0


class Health(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    FAILED = "failed"
