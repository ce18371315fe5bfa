"""Drafters that are right about a tiny target on the texts that they were fitted to, by least squares.

Random drafters are never accepted, so that text says nothing of them. These are, and only as long as every one of their
numbers is where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.draft_files import LLAMA, layer_shapes, write_folder

_TOKENS = 60
_QUIET = 1e-3
"""Of what a layer adds: little enough to be right, and enough that no weight may be another's."""


@dataclass(frozen=True)
class Seen:
    """One text of the target: its tokens [T], the states before the output head [T, H], and the tokens' embeddings."""

    tokens: Tensor
    states: Tensor
    embeddings: Tensor


def seen_texts(target: Path, prompts: Sequence[str]) -> list[Seen]:
    """The target's greedy answers, prompts included."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    found = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([tokenizer(prompt).input_ids])
            mask = torch.ones_like(ids)
            whole = model.generate(
                ids, attention_mask=mask, max_new_tokens=_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            output = model(whole, output_hidden_states=True)
            found.append(Seen(whole[0], output.hidden_states[-1][0], model.get_input_embeddings()(whole)[0]))
    return found


def write_fitted_medusa(path: Path, seen: Sequence[Seen], heads: int, vocabulary: int) -> None:
    """Heads whose residual block does nothing, and whose output layer was fitted to the tokens further on."""
    hidden = seen[0].states.shape[1]
    tensors: dict[str, Tensor] = {}
    for head in range(heads):
        ahead = head + 2
        states = torch.cat([item.states[:-ahead] for item in seen])
        tokens = torch.cat([item.tokens[ahead:] for item in seen])
        labels = torch.nn.functional.one_hot(tokens, vocabulary).float()
        tensors[f"{head}.0.linear.weight"] = torch.zeros(hidden, hidden)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(hidden)
        tensors[f"{head}.1.weight"] = fitted(states, labels)
    write_folder(path, {"medusa_num_heads": heads, "medusa_num_layers": 1}, tensors, "medusa_lm_head.safetensors")


def write_fitted_eagle(path: Path, seen: Sequence[Seen]) -> None:
    """A layer that does nearly nothing, after a fusion that was fitted to give a token's state from its embedding."""
    embeddings = torch.cat([item.embeddings for item in seen])
    states = torch.cat([item.states for item in seen])
    hidden = states.shape[1]
    shapes = layer_shapes("layers.0.", input_norm=False)
    generator = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] *= _QUIET
    tensors["fc.weight"] = torch.cat([fitted(embeddings, states), torch.zeros(hidden, hidden)], dim=1)
    tensors["fc.bias"] = torch.zeros(hidden)
    write_folder(path, LLAMA, tensors)


def fitted(inputs: Tensor, outputs: Tensor) -> Tensor:
    """The matrix [O, I] that maps inputs [N, I] to outputs [N, O] best."""
    found: Tensor = torch.linalg.lstsq(inputs.double(), outputs.double(), driver="gelsd").solution
    return found.T.float().contiguous()
