"""What an engine's tokens spell, as the library of grammars wants to know it.

Special tokens spell nothing, so that no guide ever emits one but those that end a text.
"""

from __future__ import annotations

from pathlib import Path

import xgrammar
from transformers import PreTrainedTokenizerFast

from trtspec import generation
from trtspec.generation import TOKENIZER


def token_info(engine: Path, vocabulary: int) -> xgrammar.TokenizerInfo:
    """Of an engine folder; ids from `vocabulary` on are never emitted."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(engine / TOKENIZER, local_files_only=True)
    return info_of(tokenizer, generation.read(engine).eos_ids, vocabulary)


def info_of(tokenizer: PreTrainedTokenizerFast, eos_ids: frozenset[int], vocabulary: int) -> xgrammar.TokenizerInfo:
    """Of a tokenizer, with the ids that end a text."""
    read = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=max(vocabulary, len(tokenizer)))
    spelt = list(read.decoded_vocab)[:vocabulary]
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special and token < len(spelt):
            spelt[token] = b""
    return xgrammar.TokenizerInfo(
        spelt,
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary,
        stop_token_ids=sorted(id_ for id_ in eos_ids if id_ < vocabulary),
        add_prefix_space=read.add_prefix_space,
    )
