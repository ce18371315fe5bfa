"""The text of a compiled kernel, and the edits that make it one that TensorRT can launch.

Triton appends pointers to scratch memory behind the parameters of a kernel, two of them since 3.5, and its own launcher
fills them. TensorRT passes input pointers, int32 scalars and output pointers, and nothing more, so an entry that asks
for more would read past what was passed. They go, once nothing in the text is seen to name them. So does the suffix of
targets such as sm_90a, where the text holds without: with it, it runs on that one generation, else on all later ones.

Source: the PTX ISA reference, 5.1.6 (kernel parameters), 11.1 (directives of a module), 11.4.3 (.reqntid).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.errors import KernelError

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*\(([^)]*)\)([^{]*)\{")
_TARGET = re.compile(r"^\.target (sm_\d+[af]?)\b", re.MULTILINE)
_PARAMETER = re.compile(r"^\.param\s+\.([usb])(\d+)\b[^\[\]]*?([\w$%]+)$", re.DOTALL)
_THREADS = re.compile(r"\.reqntid\s+(\d+)")
_CLUSTERS = (".explicitcluster", ".reqnctapercluster")


@dataclass(frozen=True, slots=True)
class Entry:
    """The function that is launched."""

    name: str
    parameters: tuple[str, ...]
    """Names, in the order in which they are passed."""
    bits: tuple[int, ...]
    """Size of each."""
    threads: int | None
    """Of a block, where the text demands a number."""


def read_entry(ptx: str) -> Entry:
    """The text's only entry; refused is what TensorRT cannot launch."""
    found = _ENTRY.findall(ptx)
    if len(found) != 1:
        raise KernelError(f"the PTX has {len(found)} entries, {', '.join(name for name, _, _ in found)}; expected 1")
    name, listed, directives = found[0]
    for word in _CLUSTERS:
        if word in directives:
            raise KernelError(f"{name} is launched in clusters ({word}), which TensorRT's plugins are not")
    parts = [_PARAMETER.match(part.strip()) or _unknown(name, part) for part in listed.split(",") if part.strip()]
    threads = _THREADS.search(directives)
    return Entry(
        name,
        tuple(part[3] for part in parts),
        tuple(int(part[2]) for part in parts),
        int(threads[1]) if threads else None,
    )


def expose(ptx: str, bits: Sequence[int]) -> str:
    """The text with an entry that takes parameters of these sizes; what Triton has appended is removed, if unused."""
    entry = read_entry(ptx)
    if entry.bits[: len(bits)] != tuple(bits):
        raise KernelError(f"{entry.name} takes parameters of {entry.bits} bits; expected {tuple(bits)}")
    hidden = entry.parameters[len(bits) :]
    for name, size in zip(hidden, entry.bits[len(bits) :], strict=True):
        if size != 64:
            raise KernelError(f"{entry.name} has a hidden parameter {name} of {size} bits; scratch pointers have 64")
        if uses := _uses(ptx, name):
            raise KernelError(f"{entry.name} uses its hidden parameter {name}: {uses[0]}; TensorRT does not pass it")
    return _with_parameters(ptx, len(bits)) if hidden else ptx


def for_later_chips(ptx: str) -> str:
    """The text with its target's architecture-specific suffix removed; whether it holds without, an assembler says."""
    return ptx.replace(f".target {target(ptx)}", f".target {target(ptx).rstrip('af')}", 1)


def target(ptx: str) -> str:
    """The chips of the text: sm_90 for those and all later ones, sm_90a for those alone."""
    found = _TARGET.search(ptx)
    if found is None:
        raise KernelError("the PTX names no target")
    return found[1]


def _uses(ptx: str, name: str) -> list[str]:
    """Lines outside the entry's own list that name a parameter, loads and others."""
    list_of_entry = _ENTRY.search(ptx)
    assert list_of_entry is not None
    rest = ptx[: list_of_entry.start(2)] + ptx[list_of_entry.end(2) :]
    word = re.compile(rf"(?<![\w$%]){re.escape(name)}(?![\w$%])")
    return [line.strip() for line in rest.splitlines() if word.search(line)]


def _with_parameters(ptx: str, count: int) -> str:
    """The text with the first parameters of its entry alone."""
    found = _ENTRY.search(ptx)
    assert found is not None
    kept = found[2].split(",")[:count]
    listed = ",".join(kept).rstrip() + "\n" if kept else ""
    return ptx[: found.start(2)] + listed + ptx[found.end(2) :]


def _unknown(entry: str, part: str) -> re.Match[str]:
    raise KernelError(f"{entry} takes a parameter that is neither a pointer nor a number: {' '.join(part.split())}")
