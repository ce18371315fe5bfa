"""`python -m builders.build --backend tensorrt_llm`: from flags to a plan, and from a plan to an engine folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders import demo_model, stages
from builders.architectures import ARCHITECTURES
from builders.checkpoint import Checkpoint, open_checkpoint, stored_precision
from builders.choices import Choice
from builders.drafts.asked import asked_draft
from builders.methods import METHODS, check_asked, resolve
from builders.packages import require_packages
from builders.progress import working_on
from builders.recipe import context_tokens
from builders.tensorrt_llm import artifacts
from builders.tensorrt_llm.artifacts import Collected
from builders.tensorrt_llm.asked import Asked, from_flags
from builders.tensorrt_llm.compiled import Compiled, plan_compiled
from builders.tensorrt_llm.fitting import check_fits, check_kernels
from builders.tensorrt_llm.launching import check_launch
from builders.tensorrt_llm.lines import lines
from builders.tensorrt_llm.order import Order
from trtspec import speculative
from trtspec.capabilities import ENGINE, PYTORCH, refusal
from trtspec.errors import ConfigError, MissingDependency
from trtspec.executors.tensorrt_llm.probe import INSTALL, PINNED, probe, visible_gpus
from trtspec.followed import check_followed, followed
from trtspec.manifest import Manifest
from trtspec.ranks import launched
from trtspec.speculative import TYPICAL, SpeculativeConfig
from trtspec.types import Method

if TYPE_CHECKING:
    from builders.drafts.source import DraftSource, OpenedDraft
    from builders.tensorrt_llm.stages import Drafter

_NEEDED = ("torch", "transformers", "safetensors")
"""TensorRT-LLM brings these, and no more of what the other backend needs."""
_WORDS = {"F16": "float16", "BF16": "bfloat16"}
_EMBEDDED_FLAGS = ("runner", "calibration", "tree_nodes", "draft_vocabulary")
"""Flags of the other backend; None where they were not given."""


def run(options: argparse.Namespace, backend: Choice, argv: Sequence[str]) -> int:
    """Plan, print, and build unless it is a dry run."""
    _check_flags(options)
    require_packages(_NEEDED)
    method, config = Method(options.method), _asked(options)
    asked = from_flags(options)
    flow = asked.flow_for(method)
    check_followed(config, method, flow)
    check_launch(asked, flow, launched())
    print(f"# backend {backend}, flow {flow}: {METHODS[options.method].summary}")
    if flow == PYTORCH:
        return _collect(options, asked, config, argv)
    planned, order, drafter = _compiled(options, asked, config)
    if _is_done(order, options):
        return 0
    print("\n".join(lines(planned.arguments())), flush=True)
    if options.dry_run:
        return 0
    if warning := check_fits(planned, visible_gpus()):
        print(f"warning: {warning}", file=sys.stderr)
    check_kernels(planned, visible_gpus())
    _check_installed()
    from builders.tensorrt_llm.stages import build_compiled

    return _told(build_compiled(planned, order, drafter, argv), order, _serve(order, asked))


def _serve(order: Order, asked: Asked) -> str:
    size = asked.tp * asked.pp
    return f"{f'mpirun -n {size} ' if size > 1 else ''}trtspec serve {order.place}"


def _check_installed() -> None:
    """What a dry run does without."""
    found = probe()
    if (missing := found.reason) is not None:
        raise MissingDependency(f"--backend tensorrt_llm is {missing}; --dry-run needs neither")
    if found.version != PINNED:
        raise MissingDependency(f"tensorrt-llm is {found.version} and this release is for {PINNED}; {INSTALL}")


def _collect(options: argparse.Namespace, asked: Asked, config: Mapping[str, Any] | None, argv: Sequence[str]) -> int:
    for name in ("max_draft_len", "workers"):
        if (given := getattr(asked, name)) != getattr(Asked(), name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is {given} and --flow pytorch compiles nothing; leave it out, or build "
                "with --flow engine"
            )
    planned = _collected(options, asked, config)
    order = _order(options, planned.speculative, asked, planned.target.path, planned.dtype, planned.max_seq_len)
    order = replace(order, draft=None if planned.draft is None else planned.draft.path, flow=PYTORCH)
    for note in planned.notes:
        print(f"# {note}")
    if _is_done(order, options):
        return 0
    print("\n".join(lines(planned.arguments())), flush=True)
    if options.dry_run:
        return 0
    _check_installed()
    from builders.tensorrt_llm.collecting import build_collected

    return _told(build_collected(planned, order, argv), order, f"trtspec serve {order.place}")


def _is_done(order: Order, options: argparse.Namespace) -> bool:
    """Whether the same folder was built before, and that is told."""
    if options.force or options.dry_run or (done := stages.finished_before(order)) is None:
        return False
    print(f"up to date: {done[0]} (engine {done[1].engine_id[:12]}); --force builds it again")
    return True


def _told(built: Manifest, order: Order, serve: str) -> int:
    print(f"\nengine     {built.engine_id[:12]} in {order.place} after {built.build['seconds']} s")
    if text := built.smoke.get("text"):
        print(f"it says    {text!r}")
    print(f"serve it   {serve}")
    return 0


def _check_flags(options: argparse.Namespace) -> None:
    for name in _EMBEDDED_FLAGS:
        if (given := getattr(options, name)) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {given}, and only --backend embedded has it; leave it out")


def _asked(options: argparse.Namespace) -> Mapping[str, Any] | None:
    text = options.speculative_config
    asked = None if text is None else speculative.parse(text)
    check_asked(options.method, asked)
    return asked


def _compiled(
    options: argparse.Namespace, asked: Asked, config: Mapping[str, Any] | None
) -> tuple[Compiled, Order, Drafter | None]:
    given = _folder(options.target)
    draft = asked_draft(
        options.method,
        options.draft,
        config,
        given,
        {"--allow-unverified-target": options.allow_unverified_target},
    )
    suited = followed(draft.card.speculative, Method(options.method), ENGINE) if draft else {}
    settled = _settled(options.method, config, suited, ENGINE)
    with working_on("reading the headers of the checkpoint"):
        target = open_checkpoint(given or demo_model.fetch())
        source = None if draft is None else draft.source(target)
    drafter = None if draft is None or source is None else _matched(draft, source, options)
    compiled = plan_compiled(
        target,
        source,
        settled,
        asked,
        dtype=_dtype(options.dtype, target),
        quantization=options.quantization,
        max_seq_len=context_tokens(options.max_context_tokens, target),
    )
    planned = compiled.target
    order = _order(options, settled, asked, target.path, planned.dtype, planned.max_seq_len)
    return compiled, replace(order, draft=None if draft is None else draft.path), drafter


def _matched(draft: OpenedDraft, source: DraftSource, options: argparse.Namespace) -> Drafter:
    from builders.drafts.checks import early_match
    from builders.tensorrt_llm.stages import Drafter

    return Drafter(draft, source, early_match(draft, source, allow_unverified=options.allow_unverified_target))


def _order(
    options: argparse.Namespace, config: SpeculativeConfig, asked: Asked, target: Path, dtype: str, context: int
) -> Order:
    given = options.target
    return Order(
        model=demo_model.MODEL if given is None else target.stem if target.suffix == ".gguf" else target.name,
        target=target,
        draft=None,
        flow=ENGINE,
        dtype=dtype,
        quantization=options.quantization,
        max_context_tokens=context,
        speculative=config,
        asked=asked,
        allow_unverified_target=options.allow_unverified_target,
        output=options.output,
    )


def _settled(method: str, asked: Mapping[str, Any] | None, suited: Mapping[str, Any], flow: str) -> SpeculativeConfig:
    config = replace(resolve(method, asked, suited), model=None)
    if (reason := refusal(config.method, flow, config.acceptance)) is not None:
        raise ConfigError(f"{speculative.FLAG}: {reason}")
    if config.acceptance == TYPICAL and not config.typical_threshold < 1:
        raise ConfigError(f"{speculative.FLAG}: typical_threshold is 1 and EAGLE engines take 0 up to less than 1")
    return config


def _dtype(asked: str, target: Checkpoint) -> str:
    """The type of the weights: the checkpoint's, where it is a half one."""
    return _WORDS.get(stored_precision(target.tensors), "bfloat16") if asked == "auto" else asked


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
    settled = _settled(options.method, config, suited, PYTORCH)
    draft = _draft_folder(options, config)
    if draft is not None and method is Method.EAGLE3:
        _check_eagle3(options, target, draft, settled)
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


def _check_eagle3(options: argparse.Namespace, target: artifacts.Model, draft: Path, config: SpeculativeConfig) -> None:
    """What can be seen of it from headers; of architectures that are not ours, only that it is meant."""
    if target.architecture in ARCHITECTURES:
        from builders.drafts.checks import check_source, early_match
        from builders.drafts.choose import choose_draft

        checkpoint, opened = open_checkpoint(target.path), choose_draft("eagle3", draft, target.path)
        source = opened.source(checkpoint)
        check_source(source, checkpoint.config, config)
        early_match(opened, source, allow_unverified=options.allow_unverified_target)
    elif not options.allow_unverified_target:
        raise ConfigError(
            f"--draft {draft}: nothing shows that it was made for a target of {target.architecture}; give "
            "--allow-unverified-target if you know it"
        )


def _context(asked: int | None, target: artifacts.Model) -> int:
    most = target.max_positions
    if asked is not None and not 2 <= asked <= most:
        raise ConfigError(
            f"--max-context-tokens is {asked} and the model's max_position_embeddings is {most}; give 2 to {most}"
        )
    return asked or most


def _folder(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().resolve()
