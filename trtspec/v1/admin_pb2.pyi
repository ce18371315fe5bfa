import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from trtspec.v1 import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServingState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVING_STATE_UNSPECIFIED: _ClassVar[ServingState]
    SERVING_STATE_SERVING: _ClassVar[ServingState]
    SERVING_STATE_RESTARTING: _ClassVar[ServingState]
    SERVING_STATE_DRAINING: _ClassVar[ServingState]
    SERVING_STATE_FAILED: _ClassVar[ServingState]
    SERVING_STATE_STARTING: _ClassVar[ServingState]

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_QUEUED: _ClassVar[RequestState]
    REQUEST_STATE_RUNNING: _ClassVar[RequestState]
SERVING_STATE_UNSPECIFIED: ServingState
SERVING_STATE_SERVING: ServingState
SERVING_STATE_RESTARTING: ServingState
SERVING_STATE_DRAINING: ServingState
SERVING_STATE_FAILED: ServingState
SERVING_STATE_STARTING: ServingState
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_QUEUED: RequestState
REQUEST_STATE_RUNNING: RequestState

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineState(_message.Message):
    __slots__ = ("passes", "running_count", "waiting_count", "free_block_count", "total_block_count", "preemption_count")
    PASSES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    passes: int
    running_count: int
    waiting_count: int
    free_block_count: int
    total_block_count: int
    preemption_count: int
    def __init__(self, passes: _Optional[int] = ..., running_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., free_block_count: _Optional[int] = ..., total_block_count: _Optional[int] = ..., preemption_count: _Optional[int] = ...) -> None: ...

class RequestCounts(_message.Message):
    __slots__ = ("finished_count", "cancelled_count", "failed_count", "closed_count")
    FINISHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    finished_count: int
    cancelled_count: int
    failed_count: int
    closed_count: int
    def __init__(self, finished_count: _Optional[int] = ..., cancelled_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., closed_count: _Optional[int] = ...) -> None: ...

class SpeculationSetting(_message.Message):
    __slots__ = ("max_draft_tokens", "engine_max_draft_tokens", "default_draft_tokens")
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_draft_tokens: int
    engine_max_draft_tokens: int
    default_draft_tokens: int
    def __init__(self, max_draft_tokens: _Optional[int] = ..., engine_max_draft_tokens: _Optional[int] = ..., default_draft_tokens: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("state", "uptime", "server_version", "engine_id", "model", "frontend_count", "engine", "live_request_count", "requests", "speculation", "setting")
    STATE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LIVE_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    SETTING_FIELD_NUMBER: _ClassVar[int]
    state: ServingState
    uptime: _duration_pb2.Duration
    server_version: str
    engine_id: str
    model: str
    frontend_count: int
    engine: EngineState
    live_request_count: int
    requests: RequestCounts
    speculation: _speculation_pb2.SpeculationStats
    setting: SpeculationSetting
    def __init__(self, state: _Optional[_Union[ServingState, str]] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., server_version: _Optional[str] = ..., engine_id: _Optional[str] = ..., model: _Optional[str] = ..., frontend_count: _Optional[int] = ..., engine: _Optional[_Union[EngineState, _Mapping]] = ..., live_request_count: _Optional[int] = ..., requests: _Optional[_Union[RequestCounts, _Mapping]] = ..., speculation: _Optional[_Union[_speculation_pb2.SpeculationStats, _Mapping]] = ..., setting: _Optional[_Union[SpeculationSetting, _Mapping]] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("request_id", "client", "tenant", "priority", "state", "create_time", "age", "prompt_token_count", "max_tokens", "output_token_counts", "asked_draft_tokens", "max_draft_tokens", "speculation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ASKED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    client: str
    tenant: str
    priority: int
    state: RequestState
    create_time: _timestamp_pb2.Timestamp
    age: _duration_pb2.Duration
    prompt_token_count: int
    max_tokens: int
    output_token_counts: _containers.RepeatedScalarFieldContainer[int]
    asked_draft_tokens: int
    max_draft_tokens: int
    speculation: _speculation_pb2.SpeculationStats
    def __init__(self, request_id: _Optional[str] = ..., client: _Optional[str] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., state: _Optional[_Union[RequestState, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prompt_token_count: _Optional[int] = ..., max_tokens: _Optional[int] = ..., output_token_counts: _Optional[_Iterable[int]] = ..., asked_draft_tokens: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., speculation: _Optional[_Union[_speculation_pb2.SpeculationStats, _Mapping]] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "next_page_token")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    next_page_token: str
    def __init__(self, requests: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelRequestResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetSpeculationRequest(_message.Message):
    __slots__ = ("max_draft_tokens", "off", "restore")
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    max_draft_tokens: int
    off: bool
    restore: bool
    def __init__(self, max_draft_tokens: _Optional[int] = ..., off: _Optional[bool] = ..., restore: _Optional[bool] = ...) -> None: ...

class SetSpeculationResponse(_message.Message):
    __slots__ = ("setting",)
    SETTING_FIELD_NUMBER: _ClassVar[int]
    setting: SpeculationSetting
    def __init__(self, setting: _Optional[_Union[SpeculationSetting, _Mapping]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("live_request_count",)
    LIVE_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    live_request_count: int
    def __init__(self, live_request_count: _Optional[int] = ...) -> None: ...
