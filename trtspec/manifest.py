"""What a build wrote and a server reads: `manifest.json`, the last file of an engine folder.

A folder without one is an unfinished build. The server reads nothing else to decide what it serves.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtspec.errors import ConfigError, EngineFolderError
from trtspec.json_file import UNREADABLE, check_fields, read_object
from trtspec.speculative import TYPICAL, SpeculativeConfig, from_dict
from trtspec.types import OutputLaw

FORMAT = 4
NAME = "manifest.json"
_CHUNK = 1 << 20
_MOST_SIZE = 1 << 26
"""Of a context and a vocabulary; a request's size in bytes still fits 32 bits then."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of an engine folder."""

    bytes: int
    sha256: str


UNVERIFIED = "nothing"
"""What shows that a drafter belongs to its target, where nothing does and the operator allowed it."""


@dataclass(frozen=True, slots=True)
class DrafterRecord:
    """Where an engine's drafter came from."""

    format: str
    """The layout of its folder."""
    target_sha256: str | None
    """The target that it was made for; None where its files do not tell."""
    matched_by: str
    """What shows that this is the engine's target: its identity, the tokenizer, a common folder, or nothing."""

    @property
    def unverified(self) -> bool:
        return self.matched_by == UNVERIFIED


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished build. What decides the tokens is in `facts`; a name, a smoke result and versions are not."""

    model: str
    backend: str
    runner: str
    """What multiplies: `eager` is PyTorch, `openvino` compiles the decoder for the CPU when it opens. With TensorRT-LLM
    its flow: `engine` for compiled engines, `pytorch`."""
    architecture: str
    dtype: str
    quantization: str
    max_context_tokens: int
    vocabulary_size: int
    """Ids below this are valid and are emitted; the embedding may be padded beyond."""
    speculative: SpeculativeConfig
    artifacts: Mapping[str, Artifact]
    """By path relative to the folder."""
    tokenizer_sha256: str
    target_sha256: str
    """Identity of the target's weights, whatever their form; `builders.identity` says of what."""
    drafter: DrafterRecord | None = None
    smoke: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, Any] = field(default_factory=dict)
    """argv, time, inputs: what is true of the run and not of the engine."""

    @property
    def output_law(self) -> OutputLaw:
        """The law of its tokens beside that of plain decoding, as its rule of acceptance leaves it."""
        return OutputLaw.TYPICAL if self.speculative.acceptance == TYPICAL else OutputLaw.EXACT

    @property
    def facts(self) -> str:
        """Canonical JSON of the build facts, without paths outside the folder, argv, time and versions."""
        return canonical_json(
            {
                "format": FORMAT,
                "backend": self.backend,
                "runner": self.runner,
                "architecture": self.architecture,
                "dtype": self.dtype,
                "quantization": self.quantization,
                "max_context_tokens": self.max_context_tokens,
                "vocabulary_size": self.vocabulary_size,
                "speculative": self.speculative.facts(),
                "artifacts": {name: item.sha256 for name, item in self.artifacts.items()},
                "tokenizer_sha256": self.tokenizer_sha256,
                "target_sha256": self.target_sha256,
                "drafter": self.drafter and asdict(self.drafter),
            }
        )

    @property
    def engine_id(self) -> str:
        return hashlib.sha256(self.facts.encode()).hexdigest()


def _check(manifest: Manifest) -> None:
    """Refuse values that no build writes."""
    check_fields(manifest)
    for artifact in manifest.artifacts.values():
        if type(artifact.bytes) is not int or type(artifact.sha256) is not str:
            raise TypeError(f"an artifact is {artifact!r:.80}")
    for name, value in (
        ("max_context_tokens", manifest.max_context_tokens),
        ("vocabulary_size", manifest.vocabulary_size),
    ):
        if not 1 <= value <= _MOST_SIZE:
            raise ValueError(f"{name} is {value}")


def canonical_json(value: object) -> str:
    """The one spelling of a JSON value that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hash_file(path: Path) -> Artifact:
    """Size and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return Artifact(path.stat().st_size, digest.hexdigest())


