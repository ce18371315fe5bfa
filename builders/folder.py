"""The engine folder on disk: built beside its place, then moved into it whole.

A folder of ours carries a mark or a record that can be read, and nothing else is ever replaced; nor is a finished
folder by one of another kind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plugins import verifier_folder
from trtspec import manifest
from trtspec.errors import ConfigError, EngineFolderError
from trtspec.generation import MARK
from trtspec.manifest import Artifact, Manifest

_TRIAL = ".trial"
_UNFINISHED = ".building"
_REPLACED = ".replaced"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a build makes."""

    contents: str
    record: str
    """The file that it writes last."""
    read: Callable[[Path], object]
    """Raises where a record is none."""


MODEL = Kind("the engine of a model", manifest.NAME, manifest.read)
VERIFIER = Kind("verification engines", verifier_folder.NAME, verifier_folder.read)
KINDS = (MODEL, VERIFIER)


def check_output(output: Path, kind: Kind = MODEL) -> None:
    """Refuse a place that holds something else, and neighbours in the way of the swap."""
    for path in (output, _beside(output, _UNFINISHED), _beside(output, _REPLACED)):
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            continue
        if not _is_ours(path):
            raise ConfigError(
                f"--output {output}: {path} exists and is no engine folder (it has neither {MARK} nor a valid "
                f"{kind.record}); give another place or remove it"
            )
        if found := [other for other in KINDS if other != kind and (path / other.record).exists()]:
            there = f"{path} has {found[0].record}, so it holds {found[0].contents}"
            raise ConfigError(
                f"--output {output}: {there}, and {kind.contents} would replace it; give another place or remove it"
            )


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.name + suffix)


def _is_ours(path: Path) -> bool:
    return (path / MARK).is_file() or any(_is_finished(path, kind) for kind in KINDS)


def _is_finished(path: Path, kind: Kind) -> bool:
    try:
        kind.read(path)
    except EngineFolderError:
        return False
    return True


@contextmanager
def staging(output: Path) -> Iterator[Path]:
    """A folder beside `output`, locked against other builds; whatever is left in it at the end is removed."""
    path = _beside(output, _UNFINISHED)
    path.mkdir(parents=True, exist_ok=True)
    with (path / MARK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another build is writing {output}; wait for it or give another --output") from error
        try:
            _clear(path)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _clear(path: Path) -> None:
    """Remove what a killed build left."""
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != MARK:
            entry.unlink()


def publish(path: Path, output: Path) -> None:
    """Move a finished folder into its place; an older engine there is removed after the swap."""
    old = _beside(output, _REPLACED)
    if old.exists():
        shutil.rmtree(old)
    if output.exists():
        output.rename(old)
    path.rename(output)
    shutil.rmtree(old, ignore_errors=True)


def list_artifacts(path: Path) -> dict[str, Artifact]:
    """Every file of the folder but the mark, hashed."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != MARK)
    return {str(file.relative_to(path)): manifest.hash_file(file) for file in files}


def link(file: str | Path, place: str | Path) -> None:
    """The same file at another place, without room of its own where the disk allows it. No symbolic link: an engine is
    not read where one leads out of its folder."""
    try:
        os.link(file, place)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(file, place)


@contextmanager
def trial(path: Path, draft: Manifest) -> Iterator[Path]:
    """The folder as an engine that can be opened, while it has no manifest of its own yet."""
    view = path / _TRIAL
    view.mkdir()
    for entry in list(path.iterdir()):
        if entry == view:
            continue
        if entry.is_dir():
            shutil.copytree(entry, view / entry.name, copy_function=link)
        else:
            link(entry, view / entry.name)
    manifest.write(draft, view)
    try:
        yield view
    finally:
        shutil.rmtree(view)
