"""Drafters that are right about a small target on the texts that they were fitted to, by least squares.

Random drafters are never accepted, so that text says nothing of them. These are, and only as long as every one of their
numbers is where it belongs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from builders.checkpoint import layer_shapes
from builders.model_config import model_config, read_json

_TOKENS = 60
_QUIET = 1e-3
"""Of what a layer adds: little enough to be right, and enough that no weight may be another's."""


@dataclass(frozen=True)
class Seen:
    """One text of the target: its tokens [T], the states before the output head [T, H], and the tokens' embeddings."""

    tokens: Tensor
    states: Tensor
    embeddings: Tensor
    layers: tuple[Tensor, ...]
    """What went into each layer, [T, H]."""


def seen_texts(target: Path, prompts: Sequence[Sequence[int]]) -> list[Seen]:
    """The target's greedy answers to prompts of token ids, prompts included."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    found = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([list(prompt)])
            mask = torch.ones_like(ids)
            whole = model.generate(
                ids, attention_mask=mask, max_new_tokens=_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            *layers, last = [item[0] for item in model(whole, output_hidden_states=True).hidden_states]
            found.append(Seen(whole[0], last, model.get_input_embeddings()(whole)[0], tuple(layers)))
    return found


def write_medusa(path: Path, target: Path, seen: Sequence[Seen], heads: int) -> None:
    """Heads whose residual block does nothing, and whose output layer was fitted to the tokens further on."""
    config = read_json(target / "config.json")
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    tensors: dict[str, Tensor] = {}
    for head in range(heads):
        ahead = head + 2
        states = torch.cat([item.states[:-ahead] for item in seen])
        tensors[f"{head}.0.linear.weight"] = torch.zeros(hidden, hidden)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(hidden)
        tensors[f"{head}.1.weight"] = fitted(states, _one_hot(seen, ahead, vocabulary))
    _write(path, {"medusa_num_heads": heads, "medusa_num_layers": 1}, tensors, "medusa_lm_head.safetensors")


def write_eagle(path: Path, target: Path, seen: Sequence[Seen]) -> None:
    """A layer that does nearly nothing, after a fusion that was fitted to give a token's state from its embedding."""
    raw = {**read_json(target / "config.json"), "num_hidden_layers": 1}
    embeddings, states = (torch.cat([getattr(item, name) for item in seen]) for name in ("embeddings", "states"))
    generator = torch.Generator().manual_seed(3)
    tensors: dict[str, Tensor] = {}
    for name, shape in layer_shapes(model_config(raw, target).decoder).items():
        if name != "input_layernorm.weight":
            tensors[f"layers.0.{name}"] = drawn(name, shape, generator)
    hidden = states.shape[1]
    tensors["fc.weight"] = torch.cat([fitted(embeddings, states), torch.zeros(hidden, hidden)], dim=1)
    tensors["fc.bias"] = torch.zeros(hidden)
    _write(path, raw, tensors, "model.safetensors")


def write_eagle3(path: Path, target: Path, seen: Sequence[Seen]) -> None:
    """A random fusion, a layer that does nearly nothing, and a head that was fitted to the token after the next one.

    The state that it hands on is the one that it was given, so that of each draft only the first token is right.
    """
    raw = {**read_json(target / "config.json"), "num_hidden_layers": 1}
    decoder, generator = model_config(raw, target).decoder, torch.Generator().manual_seed(3)
    hidden, count = decoder.hidden_size, len(seen[0].layers)
    shapes = {f"midlayer.{name}": shape for name, shape in layer_shapes(decoder, 2 * hidden).items()}
    shapes |= {"midlayer.hidden_norm.weight": (hidden,), "fc.weight": (hidden, 3 * hidden), "norm.weight": (hidden,)}
    shapes["lm_head.weight"] = (decoder.vocab_size, hidden)
    tensors = {name: drawn(name, shape, generator) for name, shape in shapes.items()}
    read = [torch.cat([text.layers[layer][:-2] for text in seen]) for layer in (2, count // 2, count - 3)]
    fused = torch.cat(read, dim=1) @ tensors["fc.weight"].T
    states = normalised(fused, decoder.rms_norm_eps) * tensors["norm.weight"]
    tensors["lm_head.weight"] = fitted(states, _one_hot(seen, 2, decoder.vocab_size))
    _write(path, raw, tensors, "model.safetensors")


def normalised(states: Tensor, epsilon: float) -> Tensor:
    """As RMSNorm does it, with a weight of ones."""
    return states / states.pow(2).mean(dim=-1, keepdim=True).add(epsilon).sqrt()


def drawn(name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """A tensor of a layer, whose output is as wide as its input; those by which it adds to its input are quiet."""
    values = torch.randn(*shape, generator=generator)
    if "norm" in name:
        return 1 + values / 10
    loudness = _QUIET if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return loudness / math.sqrt(shape[-1]) * values


def _one_hot(seen: Sequence[Seen], ahead: int, vocabulary: int) -> Tensor:
    """The tokens that come so far behind each one."""
    tokens = torch.cat([item.tokens[ahead:] for item in seen])
    return torch.nn.functional.one_hot(tokens, vocabulary).float()


def _write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], file: str) -> None:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / file)


def fitted(inputs: Tensor, outputs: Tensor) -> Tensor:
    """The matrix [O, I] that maps inputs [N, I] to outputs [N, O] best."""
    found: Tensor = torch.linalg.lstsq(inputs.double(), outputs.double(), driver="gelsd").solution
    return found.T.float().contiguous()
