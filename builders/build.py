"""`python -m builders.build`: from flags to an engine folder.

Owns what is printed; the flags are in `builders.flags`, and the work in `builders.stages`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from builders import demo_model, stages
from builders.calibration import asked as calibration
from builders.calibration import words
from builders.checkpoint import open_checkpoint, parameter_count, stored_precision
from builders.choices import (
    EMBEDDED_DTYPES,
    EMBEDDED_QUANTIZATIONS,
    Choice,
    choose_backend,
    choose_runner,
    has_gpu,
    has_openvino,
    native_bfloat16,
)
from builders.drafts.asked import asked_draft
from builders.flags import parser
from builders.folder import check_output
from builders.methods import METHODS, check_asked, resolve
from builders.packages import require_packages
from builders.progress import silence, stop_printing, working_on
from builders.recipe import Plan, Recipe, make_plan
from builders.tensorrt_llm import asked as tensorrt_llm_flags
from builders.tensorrt_llm.launching import build_launched, check_alone, check_launch
from trtspec import speculative
from trtspec.capabilities import EMBEDDED, refusal
from trtspec.cpu import cpu_flags
from trtspec.errors import WRONG_INPUT, ConfigError, TrtspecError
from trtspec.executors.tensorrt_llm.probe import NEWER, probe
from trtspec.followed import check_followed
from trtspec.manifest import UNVERIFIED
from trtspec.openmp import be_considerate
from trtspec.ranks import Ranks, launched
from trtspec.types import Method


def main(argv: Sequence[str] | None = None) -> int:
    """Build, and return the exit code: 2 for wrong input, 1 for a failed build."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    ranks = launched()
    with silence(not ranks.leads):
        options = parser().parse_args(arguments)
    return build_launched(options, ranks, lambda: _fits(options, ranks), lambda: _build(options, arguments))


def _fits(options: argparse.Namespace, ranks: Ranks) -> bool:
    try:
        backend = choose_backend(options.backend, probe=probe, gpu=has_gpu(), demo=options.target is None)
        if backend.value != "tensorrt_llm":
            check_alone(ranks)
        elif options.method not in NEWER:
            asked = tensorrt_llm_flags.from_flags(options)
            check_launch(asked, asked.flow_for(Method(options.method)), ranks)
    except TrtspecError:
        return False
    return True


