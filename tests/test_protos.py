"""The wire interface: nothing that a client uses may go away, and everything says what it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from scripts.proto_compat import breaking_changes, current, main, read_golden, surface, write_golden

PROTOS = Path(__file__).parent.parent / "protos"

# Numbers of descriptor fields, of which the paths of source locations are made.
NESTED_IN_FILE = {4: "message_type", 5: "enum_type", 6: "service"}
NESTED_IN = {
    DescriptorProto: {2: "field", 3: "nested_type", 4: "enum_type"},
    EnumDescriptorProto: {2: "value"},
}
METHOD_OF_SERVICE = {2: "method"}


def message(files: FileDescriptorSet, name: str) -> DescriptorProto:
    return next(item for file in files.file for item in file.message_type if item.name == name)


def field(files: FileDescriptorSet, owner: str, name: str) -> FieldDescriptorProto:
    return next(item for item in message(files, owner).field if item.name == name)


def test_nothing_in_the_golden_is_broken() -> None:
    broken = breaking_changes(surface(read_golden()), surface(current()))
    assert not broken, "clients break; add instead of changing:\n" + "\n".join(broken)


def test_the_golden_knows_every_addition() -> None:
    added = sorted(set(surface(current())) - set(surface(read_golden())))
    assert not added, "run ./scripts/gen-protos --golden and commit it; new are:\n" + "\n".join(added)


def inference(files: FileDescriptorSet) -> ServiceDescriptorProto:
    return next(item for file in files.file for item in file.service if item.name == "Inference")


def drop_field(files: FileDescriptorSet) -> None:
    fields = message(files, "Chunk").field
    del fields[next(i for i, item in enumerate(fields) if item.name == "text")]


def renumber_field(files: FileDescriptorSet) -> None:
    field(files, "Chunk", "text").number = 99


def rename_field(files: FileDescriptorSet) -> None:
    field(files, "Chunk", "text").name = "delta"


def retype_field(files: FileDescriptorSet) -> None:
    field(files, "Chunk", "text").type = FieldDescriptorProto.TYPE_BYTES


def retype_message_field(files: FileDescriptorSet) -> None:
    field(files, "Finished", "usage").type_name = ".trtspec.v1.Timings"


def relabel_field(files: FileDescriptorSet) -> None:
    field(files, "Chunk", "token_ids").label = FieldDescriptorProto.LABEL_OPTIONAL


def drop_presence(files: FileDescriptorSet) -> None:
    target = field(files, "SamplingOptions", "temperature")
    target.proto3_optional = False
    target.ClearField("oneof_index")


def leave_oneof(files: FileDescriptorSet) -> None:
    field(files, "GenerateResponse", "chunk").ClearField("oneof_index")


def drop_message(files: FileDescriptorSet) -> None:
    file = next(item for item in files.file if item.name.endswith("inference.proto"))
    file.message_type.remove(message(files, "Choices"))


def drop_enum_value(files: FileDescriptorSet) -> None:
    file = next(item for item in files.file if item.name.endswith("speculation.proto"))
    del next(item for item in file.enum_type if item.name == "OutputLaw").value[1]


def rename_enum_value(files: FileDescriptorSet) -> None:
    file = next(item for item in files.file if item.name.endswith("speculation.proto"))
    next(item for item in file.enum_type if item.name == "OutputLaw").value[1].name = "OUTPUT_LAW_SAME"


def drop_rpc(files: FileDescriptorSet) -> None:
    del inference(files).method[1]


def unstream_rpc(files: FileDescriptorSet) -> None:
    inference(files).method[0].server_streaming = False


def retype_rpc(files: FileDescriptorSet) -> None:
    inference(files).method[0].output_type = ".trtspec.v1.Chunk"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop_field, "field trtspec.v1.Chunk = 3"),
        (renumber_field, "field trtspec.v1.Chunk = 3"),
        (rename_field, "field trtspec.v1.Chunk = 3"),
        (retype_field, "field trtspec.v1.Chunk = 3"),
        (retype_message_field, "field trtspec.v1.Finished = 2"),
        (relabel_field, "field trtspec.v1.Chunk = 2"),
        (drop_presence, "field trtspec.v1.SamplingOptions = 1"),
        (leave_oneof, "field trtspec.v1.GenerateResponse = 2"),
        (drop_message, "message trtspec.v1.Choices"),
        (drop_enum_value, "value trtspec.v1.OutputLaw = 1"),
        (rename_enum_value, "value trtspec.v1.OutputLaw = 1"),
        (drop_rpc, "rpc trtspec.v1.Inference/GetModelInfo"),
        (unstream_rpc, "rpc trtspec.v1.Inference/Generate"),
        (retype_rpc, "rpc trtspec.v1.Inference/Generate"),
    ],
)
def test_a_planted_break_is_found(change: Callable[[FileDescriptorSet], None], named: str) -> None:
    changed = current()
    change(changed)
    broken = breaking_changes(surface(current()), surface(changed))
    assert any(line.startswith(named + ":") for line in broken), broken


def test_an_addition_is_no_break() -> None:
    extended = current()
    message(extended, "Chunk").field.add(
        name="extra", number=99, type=FieldDescriptorProto.TYPE_INT32, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    assert breaking_changes(surface(current()), surface(extended)) == []


def test_a_golden_takes_additions(tmp_path: Path) -> None:
    older = current()
    drop_rpc(older)
    write_golden(older, tmp_path / "golden.json")
    assert main(tmp_path / "golden.json") == 0
    assert surface(read_golden(tmp_path / "golden.json")) == surface(current())


def test_a_golden_does_not_take_a_break(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = tmp_path / "golden.json"
    other = current()
    retype_field(other)
    write_golden(other, golden)
    before = golden.read_bytes()
    assert main(golden) == 1
    assert "field trtspec.v1.Chunk = 3: was text TYPE_BYTES" in capsys.readouterr().err
    assert golden.read_bytes() == before


def uncommented(file: FileDescriptorProto) -> list[str]:
    """Components without a comment.

    The zero value of an enum needs none, it always means that nothing was set; the entry type of a map is generated.
    """
    commented = {
        tuple(item.path)
        for item in file.source_code_info.location
        if item.leading_comments.strip() or item.trailing_comments.strip()
    }
    missing: list[str] = []

    def visit(item: Any, scope: str, path: tuple[int, ...]) -> None:
        name = f"{scope}.{item.name}"
        if path not in commented and not name.endswith("_UNSPECIFIED"):
            missing.append(name)
        nested = NESTED_IN.get(type(item), METHOD_OF_SERVICE if path[0] == 6 and len(path) == 2 else {})
        for number, attribute in nested.items():
            for index, child in enumerate(getattr(item, attribute)):
                if not (isinstance(child, DescriptorProto) and child.options.map_entry):
                    visit(child, name, (*path, number, index))

    for number, attribute in NESTED_IN_FILE.items():
        for index, child in enumerate(getattr(file, attribute)):
            visit(child, file.package, (number, index))
    return missing


def compile_with_comments(directory: Path, output: Path) -> FileDescriptorSet:
    sources = sorted(str(path) for path in directory.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(directory), "--include_source_info"]
    subprocess.run([*command, f"--descriptor_set_out={output}", *sources], check=True)
    return FileDescriptorSet.FromString(output.read_bytes())


def test_every_component_has_a_comment(tmp_path: Path) -> None:
    files = compile_with_comments(PROTOS, tmp_path / "descriptors.bin")
    assert len(files.file) == 3
    assert [name for file in files.file for name in uncommented(file)] == []


def test_a_missing_comment_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.proto").write_text(
        'syntax = "proto3";\npackage a;\n'
        "// Said.\nmessage Said {\n  // Said.\n  int32 said = 1;\n  int32 silent = 2;\n}\n"
        "message Silent {}\n"
        "// Said.\nenum E {\n  E_UNSPECIFIED = 0;\n  E_SILENT = 1;\n}\n"
        "// Said.\nservice S {\n  rpc Silent(Said) returns (Said);\n}\n"
    )
    (file,) = compile_with_comments(tmp_path, tmp_path / "descriptors.bin").file
    assert uncommented(file) == ["a.Said.silent", "a.Silent", "a.E.E_SILENT", "a.S.Silent"]
