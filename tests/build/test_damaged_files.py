"""Headers with flipped, lost and inserted bytes: a build refuses them or finds the file whole, and never falls over."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from builders.checkpoint import expected_shapes, open_checkpoint
from builders.safetensors_file import LENGTH
from tests.checkpoint_files import joined, split, write_gguf
from tests.models import tiny_llama
from trtspec.errors import CheckpointError

MANY = [pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS = [pytest.param(300, id="some"), pytest.param(20_000, id="many", marks=MANY)]
NUMBERS = (0, 1, 2, 7, 8, 9, 10, 12, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
JUNK = (b'"', b"[", b"}", b",", b"-", b"1e999", b"null", b".5", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"9" * 30)
VALUES = (
    *(None, True, 0, -1, 1.5, 2**31, 2**70, float("inf"), float("nan"), "", "F32", "F99", "\ud800", {}, {"a": 1}),
    *([], [0], [1, 2, 3], [[]], ["8"], [None, None], [0.0, 4.0], [0, 2**64], [2**32, 2**32]),
)


def with_wrong_bytes(content: bytes, header: int, rng: random.Random) -> bytes:
    """One damage to the first `header` bytes; most keep the length, so that what follows stays readable."""
    damaged = bytearray(content)
    at = rng.randrange(header)
    match rng.randrange(8):
        case 0:
            del damaged[at : at + rng.randint(1, 12)]
        case 1:
            damaged[at:at] = rng.choice(JUNK)
        case 2 | 3:
            damaged[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        case 4:
            damaged[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) % 2**32)
        case _:
            damaged[at] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def with_a_wrong_value(document: Any, rng: random.Random) -> bytes:
    """JSON of which one value, anywhere, is another or gone."""
    copy = json.loads(json.dumps(document))
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                visit(node[key])

    visit(copy)
    node, key = rng.choice(places)
    if rng.random() < 0.1:
        del node[key]
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(copy).encode()


@dataclass(frozen=True, slots=True)
class Subject:
    """A checkpoint that can be opened, and how one of its files is damaged."""

    target: Path
    file: Path
    damage: Callable[[random.Random], bytes]


def gguf_bytes(directory: Path) -> Subject:
    path = write_gguf(directory / "a.gguf", eot=7, rotated=16, rope_scaling="none")
    whole, header = path.read_bytes(), GGUFReader(path).data_offset
    return Subject(path, path, lambda rng: with_wrong_bytes(whole, header, rng))


def weights_bytes(directory: Path) -> Subject:
    path = tiny_llama(directory, layers=1) / "model.safetensors"
    whole = path.read_bytes()
    header = LENGTH.size + LENGTH.unpack_from(whole)[0]
    return Subject(directory, path, lambda rng: with_wrong_bytes(whole, header, rng))


def weights_values(directory: Path) -> Subject:
    path = tiny_llama(directory, layers=1) / "model.safetensors"
    document, data = split(path)
    return Subject(directory, path, lambda rng: joined(with_a_wrong_value(document, rng), data))


def config_values(directory: Path) -> Subject:
    path = tiny_llama(directory, layers=1) / "config.json"
    document = json.loads(path.read_bytes())
    return Subject(directory, path, lambda rng: with_a_wrong_value(document, rng))


def read_all(target: Path) -> None:
    checkpoint = open_checkpoint(target)
    for name, shape in expected_shapes(checkpoint.config).items():
        assert checkpoint.read(name).shape == shape


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("kind", [gguf_bytes, weights_bytes, weights_values, config_values])
def test_damage_is_refused_or_harmless(kind: Callable[[Path], Subject], rounds: int, tmp_path: Path) -> None:
    subject = kind(tmp_path)
    read_all(subject.target)
    refused = 0
    for seed in range(rounds):
        subject.file.write_bytes(subject.damage(random.Random(seed)))
        try:
            read_all(subject.target)
        except CheckpointError as error:
            assert str(subject.target) in str(error)
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert refused > rounds / 10
