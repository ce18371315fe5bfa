"""`python -m builders.build --backend tensorrt_llm`: from flags to a plan, and from a plan to an engine folder."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders import demo_model, stages
from builders.checkpoint import Checkpoint, is_full_precision, open_checkpoint, stored_precision
from builders.choices import Choice
from builders.drafts.asked import asked_draft
from builders.methods import METHODS, check_asked, resolve
from builders.progress import working_on
from builders.recipe import context_tokens
from builders.tensorrt_llm import artifacts
from builders.tensorrt_llm.artifacts import Collected
from builders.tensorrt_llm.asked import Asked, from_flags
from builders.tensorrt_llm.compiled import Compiled, plan_compiled
from builders.tensorrt_llm.lines import lines
from builders.tensorrt_llm.settings import check_followed, followed
from trtspec import speculative
from trtspec.capabilities import ENGINE
from trtspec.errors import ConfigError, MissingDependency
from trtspec.executors.tensorrt_llm.probe import INSTALL, PINNED, probe
from trtspec.speculative import TYPICAL, SpeculativeConfig
from trtspec.types import Method

_WORDS = {"F16": "float16", "BF16": "bfloat16"}
_EMBEDDED_FLAGS = {"runner": "auto", "calibration": None, "tree_nodes": None, "draft_vocabulary": None}
"""Flags of the other backend, with the value that asks for nothing."""


def run(options: argparse.Namespace, backend: Choice, argv: Sequence[str]) -> int:
    """Plan, print, and build unless it is a dry run."""
    _check_flags(options)
    stages.require_packages()
    method, config = Method(options.method), _asked(options)
    asked = from_flags(options)
    flow = asked.flow_for(method)
    check_followed(config, method, flow)
    print(f"# backend {backend}, flow {flow}: {METHODS[options.method].summary}")
    planned = _compiled(options, asked, config) if flow == ENGINE else _collected(options, asked, config)
    print("\n".join(lines(planned.arguments())), flush=True)
    if options.dry_run:
        return 0
    found = probe()
    if (missing := found.reason) is not None:
        raise MissingDependency(f"--backend tensorrt_llm is {missing}; --dry-run needs neither")
    if found.version != PINNED:
        raise MissingDependency(
            f"tensorrt-llm {found.version} is installed and this release is for {PINNED}; {INSTALL}"
        )
    raise ConfigError("--backend tensorrt_llm: building is not in this release yet; use --dry-run")


def _check_flags(options: argparse.Namespace) -> None:
    for name, nothing in _EMBEDDED_FLAGS.items():
        if (given := getattr(options, name)) != nothing:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {given}, and only --backend embedded has it; leave it out")


def _asked(options: argparse.Namespace) -> Mapping[str, Any] | None:
    text = options.speculative_config
    asked = None if text is None else speculative.parse(text)
    check_asked(options.method, asked)
    return asked


def _compiled(options: argparse.Namespace, asked: Asked, config: Mapping[str, Any] | None) -> Compiled:
    given = _folder(options.target)
    draft = asked_draft(
        options.method,
        options.draft,
        config,
        given,
        {"--allow-unverified-target": options.allow_unverified_target},
    )
    suited = followed(draft.card.speculative, Method(options.method), ENGINE) if draft else {}
    settled = _settled(options.method, config, suited)
    with working_on("reading the headers of the checkpoint"):
        target = open_checkpoint(given or demo_model.fetch())
        source = None if draft is None else draft.source(target)
    if draft is not None and source is not None:
        from builders.drafts.checks import early_match

        early_match(draft, source, allow_unverified=options.allow_unverified_target)
    return plan_compiled(
        target,
        source,
        settled,
        asked,
        dtype=_dtype(options.dtype, target),
        quantization=options.quantization,
        max_seq_len=context_tokens(options.max_context_tokens, target),
    )


def _settled(method: str, asked: Mapping[str, Any] | None, suited: Mapping[str, Any]) -> SpeculativeConfig:
    config = replace(resolve(method, asked, suited), model=None)
    if config.acceptance == TYPICAL and not config.typical_threshold < 1:
        raise ConfigError(f"{speculative.FLAG}: typical_threshold is 1 and EAGLE engines take 0 up to less than 1")
    return config


def _dtype(asked: str, target: Checkpoint) -> str:
    """The type of the weights: the checkpoint's, where it is a half one."""
    stored = stored_precision(target.tensors)
    if asked == "auto":
        return _WORDS.get(stored, "float32" if is_full_precision(stored) else "bfloat16")
    return asked


def _collected(options: argparse.Namespace, asked: Asked, config: Mapping[str, Any] | None) -> Collected:
    method, given = Method(options.method), _folder(options.target)
    if given is None:
        raise ConfigError("--flow pytorch serves Hugging Face folders as they are; give one with --target DIR")
    if options.quantization != "none":
        raise ConfigError(
            f"--quantization is {options.quantization} and the pytorch flow serves checkpoints as they are; give one "
            "that is quantized, or build with --flow engine"
        )
    target = artifacts.open_model(given, "--target")
    artifacts.check_parallel(method, asked, target)
    suited = {"num_speculative_tokens": artifacts.mtp_depth(target)} if method is Method.MTP else _USUAL.get(method, {})
    settled = _settled(options.method, config, suited)
    draft = _draft_folder(options, config)
    return Collected(
        settled,
        asked,
        target,
        None if draft is None else artifacts.open_model(draft, "--draft"),
        dtype=target.dtype if options.dtype == "auto" else options.dtype,
        max_seq_len=_context(options.max_context_tokens, target),
    )


_USUAL: Mapping[Method, Mapping[str, Any]] = {Method.EAGLE3: {"num_speculative_tokens": 5}}
"""Depth where none is asked for and drafters tell none."""


def _draft_folder(options: argparse.Namespace, config: Mapping[str, Any] | None) -> Path | None:
    """The drafter's folder: named for methods whose drafter is one, and for no other."""
    named = (config or {}).get("model")
    given = options.draft if named is None else Path(named)
    if Method(options.method) in (Method.EAGLE3, Method.DRAFT_MODEL):
        if given is None:
            raise ConfigError(f"--method {options.method} --flow pytorch needs a drafter; give --draft DIR")
        return _folder(given)
    if given is not None:
        raise ConfigError(f"--draft is {given} and --method {options.method} --flow pytorch takes none; leave it out")
    return None


def _context(asked: int | None, target: artifacts.Model) -> int:
    most = target.max_positions
    if asked is not None and not 2 <= asked <= most:
        raise ConfigError(
            f"--max-context-tokens is {asked} and the model's max_position_embeddings is {most}; give 2 to {most}"
        )
    return asked or most


def _folder(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().resolve()
