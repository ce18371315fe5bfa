"""Errors to gRPC statuses, by one table, with details a program can read."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from trtspec import errors
from trtspec.service.checks import shortened

DOMAIN = "trtspec"
_INTERNAL = "INTERNAL"
RETRY_SECONDS = 1
"""Advised pause after a full queue: a few passes, so that a slot can have become free."""
_MOST_MESSAGE_BYTES = 1024
_MOST_DETAIL_BYTES = 256
"""A message is sent three times, once escaped at three bytes for one; together they stay below 8 KiB of trailers."""
CODES: Mapping[type[errors.RequestError], grpc.StatusCode] = {
    errors.InvalidField: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PromptTooLong: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: grpc.StatusCode.NOT_FOUND,
    errors.DuplicateRequest: grpc.StatusCode.ALREADY_EXISTS,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.SpeculationRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Draining: grpc.StatusCode.UNAVAILABLE,
    errors.EngineLoading: grpc.StatusCode.UNAVAILABLE,
    errors.EngineLost: grpc.StatusCode.UNAVAILABLE,
    errors.EngineFault: grpc.StatusCode.INTERNAL,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
}

_log = logging.getLogger(__name__)


def to_status(error: Exception) -> grpc.Status:
    """The status of a failed request. An unknown error is logged under an id, and only the id is told."""
    code = CODES.get(type(error)) if isinstance(error, errors.RequestError) else None
    if code is None or not isinstance(error, errors.RequestError):
        incident = uuid.uuid4().hex[:12]
        _log.error("internal error %s", incident, exc_info=error)
        message = f"internal error {incident}; the server's log has it"
        return _status(grpc.StatusCode.INTERNAL, message, [_info(_INTERNAL, {"incident": incident})])
    message = shortened(str(error), _MOST_MESSAGE_BYTES)
    details: list[Message] = [_info(error.reason, error.details)]
    if "field" in error.details:
        field = shortened(error.details["field"], _MOST_DETAIL_BYTES)
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.Overloaded):
        details.append(error_details_pb2.RetryInfo(retry_delay=Duration(seconds=RETRY_SECONDS)))
    return _status(code, message, details)


def reason(error: Exception) -> str:
    """The stable name of an error."""
    return error.reason if isinstance(error, errors.RequestError) and type(error) in CODES else _INTERNAL


def _info(reason: str, details: Mapping[str, str]) -> error_details_pb2.ErrorInfo:
    metadata = {key: shortened(value, _MOST_DETAIL_BYTES) for key, value in details.items()}
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)


def _status(code: grpc.StatusCode, message: str, details: list[Message]) -> grpc.Status:
    packed = []
    for detail in details:
        item = AnyMessage()
        item.Pack(detail)
        packed.append(item)
    return rpc_status.to_status(status_pb2.Status(code=code.value[0], message=message, details=packed))
