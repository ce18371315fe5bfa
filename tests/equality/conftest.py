"""Engines and references that are expensive: made once for all equality tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from builders import demo_model
from builders.build import main
from tests.models import tiny_llama

PROMPTS = Path(__file__).parents[2] / "scripts" / "bench" / "prompts.jsonl"


@dataclass(frozen=True)
class Subject:
    """An engine folder, and what `transformers` says about the same weights."""

    directory: Path
    prompts: list[tuple[int, ...]]
    eos_ids: frozenset[int]
    model: PreTrainedModel
    threads: int = 0
    """A tiny model is slower with two."""

    def references(self, max_tokens: int) -> list[list[int]]:
        """`transformers.generate`, greedy, all prompts in one batch padded on the left."""
        width = max(len(prompt) for prompt in self.prompts)
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in self.prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in self.prompts])
        with torch.inference_mode():
            output = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=sorted(self.eos_ids),
                pad_token_id=0,
            )
        return [self._until_eos(row) for row in output[:, width:].tolist()]

    def _until_eos(self, ids: list[int]) -> list[int]:
        end = next((index for index, token in enumerate(ids) if token in self.eos_ids), len(ids) - 1)
        return ids[: end + 1]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The demo model in float32 on the reference runner, with the sixteen prompts of the benchmark."""
    return _demo_subject(tmp_path_factory.mktemp("demo"), "eager")


@pytest.fixture(scope="session")
def compiled_demo(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The same, compiled."""
    return _demo_subject(tmp_path_factory.mktemp("compiled-demo"), "openvino")


def _demo_subject(root: Path, runner: str) -> Subject:
    gguf = demo_model.fetch()
    directory = root / "engine"
    argv = ["--method", "ngram", "--dtype", "float32", "--output", str(directory)]
    assert main([*argv, "--runner", runner]) == 0
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    prompts = [
        tuple(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        )
        for text in texts
    ]
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
    return Subject(directory, prompts, _eos_ids(directory), model)


@pytest.fixture(scope="session", params=["tied", "untied with llama3 rope"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A random Llama in float32; random text hardly ever ends by itself."""
    untied = request.param != "tied"
    scaling = {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    root = tmp_path_factory.mktemp("tiny")
    folder = tiny_llama(
        root / "model", tie=not untied, rope_scaling=scaling if untied else None, kv_heads=1 if untied else 2, seed=4
    )
    return random_subject(root, folder)


def random_subject(root: Path, folder: Path, *options: str, runner: str = "eager") -> Subject:
    """A random model with prompts of random tokens; the fourth repeats itself."""
    directory = root / "engine"
    argv = ["--method", "ngram", "--dtype", "float32", "--target", str(folder), "--output", str(directory)]
    assert main([*argv, "--runner", runner, *options]) == 0
    values = torch.Generator().manual_seed(11)
    lengths = [1, 2, 3, 8, 15, 16, 17, 31, 33, 64, 65, 100, 5, 7, 40, 90]
    prompts = [tuple(torch.randint(3, 260, (length,), generator=values).tolist()) for length in lengths]
    prompts[3] = (50, 60, 70, 50, 60, 70, 50, 60)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return Subject(directory, prompts, _eos_ids(directory), model, threads=1)


def _eos_ids(directory: Path) -> frozenset[int]:
    return frozenset(json.loads((directory / "generation.json").read_text())["eos_token_ids"])
