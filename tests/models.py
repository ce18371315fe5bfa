"""Tiny random models with a byte-level tokenizer, made on the spot: tests need no download.

The weights are drawn wide, so that greedy text wanders and depends on the whole prompt instead of
repeating its last token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("Ġ", "the"), ("e", "r"), ("o", "n"), ("Ġ", "a"))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INITIALIZER_RANGE = 0.3


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Three special tokens, then the 256 bytes, then eight merges; text of any language goes in and out whole."""
    names = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in MERGES))
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_llama(directory: Path, **options: Any) -> Path:
    """A random Llama; `tiny_model` has the options."""
    return tiny_model(directory, "LlamaForCausalLM", **options)


def tiny_model(
    directory: Path,
    architecture: str,
    *,
    vocab: int | None = None,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    tie: bool = True,
    rope_scaling: dict[str, Any] | None = None,
    max_positions: int = 512,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    spread: float = 0.0,
    shards: int = 1,
    generation: dict[str, Any] | None = None,
    **extra: Any,
) -> Path:
    """Write a random model of a class of `transformers` as a Hugging Face folder, and return the folder.

    `vocab` is the width of the embedding; without it, the tokenizer's size (267). `spread` moves norms and biases
    away from the ones and zeros they begin with. `generation` replaces the generation config, which by default stops
    at <|im_end|> while the tokenizer stops at <|endoftext|>. `extra` goes into the config.
    """
    tokenizer = tiny_tokenizer()
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(
        vocab_size=len(tokenizer) if vocab is None else vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tie,
        rope_scaling=None if rope_scaling is None else dict(rope_scaling),  # transformers writes into it
        initializer_range=INITIALIZER_RANGE,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **extra,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
        for parameter in model.parameters():
            if spread and parameter.dim() == 1:
                parameter.data += spread * (2 * torch.rand_like(parameter) - 1)
        model = model.to(dtype)
    default = {"eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>")}
    model.generation_config = GenerationConfig(**(default if generation is None else generation))
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    model.save_pretrained(directory, max_shard_size=size if shards == 1 else size // shards)
    tokenizer.save_pretrained(directory)
    return directory
