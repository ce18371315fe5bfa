"""Guides for compiled engines: what an executor is told of the tokens, and a request of its guide, in plain values.

The runtime compiles guides itself, inside a step, where one that makes no sense would end all requests. So they have
been tried before they come here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtspec import generation
from trtspec.errors import Unsupported
from trtspec.executors.tensorrt_llm.engine_spec import NONE, TARGET, TOP_LOGITS, FolderSpec
from trtspec.generation import TOKENIZER
from trtspec.guides import GuideKind
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method, Request

FEATURE = "guided_decoding"
_TYPES = {
    GuideKind.JSON_OBJECT: "JSON",
    GuideKind.JSON_SCHEMA: "JSON_SCHEMA",
    GuideKind.REGEX: "REGEX",
    GuideKind.GRAMMAR: "EBNF_GRAMMAR",
    GuideKind.CHOICE: "EBNF_GRAMMAR",
}
"""What the runtime has; of a structural tag it would make nothing, and mask nothing."""


def lacking(folder: FolderSpec, speculative: SpeculativeConfig) -> str | None:
    """Why a folder that is served with method none follows no guides; None where it does, or has another method."""
    target = folder.engines[TARGET]
    if speculative.method is not Method.NONE:
        return None
    if target.mode != NONE or TOP_LOGITS in target.outputs:
        return "this engine was built to verify drafts, and answers in rounds that know no guides; build one with none"
    if folder.world_size > 1:
        return f"this engine has {folder.world_size} ranks, and guides are followed on one GPU only"
    return None


def config_arguments(directory: Path) -> dict[str, Any]:
    """Of `GuidedDecodingConfig`. Special tokens spell nothing, so that no guide emits one."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory / TOKENIZER, local_files_only=True)
    spelt = [""] * len(tokenizer)
    for token, id_ in tokenizer.get_vocab().items():
        added = tokenizer.added_tokens_decoder.get(id_)
        if id_ < len(spelt) and not (added and added.special):
            spelt[id_] = token
    return {
        "backend": "XGRAMMAR",
        "encoded_vocab": spelt,
        "tokenizer_str": tokenizer.backend_tokenizer.to_str(),
        "stop_token_ids": sorted(generation.read(directory).eos_ids),
    }


def guide_arguments(request: Request) -> dict[str, Any]:
    """Of `GuidedDecodingParams`. Raises `Unsupported` for what the runtime would ignore or break at."""
    guide = request.guide
    assert guide is not None
    if guide.kind not in _TYPES:
        raise _unsupported("structural tags are unknown to the runtime of compiled engines")
    if not request.eos_ids:
        raise _unsupported("without an end-of-text token, as under ignore_eos, nothing could follow a complete text")
    if request.sampling.min_tokens:
        raise _unsupported(
            f"min_tokens is {request.sampling.min_tokens}, and held back from its end a complete text could not go on"
        )
    return {"guide_type": _TYPES[guide.kind], "guide": guide.text or None}


def _unsupported(reason: str) -> Unsupported:
    return Unsupported(f"guided_decoding: {reason}; leave it out, or use the embedded backend", feature=FEATURE)
