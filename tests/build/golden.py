"""Expected plans of the TensorRT-LLM builder: reading `tests/golden/tensorrt_llm`, and models of real shapes for it.

The models take no space: their safetensors files have a header, and a hole where the data would be.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from builders.checkpoint import expected_shapes, layer_shapes
from builders.model_config import model_config
from builders.safetensors_file import LENGTH

ROOT = Path(__file__).parent.parent / "golden" / "tensorrt_llm"
CASES = sorted(path.stem for path in (ROOT / "cases").glob("*.txt"))
_ARGUMENTS = "# arguments: "
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """One expected run."""

    arguments: tuple[str, ...]
    values: Mapping[str, Any]
    """By path, down to scalars and lists."""
    refused: tuple[str, ...]


def read_case(name: str, places: Mapping[str, str]) -> Case:
    """A case with its includes; `places` are what stands in braces."""
    text = (ROOT / "cases" / f"{name}.txt").read_text()
    arguments = next(line for line in text.splitlines() if line.startswith(_ARGUMENTS)).removeprefix(_ARGUMENTS)
    values: dict[str, Any] = {}
    refused: list[str] = []
    for path, value in _assignments(text):
        value = _placed(value, places)
        if path == "refused":
            refused.append(value)
            continue
        for inner, leaf in flat(path, value):
            assert inner not in values, f"{name}: {inner} is defined twice"
            values[inner] = leaf
    return Case(tuple(_placed(part, places) for part in shlex.split(arguments)), values, tuple(refused))


def _assignments(text: str) -> Iterator[tuple[str, Any]]:
    for line in text.splitlines():
        if line.startswith("include "):
            yield from _assignments((ROOT / "parts" / f"{line.split()[1]}.txt").read_text())
        elif line and not line.startswith("#"):
            path, _, rest = line.partition(" = ")
            value, marked, source = rest.partition("  # ")
            assert marked and source, f"no source: {line}"
            yield path, json.loads(value)


def flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(f"{path}.{key}", item)
    else:
        yield path, value


def printed(output: str) -> dict[str, Any]:
    """What a dry run printed, by path."""
    pairs = (line.partition(" = ") for line in output.splitlines() if not line.startswith("#"))
    return {path: json.loads(value) for path, _, value in pairs}


def _placed(value: Any, places: Mapping[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    for name, place in places.items():
        value = value.replace(f"{{{name}}}", place)
    return value


def write_model(folder: Path, config: Mapping[str, Any]) -> Path:
    """A model's folder, without its weights' values."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    known = config["architectures"][0] != "DeepseekV3ForCausalLM"
    shapes = expected_shapes(model_config(config, folder).decoder) if known else {"model.norm.weight": (8,)}
    return write_tensors(folder / "model.safetensors", shapes)


def write_tensors(file: Path, shapes: Shapes) -> Path:
    """A safetensors file of bfloat16 whose data is a hole; returns its folder."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as target:
        target.write(LENGTH.pack(len(text)) + text)
        target.truncate(LENGTH.size + len(text) + end)
    return file.parent


def write_drafter(folder: Path, method: str, config: Mapping[str, Any]) -> Path:
    """The drafter of a method, for a target of this config."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    folder.mkdir(parents=True)
    if method == "medusa":
        (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 1}))
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(3):
            shapes[f"{head}.0.linear.weight"], shapes[f"{head}.0.linear.bias"] = (hidden, hidden), (hidden,)
            shapes[f"{head}.1.weight"] = (vocabulary, hidden)
        return write_tensors(folder / "medusa_lm_head.safetensors", shapes)
    one = {**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    if method == "eagle3":
        return _write_eagle3(folder, one)
    (folder / "config.json").write_text(json.dumps(one))
    inside = {
        name.removeprefix("model."): shape
        for name, shape in expected_shapes(model_config(one, folder).decoder).items()
        if name.startswith("model.layers.") and "input_layernorm" not in name
    }
    fusion = {"fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,)}
    return write_tensors(
        folder / "model.safetensors", {**fusion, **inside, "embed_tokens.weight": (vocabulary, hidden)}
    )


def _write_eagle3(folder: Path, config: Mapping[str, Any]) -> Path:
    """EAGLE-3 over the whole vocabulary: its attention reads embedding and state side by side."""
    (folder / "config.json").write_text(json.dumps(config))
    hidden = config["hidden_size"]
    decoder = model_config(config, folder).decoder
    shapes = {f"midlayer.{name}": shape for name, shape in layer_shapes(decoder, 2 * hidden).items()}
    shapes |= {"midlayer.hidden_norm.weight": (hidden,), "fc.weight": (hidden, 3 * hidden), "norm.weight": (hidden,)}
    return write_tensors(folder / "model.safetensors", {**shapes, "lm_head.weight": (config["vocab_size"], hidden)})
