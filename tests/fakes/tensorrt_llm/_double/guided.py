"""Guided decoding of plain engines: the runtime's own compiler, over the tokens that the executor was told."""

from __future__ import annotations

from typing import Any

import xgrammar
from tensorrt_llm._double.errors import assertion
from tensorrt_llm._double.sampling import Fatal, Refused

from trtspec.executors.guides.grammars import CompiledGuide
from trtspec.guides import Guide, GuideKind


def guide_of(request: Any, config: Any, vocabulary: int) -> CompiledGuide | None:
    """What guidedDecoder.cpp makes of a request; what it throws fails the step, for all that are in it."""
    params = request.guided_decoding_params
    if params is None:
        return None
    if config is None:
        raise Refused(assertion("Request is specified with guided decoding, but guided decoding is not set up"))
    if config.backend.name != "XGRAMMAR":
        raise Fatal(assertion("LLGuidance is not supported for guided decoding in C++ runtime."))
    kind, text = params.guide_type.name, params.guide
    if kind == "STRUCTURAL_TAG":
        raise Fatal(assertion("the runtime would ignore a structural tag"))
    metadata = xgrammar.TokenizerInfo._detect_metadata_from_hf(config.tokenizer_str)
    tokens = xgrammar.TokenizerInfo(
        config.encoded_vocab[:vocabulary],
        metadata["vocab_type"],
        vocab_size=vocabulary,
        stop_token_ids=config.stop_token_ids,
        add_prefix_space=metadata["add_prefix_space"],
    )
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=1)
    try:
        grammar = {
            "JSON": lambda: compiler.compile_builtin_json_grammar(),
            "JSON_SCHEMA": lambda: compiler.compile_json_schema(text),
            "REGEX": lambda: compiler.compile_grammar(xgrammar.Grammar.from_regex(text)),
            "EBNF_GRAMMAR": lambda: compiler.compile_grammar(xgrammar.Grammar.from_ebnf(text)),
        }[kind]()
    except RuntimeError as error:
        raise Fatal(assertion(str(error))) from error
    return CompiledGuide(Guide(GuideKind.GRAMMAR, text or ""), grammar, tokens)