def write(manifest: Manifest, directory: Path) -> None:
    """Write `manifest.json` atomically: it appears whole or not at all."""
    document = {
        "format": FORMAT,
        "engine_id": manifest.engine_id,
        "model": manifest.model,
        "backend": manifest.backend,
        "runner": manifest.runner,
        "architecture": manifest.architecture,
        "dtype": manifest.dtype,
        "quantization": manifest.quantization,
        "max_context_tokens": manifest.max_context_tokens,
        "vocabulary_size": manifest.vocabulary_size,
        "speculative": manifest.speculative.facts(),
        "output_law": manifest.output_law.value,
        "artifacts": {
            name: {"bytes": item.bytes, "sha256": item.sha256} for name, item in sorted(manifest.artifacts.items())
        },
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "target_sha256": manifest.target_sha256,
        "drafter": manifest.drafter and asdict(manifest.drafter),
        "smoke": dict(manifest.smoke),
        "versions": dict(manifest.versions),
        "build": dict(manifest.build),
    }
    temporary = directory / (NAME + ".partial")
    with temporary.open("w") as file:
        json.dump(document, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / NAME)


def read(directory: Path, *, verify: bool = False) -> Manifest:
    """Read and check an engine folder: sizes always, every hash with `verify`."""
    manifest = _parse(directory)
    for name, expected in manifest.artifacts.items():
        path = _inside(directory, name)
        size = _size(path)
        if size is None:
            raise EngineFolderError(f"{directory}: {name[:256]} is missing; build the engine again")
        if size != expected.bytes:
            raise EngineFolderError(
                f"{directory}: {name} has {size} bytes and the manifest says {expected.bytes}; build the engine again"
            )
        if verify and hash_file(path) != expected:
            raise EngineFolderError(f"{directory}: the content of {name} differs from its hash; build the engine again")
    return manifest


def _inside(directory: Path, name: str) -> Path:
    """A file of the folder. Raises `EngineFolderError` where the name leads out of it, be it by way of a link."""
    path = directory / name
    if Path(name).is_absolute() or ".." in Path(name).parts or not _leads_into(path, directory):
        raise EngineFolderError(f"{directory / NAME} names {name!r}, which lies outside the engine folder")
    return path


def _size(path: Path) -> int | None:
    """Bytes of a file; None where there is none, or nothing could have such a name."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _leads_into(path: Path, directory: Path) -> bool:
    try:
        return path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError, ValueError):  # links that lead to each other, a name that cannot be one
        return False


def _parse(directory: Path) -> Manifest:
    path = directory / NAME
    if not directory.is_dir():
        raise EngineFolderError(f"no such folder: {directory}")
    if not path.is_file():
        raise EngineFolderError(
            f"{directory} has no {NAME}: it is not an engine, or its build did not finish; "
            "make one with `python -m builders.build --method ngram`"
        )
    try:
        document = read_object(path)
        if document["format"] != FORMAT:
            raise EngineFolderError(
                f"{path}: format {document['format']} is not {FORMAT}, which this version reads; build the engine again"
            )
        manifest = Manifest(
            model=document["model"],
            backend=document["backend"],
            runner=document["runner"],
            architecture=document["architecture"],
            dtype=document["dtype"],
            quantization=document["quantization"],
            max_context_tokens=document["max_context_tokens"],
            vocabulary_size=document["vocabulary_size"],
            speculative=from_dict(document["speculative"]),
            artifacts={name: Artifact(item["bytes"], item["sha256"]) for name, item in document["artifacts"].items()},
            tokenizer_sha256=document["tokenizer_sha256"],
            target_sha256=document["target_sha256"],
            drafter=None if document["drafter"] is None else DrafterRecord(**document["drafter"]),
            smoke=document["smoke"],
            versions=document["versions"],
            build=document["build"],
        )
        _check(manifest)
        same = manifest.engine_id == document["engine_id"]
    except (*UNREADABLE, ConfigError) as error:
        raise EngineFolderError(f"{path} is damaged ({error!r:.200}); build the engine again") from error
    if not same:
        raise EngineFolderError(f"{path} was changed by hand: its facts do not give its engine_id; build it again")
    return manifest
