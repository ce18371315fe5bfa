from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpeculationMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_METHOD_UNSPECIFIED: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_NONE: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_NGRAM: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_DRAFT_MODEL: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_MEDUSA: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_EAGLE: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_EAGLE3: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_MTP: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_LOOKAHEAD: _ClassVar[SpeculationMethod]
    SPECULATION_METHOD_DFLASH: _ClassVar[SpeculationMethod]

class SpeculationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_MODE_UNSPECIFIED: _ClassVar[SpeculationMode]
    SPECULATION_MODE_DEFAULT: _ClassVar[SpeculationMode]
    SPECULATION_MODE_OFF: _ClassVar[SpeculationMode]
    SPECULATION_MODE_ON: _ClassVar[SpeculationMode]

class StatsLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATS_LEVEL_UNSPECIFIED: _ClassVar[StatsLevel]
    STATS_LEVEL_NONE: _ClassVar[StatsLevel]
    STATS_LEVEL_SUMMARY: _ClassVar[StatsLevel]
    STATS_LEVEL_DETAILED: _ClassVar[StatsLevel]

class OutputLaw(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_LAW_UNSPECIFIED: _ClassVar[OutputLaw]
    OUTPUT_LAW_EXACT: _ClassVar[OutputLaw]
    OUTPUT_LAW_TYPICAL: _ClassVar[OutputLaw]
    OUTPUT_LAW_UNPROVEN: _ClassVar[OutputLaw]

class StatsSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATS_SOURCE_UNSPECIFIED: _ClassVar[StatsSource]
    STATS_SOURCE_MEASURED: _ClassVar[StatsSource]
    STATS_SOURCE_DERIVED: _ClassVar[StatsSource]
SPECULATION_METHOD_UNSPECIFIED: SpeculationMethod
SPECULATION_METHOD_NONE: SpeculationMethod
SPECULATION_METHOD_NGRAM: SpeculationMethod
SPECULATION_METHOD_DRAFT_MODEL: SpeculationMethod
SPECULATION_METHOD_MEDUSA: SpeculationMethod
SPECULATION_METHOD_EAGLE: SpeculationMethod
SPECULATION_METHOD_EAGLE3: SpeculationMethod
SPECULATION_METHOD_MTP: SpeculationMethod
SPECULATION_METHOD_LOOKAHEAD: SpeculationMethod
SPECULATION_METHOD_DFLASH: SpeculationMethod
SPECULATION_MODE_UNSPECIFIED: SpeculationMode
SPECULATION_MODE_DEFAULT: SpeculationMode
SPECULATION_MODE_OFF: SpeculationMode
SPECULATION_MODE_ON: SpeculationMode
STATS_LEVEL_UNSPECIFIED: StatsLevel
STATS_LEVEL_NONE: StatsLevel
STATS_LEVEL_SUMMARY: StatsLevel
STATS_LEVEL_DETAILED: StatsLevel
OUTPUT_LAW_UNSPECIFIED: OutputLaw
OUTPUT_LAW_EXACT: OutputLaw
OUTPUT_LAW_TYPICAL: OutputLaw
OUTPUT_LAW_UNPROVEN: OutputLaw
STATS_SOURCE_UNSPECIFIED: StatsSource
STATS_SOURCE_MEASURED: StatsSource
STATS_SOURCE_DERIVED: StatsSource

class SpeculationOptions(_message.Message):
    __slots__ = ("mode", "max_draft_tokens", "stats_level")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATS_LEVEL_FIELD_NUMBER: _ClassVar[int]
    mode: SpeculationMode
    max_draft_tokens: int
    stats_level: StatsLevel
    def __init__(self, mode: _Optional[_Union[SpeculationMode, str]] = ..., max_draft_tokens: _Optional[int] = ..., stats_level: _Optional[_Union[StatsLevel, str]] = ...) -> None: ...

class AppliedSpeculation(_message.Message):
    __slots__ = ("method", "max_draft_tokens", "reason", "unverified_target")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_TARGET_FIELD_NUMBER: _ClassVar[int]
    method: SpeculationMethod
    max_draft_tokens: int
    reason: str
    unverified_target: bool
    def __init__(self, method: _Optional[_Union[SpeculationMethod, str]] = ..., max_draft_tokens: _Optional[int] = ..., reason: _Optional[str] = ..., unverified_target: _Optional[bool] = ...) -> None: ...

class DecodePass(_message.Message):
    __slots__ = ("pass_index", "drafted_count", "accepted_count", "verified_node_count", "emitted_count", "cut", "prefill", "output_index")
    PASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EMITTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    pass_index: int
    drafted_count: int
    accepted_count: int
    verified_node_count: int
    emitted_count: int
    cut: bool
    prefill: bool
    output_index: int
    def __init__(self, pass_index: _Optional[int] = ..., drafted_count: _Optional[int] = ..., accepted_count: _Optional[int] = ..., verified_node_count: _Optional[int] = ..., emitted_count: _Optional[int] = ..., cut: _Optional[bool] = ..., prefill: _Optional[bool] = ..., output_index: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("method", "source", "decode_passes", "spec_steps", "drafted_count", "accepted_count", "verified_node_count", "emitted_count", "rejected_steps", "accepted_length_histogram", "drafted_per_position", "accepted_per_position", "acceptance_rate", "node_yield", "mean_acceptance_length", "tokens_per_pass", "rejection_frequency", "passes", "passes_truncated")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DECODE_PASSES_FIELD_NUMBER: _ClassVar[int]
    SPEC_STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EMITTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LENGTH_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    NODE_YIELD_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_PASS_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FREQUENCY_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    PASSES_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    method: SpeculationMethod
    source: StatsSource
    decode_passes: int
    spec_steps: int
    drafted_count: int
    accepted_count: int
    verified_node_count: int
    emitted_count: int
    rejected_steps: int
    accepted_length_histogram: _containers.RepeatedScalarFieldContainer[int]
    drafted_per_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    acceptance_rate: float
    node_yield: float
    mean_acceptance_length: float
    tokens_per_pass: float
    rejection_frequency: float
    passes: _containers.RepeatedCompositeFieldContainer[DecodePass]
    passes_truncated: bool
    def __init__(self, method: _Optional[_Union[SpeculationMethod, str]] = ..., source: _Optional[_Union[StatsSource, str]] = ..., decode_passes: _Optional[int] = ..., spec_steps: _Optional[int] = ..., drafted_count: _Optional[int] = ..., accepted_count: _Optional[int] = ..., verified_node_count: _Optional[int] = ..., emitted_count: _Optional[int] = ..., rejected_steps: _Optional[int] = ..., accepted_length_histogram: _Optional[_Iterable[int]] = ..., drafted_per_position: _Optional[_Iterable[int]] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., acceptance_rate: _Optional[float] = ..., node_yield: _Optional[float] = ..., mean_acceptance_length: _Optional[float] = ..., tokens_per_pass: _Optional[float] = ..., rejection_frequency: _Optional[float] = ..., passes: _Optional[_Iterable[_Union[DecodePass, _Mapping]]] = ..., passes_truncated: _Optional[bool] = ...) -> None: ...
