"""Every error that crosses a module border.

TrtspecError
├── RequestError            a request that cannot be served; a code names why
│   ├── InvalidField        a field of the request is wrong: names field, value and range
│   ├── PromptTooLong       the prompt leaves no room for a token
│   ├── ModelNotFound       no such model here
│   ├── DuplicateRequest    a live request has this id
│   ├── Unsupported         this engine cannot do what the request asks
│   ├── SpeculationRefused  the request insists on speculation that is off
│   ├── Overloaded          the queue is full; try again
│   ├── Draining            the server is going down; go elsewhere
│   ├── EngineLoading       the engine is not open yet; try again
│   ├── EngineLost          the engine's process died; go elsewhere
│   ├── EngineFault         the engine produced nonsense, such as NaN logits
│   ├── DeadlineExceeded    the time was over before the request was accepted
│   ├── Unauthenticated     the client did not show who it is
│   └── PermissionDenied    the client may not do that
├── ConfigError             a setting is wrong: names the flag or key
├── CheckpointError         a checkpoint cannot be built: names file, tensor and both values
├── EngineFolderError       a folder is no complete engine
├── KernelError             a compiled kernel is not what its launcher expects: names kernel and what was found
└── MissingDependency       an optional package is needed: names the extra
"""

from __future__ import annotations


class TrtspecError(Exception):
    """Base of all errors raised on purpose."""


class RequestError(TrtspecError):
    """A request that ends without its text; `reason` is stable and machine readable."""

    reason = "REQUEST_ERROR"

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.details = details

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.details)


def _rebuild(kind: type[RequestError], message: str, details: dict[str, str]) -> RequestError:
    """Unpickle without the constructor of a subclass, whose arguments differ."""
    error = kind.__new__(kind)
    RequestError.__init__(error, message, **details)
    return error


class InvalidField(RequestError):
    reason = "INVALID_FIELD"

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} is {value}; allowed is {allowed}", field=field, value=str(value), allowed=allowed)


class PromptTooLong(RequestError):
    reason = "PROMPT_TOO_LONG"


class ModelNotFound(RequestError):
    reason = "MODEL_NOT_FOUND"


class DuplicateRequest(RequestError):
    reason = "DUPLICATE_REQUEST_ID"


class Unsupported(RequestError):
    reason = "UNSUPPORTED_FEATURE"


class SpeculationRefused(RequestError):
    reason = "SPECULATION_REFUSED"


class Overloaded(RequestError):
    reason = "OVERLOADED"


class Draining(RequestError):
    reason = "DRAINING"


class EngineLoading(RequestError):
    reason = "ENGINE_LOADING"


class EngineLost(RequestError):
    reason = "ENGINE_LOST"


class EngineFault(RequestError):
    reason = "ENGINE_FAULT"


class DeadlineExceeded(RequestError):
    reason = "DEADLINE_EXCEEDED"


class Unauthenticated(RequestError):
    reason = "UNAUTHENTICATED"


class PermissionDenied(RequestError):
    reason = "PERMISSION_DENIED"


class ConfigError(TrtspecError):
    """A setting is wrong; the message names the flag or key and the way out."""


class CheckpointError(TrtspecError):
    """A checkpoint cannot be built from."""


class EngineFolderError(TrtspecError):
    """A folder is not a complete engine of this version."""


class KernelError(TrtspecError):
    """A kernel cannot be compiled, or not to what launches it."""


class MissingDependency(TrtspecError):
    """An optional package is not installed."""


WRONG_INPUT = (ConfigError, CheckpointError, EngineFolderError, MissingDependency)
"""Errors that another command line would avoid; commands exit with 2 for them, as argparse does."""
