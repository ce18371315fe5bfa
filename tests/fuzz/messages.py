"""Requests that nobody would write: every field of any value, numbers at the ends of their range, deep and long."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from trtspec.v1 import inference_pb2 as pb

_F = FieldDescriptor
_INT32 = (0, 1, -1, 2, 7, 64, 2**15, 2**31 - 1, -(2**31))
_INT64 = (*_INT32, 2**53, 2**63 - 1, -(2**63))
_UINT64 = (0, 1, 2**32 - 1, 2**63, 2**64 - 1)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 5e-324, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "a", "\0", "\n", "the answer", "é" * 200, "\U0001f600", "{{ x }}", "../..", "x" * 2000, "<|endoftext|>")
_LONGEST = 12
_DEEPEST = 5


def _numbers(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    match field.type:
        case _F.TYPE_BOOL:
            return st.booleans()
        case _F.TYPE_DOUBLE | _F.TYPE_FLOAT:
            width = 64 if field.type == _F.TYPE_DOUBLE else 32
            return st.sampled_from(_FLOATS) | st.floats(width=width)
        case _F.TYPE_INT64 | _F.TYPE_SINT64 | _F.TYPE_SFIXED64:
            return st.sampled_from(_INT64) | st.integers(-(2**63), 2**63 - 1)
        case _F.TYPE_UINT64 | _F.TYPE_FIXED64:
            return st.sampled_from(_UINT64)
        case _F.TYPE_UINT32 | _F.TYPE_FIXED32:
            return st.sampled_from((0, 1, 2**31, 2**32 - 1))
        case _:
            return st.sampled_from(_INT32) | st.integers(-300, 300)


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == _F.TYPE_STRING:
        return st.sampled_from(_TEXTS) | st.text(max_size=20)
    if field.type == _F.TYPE_BYTES:
        return st.binary(max_size=20)
    if field.type == _F.TYPE_ENUM:
        return st.sampled_from((0, 1, 2, 3, 4, 99, -1))
    return _numbers(field)


@st.composite
def messages(draw: st.DrawFn, kind: type[Message] = pb.GenerateRequest, depth: int = _DEEPEST) -> Message:
    """A message with some of its fields set."""
    result = kind()
    descriptor: Descriptor = kind.DESCRIPTOR
    for field in draw(st.lists(st.sampled_from(tuple(descriptor.fields)), unique=True, max_size=6)):
        _fill(draw, result, field, depth)
    return result


def _fill(draw: st.DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        _fill_map(draw, message, field, depth)
    elif inner is None and field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(_value(field), max_size=_LONGEST)))
    elif inner is None:
        setattr(message, field.name, draw(_value(field)))
    elif depth and field.is_repeated:
        for _ in range(draw(st.integers(0, 3))):
            made = draw(messages(GetMessageClass(inner), depth - 1))
            getattr(message, field.name).add().CopyFrom(made)
    elif depth:
        getattr(message, field.name).CopyFrom(draw(messages(GetMessageClass(inner), depth - 1)))


def _fill_map(draw: st.DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    entries = getattr(message, field.name)
    for item in draw(st.lists(_value(key), max_size=4)):
        if value.message_type is None:
            entries[item] = draw(_value(value))
        elif depth:
            entries[item].CopyFrom(draw(messages(GetMessageClass(value.message_type), depth - 1)))


def varint(number: int) -> bytes:
    """A number as the wire has it."""
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def nested(depth: int) -> bytes:
    """The bytes of a `google.protobuf.Value` that holds lists in lists; no library would write them so deep."""
    value = b""
    for _ in range(depth):
        values = b"\x0a" + varint(len(value)) + value
        value = b"\x32" + varint(len(values)) + values
    return value
