"""What is checked: random Llamas made on the spot, the engines built from them, and prompts. No download.

Random weights say nothing sensible, so acceptance here tells how passes with drafts cost, not what drafts are worth.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from builders.build import main as build
from trtspec.errors import TrtspecError

Prompt = tuple[int, ...]
MAX_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class Size:
    """A model to make."""

    name: str
    dtype: torch.dtype
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    spread: float
    """Standard deviation of its weights."""
    family: str = "llama"
    """Under the name that `transformers` has for it."""


TINY = Size("tiny", torch.float32, vocabulary=512, hidden=64, layers=2, heads=4, kv_heads=2, spread=0.3)
"""Drawn wide, so that its text wanders and hangs on the whole prompt."""
TINY_HALF = Size("tiny-half", torch.bfloat16, vocabulary=512, hidden=64, layers=2, heads=4, kv_heads=2, spread=0.3)
USEFUL = Size("useful", torch.bfloat16, vocabulary=32_000, hidden=768, layers=12, heads=12, kv_heads=4, spread=0.02)
"""Some 120 million parameters, drawn narrow: its text soon repeats itself, so that drafts are accepted."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine folder and the model it was built from."""

    size: Size
    model: Path
    engine: Path

    @property
    def dtype_name(self) -> str:
        return str(self.size.dtype).removeprefix("torch.")

    def reference(self, device: torch.device) -> LlamaForCausalLM:
        """The model as `transformers` runs it."""
        loaded: Any = AutoModelForCausalLM.from_pretrained(self.model, dtype=self.size.dtype)
        model: LlamaForCausalLM = loaded.to(device).eval()
        return model

    def prompts(self, count: int) -> list[Prompt]:
        """Phrases of 8 to 24 tokens, each said several times, in 32 to 144 tokens."""
        values = torch.Generator().manual_seed(11)
        phrases = [
            torch.randint(0, self.size.vocabulary, (8 + 16 * i // count,), generator=values) for i in range(count)
        ]
        return [tuple(phrase.repeat(4 + i % 3).tolist()) for i, phrase in enumerate(phrases)]


def make(size: Size, root: Path) -> Subject:
    """Make a model, and build an engine that drafts by prompt lookup."""
    subject = make_model(size, root)
    model, engine = subject.model, subject.engine
    argv = ["--method", "ngram", "--runner", "eager", "--dtype", subject.dtype_name]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = build([*argv, "--target", str(model), "--output", str(engine)])
    if code:
        raise TrtspecError(f"the build of {model} failed with exit code {code}:\n{told.getvalue()}")
    return subject


def make_model(size: Size, root: Path) -> Subject:
    """Make a model; nothing is built from it."""
    subject = Subject(size, root / size.name / "model", root / size.name / "engine")
    _write_model(size, subject.model)
    return subject


def _write_model(size: Size, directory: Path) -> None:
    torch.manual_seed(4)
    config = AutoConfig.for_model(
        size.family,
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=8 * size.hidden // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=size.spread,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=size.dtype)
    model.generation_config = GenerationConfig()
    model.save_pretrained(directory)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size.vocabulary)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(directory)
