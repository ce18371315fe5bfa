"""What clients rely on in the protos, and how it differs from the committed golden.

Run as `python -m scripts.proto_compat` it adds to the golden what is new; `tests/test_protos.py` compares with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet

from trtspec.v1 import admin_pb2, inference_pb2, speculation_pb2

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "protos.json"

Surface = Mapping[str, str]
"""What a client may use, by an identity that must stay, with the properties that must stay."""


def current() -> FileDescriptorSet:
    """The descriptors of the generated code."""
    files = FileDescriptorSet()
    for module in (speculation_pb2, inference_pb2, admin_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return files


def read_golden(golden: Path = GOLDEN) -> FileDescriptorSet:
    return json_format.Parse(golden.read_text(), FileDescriptorSet())


def write_golden(files: FileDescriptorSet, golden: Path = GOLDEN) -> None:
    text = json_format.MessageToJson(files, preserving_proto_field_name=True, indent=1, sort_keys=True)
    golden.write_text(text + "\n")


def main(golden: Path = GOLDEN) -> int:
    """Write the golden, unless that would hide a break; returns the exit code."""
    if broken := breaking_changes(surface(read_golden(golden)), surface(current())):
        print(
            "gen-protos: clients break; add instead of changing, and the golden stays:",
            *broken,
            sep="\n  ",
            file=sys.stderr,
        )
        return 1
    write_golden(current(), golden)
    return 0


def surface(files: FileDescriptorSet) -> Surface:
    """Flatten descriptors. Fields and enum values are identified by number, because the wire does so."""
    return dict(item for file in files.file for item in _of_file(file))


def breaking_changes(old: Surface, new: Surface) -> list[str]:
    """What a client built against `old` loses or misreads with `new`; additions are no break."""
    return [
        f"{key}: was {was or 'there'}, is {new.get(key, 'gone')}" for key, was in old.items() if new.get(key) != was
    ]


def _of_file(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for enum in file.enum_type:
        yield from _of_enum(enum, file.package)
    for message in file.message_type:
        yield from _of_message(message, file.package)
    for service in file.service:
        for method in service.method:
            request = ("stream " if method.client_streaming else "") + method.input_type
            response = ("stream " if method.server_streaming else "") + method.output_type
            yield f"rpc {file.package}.{service.name}/{method.name}", f"({request}) returns ({response})"


def _of_message(message: DescriptorProto, scope: str) -> Iterator[tuple[str, str]]:
    name = f"{scope}.{message.name}"
    yield f"message {name}", ""
    for field in message.field:
        kind = f"{field.Type.Name(field.type)} {field.type_name} {field.Label.Name(field.label)}"
        presence = "optional" if field.proto3_optional else ""
        if field.HasField("oneof_index") and not field.proto3_optional:
            presence = f"oneof {message.oneof_decl[field.oneof_index].name}"
        yield f"field {name} = {field.number}", f"{field.name} {kind} {presence}".strip()
    for enum in message.enum_type:
        yield from _of_enum(enum, name)
    for nested in message.nested_type:
        yield from _of_message(nested, name)


def _of_enum(enum: EnumDescriptorProto, scope: str) -> Iterator[tuple[str, str]]:
    name = f"{scope}.{enum.name}"
    yield f"enum {name}", ""
    for value in enum.value:
        yield f"value {name} = {value.number}", value.name


if __name__ == "__main__":
    sys.exit(main())
