"""Files of an engine folder, damaged in every way, and what reads each of them.

`python -m tests.fuzz.folders KIND FIRST ROUNDS SECONDS` goes on for a time, in an address space with a bound.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from builders.safetensors_file import LENGTH
from tests.build.test_damaged_files import with_a_wrong_value, with_wrong_bytes
from tests.fakes import engine_folder
from trtspec import generation, manifest
from trtspec.errors import TrtspecError
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import HEADS, DrafterConfig
from trtspec.executors.embedded.weights import layer_name, load_weights
from trtspec.service.text import ChatPrompt, Tokenizer
from trtspec.service.tokens import parse

ADDRESS_SPACE = 24 << 30
"""What PyTorch reserves without using it is most of that."""
MOST_GROWTH_KIB = 1 << 20

CONFIG = DecoderConfig(
    *(16, 32, 2, 2, 2, 8, 1e-5, 1e4),
    rope_scaling=None,
    vocab_size=32,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
)


@dataclass(frozen=True)
class Subject:
    """A file, how it is damaged, and how it is read."""

    file: Path
    damage: Callable[[random.Random], bytes]
    read: Callable[[], object]


def _json(path: Path, rng: random.Random) -> bytes:
    """Either its values are wrong, or its bytes."""
    content = path.read_bytes()
    if rng.random() < 0.7:
        return with_a_wrong_value(json.loads(content), rng)
    return with_wrong_bytes(content, len(content), rng)


def _of_json(path: Path, read: Callable[[], object]) -> Subject:
    whole = path.with_name(path.name + ".whole")
    whole.write_bytes(path.read_bytes())
    return Subject(path, lambda rng: _json(whole, rng), read)


def manifests(directory: Path) -> Subject:
    """Half of them with the identity that their facts have, as one would who means harm."""
    path = engine_folder(directory) / manifest.NAME
    whole = json.loads(path.read_bytes())
    names = ("../x", "/etc/hostname", "tokenizer/../../x", "a\0b", "x" * 5000, "", ".", "tokenizer")

    def damage(rng: random.Random) -> bytes:
        copy = json.loads(json.dumps(whole))
        if rng.random() < 0.3:
            copy["artifacts"][rng.choice(names)] = {"bytes": rng.choice((0, 5, -1, 2**70)), "sha256": "0"}
        content = with_a_wrong_value(copy, rng) if rng.random() < 0.8 else json.dumps(copy).encode()
        if rng.random() < 0.2:
            return with_wrong_bytes(content, len(content), rng)
        return content

    def read() -> object:
        try:
            return manifest.read(directory)
        except TrtspecError as error:
            if "changed by hand" not in str(error):
                raise
        # The same with an identity that fits.
        document = json.loads(path.read_bytes())
        found = manifest.Manifest(**_arguments(document))
        path.write_text(json.dumps({**document, "engine_id": found.engine_id}))
        return manifest.read(directory)

    return Subject(path, damage, read)


def _arguments(document: Mapping[str, Any]) -> dict[str, Any]:
    names = {item for item in manifest.Manifest.__dataclass_fields__}
    values = {name: document[name] for name in names}
    values["speculative"] = manifest.from_dict(document["speculative"])
    values["artifacts"] = {name: manifest.Artifact(**item) for name, item in document["artifacts"].items()}
    return values


def generations(directory: Path) -> Subject:
    engine_folder(directory)
    return _of_json(directory / generation.NAME, lambda: generation.read(directory))


def decoders(directory: Path) -> Subject:
    path = directory / "config.json"
    CONFIG.to_json(path)
    return _of_json(path, lambda: DecoderConfig.from_json(path))


def drafters(directory: Path) -> Subject:
    path = directory / "drafter.json"
    config = DrafterConfig(HEADS, CONFIG, (-1,), 8, own_embedding=False, own_head=False, modules=2)
    path.write_text(json.dumps(asdict(config)))
    return _of_json(path, lambda: DrafterConfig.from_json(path))


def tokenizers(directory: Path) -> Subject:
    return _tokenizer(directory, "tokenizer.json")


def tokenizer_configs(directory: Path) -> Subject:
    return _tokenizer(directory, "tokenizer_config.json")


def _tokenizer(directory: Path, name: str) -> Subject:
    def read() -> object:
        tokenizer = Tokenizer.load(engine)
        ids = tokenizer.encode("the answer")
        if tokenizer.has_chat_template:
            tokenizer.render(ChatPrompt(({"role": "user", "content": "x"},)))
        return tokenizer.decode(ids), tokenizer.pieces(ids)

    engine = engine_folder(directory)
    return _of_json(engine / generation.TOKENIZER / name, read)


def weights(directory: Path) -> Subject:
    import torch

    tensors = {"embedding": torch.zeros(32, 16), "norm": torch.zeros(16)}
    for index in range(CONFIG.num_layers):
        shapes = {"input_norm": (16,), "qkv": (48, 16), "output": (16, 16), "post_norm": (16,)}
        shapes |= {"gate_up": (64, 16), "down": (16, 32)}
        tensors |= {layer_name(index, part): torch.zeros(*shape) for part, shape in shapes.items()}
    path = directory / "weights.safetensors"
    save_file(tensors, path)
    whole = path.read_bytes()
    header = LENGTH.size + LENGTH.unpack_from(whole)[0]
    return Subject(path, lambda rng: with_wrong_bytes(whole, header, rng), lambda: load_weights(directory, CONFIG))


def tokens(directory: Path) -> Subject:
    path = directory / "tokens"
    whole = b"# clients\nalice a-secret-of-some-length\nbob sha256:" + b"0a" * 32 + b"\n"
    path.write_bytes(whole)
    return Subject(path, lambda rng: with_wrong_bytes(whole, len(whole), rng), lambda: parse(path.read_bytes(), "f"))


KINDS: Mapping[str, Callable[[Path], Subject]] = {
    kind.__name__: kind
    for kind in (manifests, generations, decoders, drafters, tokenizers, tokenizer_configs, weights, tokens)
}


def rounds(subject: Subject, first: int, count: int, seconds: float = float("inf")) -> int:
    """Damage and read until the count or the time is over; gives how many were refused."""
    subject.read()
    refused, ends = 0, time.monotonic() + seconds
    for seed in range(first, first + count):
        if time.monotonic() > ends:
            break
        subject.file.write_bytes(subject.damage(random.Random(seed)))
        try:
            subject.read()
        except TrtspecError as error:
            refused += 1
            assert len(str(error)) < 10_000, f"seed {seed}: an error of {len(str(error))} characters"
        except BaseException as error:  # Rust's panics are no `Exception`
            raise AssertionError(f"seed {seed}: {error!r:.500}") from error
    return refused


def main(kind: str, first: int, count: int, seconds: float) -> int:
    """The same with bounds on time and memory; 0 where all was well."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    with tempfile.TemporaryDirectory() as directory:
        subject = KINDS[kind](Path(directory))
        subject.read()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused = rounds(subject, first, count, seconds)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{kind}: {refused} refused, {grown} KiB more")
    return 0 if grown < MOST_GROWTH_KIB else 1


if __name__ == "__main__":
    name, begin, number, limit = sys.argv[1:]
    sys.exit(main(name, int(begin), int(number), float(limit)))