def _build(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    try:
        return _run(options, arguments)
    except BrokenPipeError:  # of `--dry-run | head`: who read it has read enough
        return stop_printing()
    except (TrtspecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, WRONG_INPUT) else 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    if options.method in NEWER:
        raise ConfigError(f"--method {options.method}: {probe().lacks(options.method)}")
    backend = choose_backend(options.backend, probe=probe, gpu=has_gpu(), demo=options.target is None)
    if backend.value == "tensorrt_llm":
        from builders.tensorrt_llm.command import run

        return run(options, backend, argv)
    _check_embedded(options)
    recipe = _recipe(options, backend)
    if not options.force and not options.dry_run and (done := stages.finished_before(recipe)):
        output, found = done
        print(f"up to date: {output} (engine {found.engine_id[:12]}); --force builds it again")
        return 0
    be_considerate()
    require_packages()
    with working_on("reading the headers of the checkpoint"):
        plan = make_plan(recipe, open_checkpoint(recipe.target))
    check_output(plan.output)
    print(describe(plan), flush=True)
    if options.dry_run:
        return 0
    built = stages.build_engine(plan, argv)
    if said := words.told(built.build.get(calibration.RECORD, {}), built.speculative):
        print(f"\n{said}")
    print(f"\nit says    {built.smoke['text']!r}{stages.smoke_note(built.smoke)}")
    print(f"engine     {built.engine_id[:12]} in {plan.output} after {built.build['seconds']} s")
    print(f"serve it   trtspec serve {plan.output}")
    return 0


def _check_embedded(options: argparse.Namespace) -> None:
    """Refuse what only the other backend has."""
    check_alone(launched())
    if (reason := refusal(Method(options.method), EMBEDDED)) is not None:
        raise ConfigError(f"--method {options.method} --backend embedded: {reason}")
    if given := tensorrt_llm_flags.given_flags(options):
        raise ConfigError(f"{given[0]} is for --backend tensorrt_llm, and this engine is built for the embedded one")
    for flag, value, known in (
        ("--dtype", options.dtype, EMBEDDED_DTYPES),
        ("--quantization", options.quantization, EMBEDDED_QUANTIZATIONS),
    ):
        if value not in known:
            raise ConfigError(f"{flag} is {value}; --backend embedded has {', '.join(known)}")


def _recipe(options: argparse.Namespace, backend: Choice) -> Recipe:
    text = options.speculative_config
    asked = None if text is None else speculative.parse(text)
    check_asked(options.method, asked)
    check_followed(asked, Method(options.method), EMBEDDED)
    given = None if options.target is None else options.target.expanduser().resolve()
    if METHODS[options.method].drafter is not None:
        require_packages()
    draft = asked_draft(
        options.method,
        options.draft,
        asked,
        given,
        {"--allow-unverified-target": options.allow_unverified_target, calibration.FLAG: options.calibration},
    )
    config = resolve(options.method, asked, draft.card.speculative if draft else {})
    METHODS[options.method].plan(config)
    if (reason := refusal(config.method, EMBEDDED, config.acceptance)) is not None:
        raise ConfigError(f"{speculative.FLAG}: {reason}")
    kind = METHODS[options.method].drafter
    return Recipe(
        model=demo_model.MODEL if given is None else given.stem if given.suffix == ".gguf" else given.name,
        target=given or demo_model.fetch(),
        output=options.output,
        backend=backend,
        runner=choose_runner(options.runner or "auto", openvino=has_openvino(), gpu=has_gpu()),
        dtype=options.dtype,
        quantization=options.quantization,
        native_bfloat16=native_bfloat16(cpu_flags(), gpu=has_gpu()),
        speculative=replace(config, model=None),
        max_context_tokens=options.max_context_tokens,
        draft=draft,
        allow_unverified_target=options.allow_unverified_target,
        calibration=calibration.resolve(
            options.calibration, options.tree_nodes, options.draft_vocabulary, kind, config
        ),
    )


def describe(plan: Plan) -> str:
    """The resolved plan for people, with the reason of each choice."""
    recipe, config = plan.recipe, plan.checkpoint.config
    method = recipe.speculative.method.value
    rows = {
        "method": f"{method}: {METHODS[method].plan(recipe.speculative)}",
        "backend": str(recipe.backend),
        "runner": str(recipe.runner),
        "dtype": str(plan.dtype),
        "quantized": recipe.quantization,
        "target": str(recipe.target),
        "model": f"{recipe.model}: {plan.checkpoint.architecture}, {parameter_count(config) / 1e6:.1f} M parameters, "
        f"{config.num_layers} layers, stored as {stored_precision(plan.checkpoint.tensors)}",
        **_describe_drafter(plan),
        **words.planned(recipe.calibration, METHODS[method].drafter, recipe.speculative),
        "packed": f"{plan.packed_bytes / 1e6:.1f} MB of weights",
        "context": f"{plan.max_context_tokens} tokens of {config.max_position_embeddings}",
        "output": str(plan.output),
    }
    return "\n".join(f"{key:<10} {value}" for key, value in rows.items())


def _describe_drafter(plan: Plan) -> Mapping[str, str]:
    draft, source = plan.recipe.draft, plan.drafter
    if draft is None or source is None:
        return {}
    if plan.matched_by is None:
        shown = "compared with this target once that is packed"
    else:
        shown = "NOT VERIFIED" if plan.matched_by == UNVERIFIED else f"shown by the {plan.matched_by}"
    longest = source.config.decoder.max_position_embeddings if source.config.decoder else plan.max_context_tokens
    pause = f"; pauses where a text is longer than {longest} tokens" if longest < plan.max_context_tokens else ""
    return {
        "drafter": f"{draft.path} ({draft.format}), {plan.drafter_bytes / 1e6:.1f} MB{pause}",
        "made for": f"{draft.card.target_name or 'no target by name'}; that it is this one is {shown}",
    }


if __name__ == "__main__":
    sys.exit(main())
