"""Values a caller gives to request protos; one that does not fit its field is refused by name, and nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from trtspec.client.events import RequestFailed
from trtspec.v1 import inference_pb2 as pb

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages such as `{"role": "user", "content": "hi"}`."""

M = TypeVar("M", bound=Message)

_SHOWN_CHARACTERS = 64
_RANGES = {
    FieldDescriptor.TYPE_INT32: f"a whole number of {-(2**31)} to {2**31 - 1}",
    FieldDescriptor.TYPE_UINT64: f"a whole number of 0 to {2**64 - 1}",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_STRING: "a text that UTF-8 can hold",
}


def message(kind: type[M], path: str = "", /, **values: Any) -> M:
    """A message of the values that are not None. `path` is where it stands in the request, with a dot at its end."""
    result = kind()
    for name, value in values.items():
        # Two classes implement descriptors, of which the stubs describe one.
        field: Any = kind.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise refusal(path + name, value, f"only {', '.join(kind.DESCRIPTOR.fields_by_name)}")
        try:
            result.MergeFrom(kind(**{name: _word(field, value)}))
        except (ValueError, TypeError) as error:
            raise refusal(path + name, value, _allowed(field)) from error
    return result


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """A prompt as the fields of a request message."""
    if isinstance(prompt, str):
        return {"text": prompt}
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise refusal("prompt", prompt, "a text, token ids, or chat messages")
    items: list[Any] = list(prompt)
    if not any(isinstance(item, Mapping) for item in items):
        return {"token_ids": message(pb.TokenIds, "token_ids.", ids=items)}
    if odd := [
        item for item in items if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item)
    ]:
        raise refusal("chat.messages", odd[0], "a mapping such as {'role': 'user', 'content': 'hi'}")
    chat = [message(pb.ChatMessage, f"chat.messages[{index}].", **item) for index, item in enumerate(items)]
    return {"chat": pb.Chat(messages=chat)}


def duration(path: str, seconds: float | None) -> Duration | None:
    """Seconds as a proto."""
    if seconds is None:
        return None
    result = Duration()
    try:
        result.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, OverflowError, TypeError) as error:
        raise refusal(path, seconds, "a number of seconds") from error
    return result


def refusal(field: str, value: object, allowed: str) -> RequestFailed:
    """The error of a value that cannot even be sent, in the words that a server would use."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[:_SHOWN_CHARACTERS] + "…"
    text = f"{field} is {shown}; allowed is {allowed}"
    return RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, text, "INVALID_FIELD", field)


def _word(field: FieldDescriptor, value: Any) -> Any:
    """The value as its field takes it: an enum by its word, a single text where there may be several."""
    if field.enum_type is not None and isinstance(value, str):
        return _prefix(field.enum_type) + value.upper()
    if field.is_repeated and isinstance(value, str):
        return [value]
    return value


def _allowed(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        names = [name.removeprefix(_prefix(field.enum_type)).lower() for name in field.enum_type.values_by_name]
        return " or ".join(name for name in names if name != "unspecified")
    kind = _RANGES.get(field.type, "a value of its type")
    return f"a list, each {kind}" if field.is_repeated else kind


def _prefix(kind: EnumDescriptor) -> str:
    """What the names of an enum begin with: that of its first value, without its word."""
    return str(kind.values[0].name).removesuffix("UNSPECIFIED")
