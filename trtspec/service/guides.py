"""Guides of requests: one kind each, in its bounds. Whether their text makes sense is told beside the engine."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.errors import InvalidField
from trtspec.guides import MAX_GUIDE_BYTES, Guide, GuideKind
from trtspec.service.checks import check
from trtspec.v1 import inference_pb2 as pb

MAX_CHOICES = 256
_KINDS = {kind.value: kind for kind in GuideKind}


def guide_of(request: pb.GenerateRequest) -> Guide | None:
    """What every output of a request conforms to; None where it asks for nothing."""
    if not request.HasField("guided_decoding"):
        return None
    asked = request.guided_decoding
    name = asked.WhichOneof("guide")
    if name is None:
        raise InvalidField("guided_decoding", "set without a guide", f"one of {', '.join(_KINDS)}")
    found = Guide(_KINDS[name], _text(name, asked))
    size = len(found.text.encode())
    check(size <= MAX_GUIDE_BYTES, found.field, f"{size} bytes", f"at most {MAX_GUIDE_BYTES} bytes")
    return found


def _text(name: str, asked: pb.GuidedDecoding) -> str:
    field = f"guided_decoding.{name}"
    if name == GuideKind.JSON_OBJECT.value:
        check(asked.json_object, field, "false", "true, or no guided_decoding")
        return ""
    if name == GuideKind.CHOICE.value:
        return _choice(field + ".options", asked.choice.options)
    text: str = getattr(asked, name)
    check(bool(text), field, "empty", "a text of at least one character")
    return text


def _choice(field: str, options: Sequence[str]) -> str:
    """A grammar of all options; which one is the start of which other does not matter."""
    check(0 < len(options) <= MAX_CHOICES, field, f"{len(options)} entries", f"1 to {MAX_CHOICES}")
    for index, option in enumerate(options):
        check(bool(option), f"{field}[{index}]", "empty", "a text of at least one character")
    return "root ::= " + " | ".join(f'"{_escaped(option)}"' for option in dict.fromkeys(options))


def _escaped(text: str) -> str:
    """Inside the quotes of a grammar."""
    return "".join(each if each.isascii() and each.isalnum() else f"\\U{ord(each):08x}" for each in text)
