"""What both flows of TensorRT-LLM have in common when an engine folder is opened: checks, and what is told of it."""

from __future__ import annotations

from trtspec.config import EngineOptions
from trtspec.errors import EngineFolderError, MissingDependency
from trtspec.executors.tensorrt_llm.engine_spec import FolderSpec
from trtspec.executors.tensorrt_llm.executor_arguments import choices
from trtspec.executors.tensorrt_llm.probe import INSTALL, PINNED, is_installed
from trtspec.manifest import Manifest
from trtspec.speculative import TYPICAL, SpeculativeConfig
from trtspec.types import EngineInfo, Limits, Method, OutputLaw

_OF_EMBEDDED = ("max_pass_tokens", "kv_block_tokens", "threads", "device", "cuda_graphs")
"""Options that TensorRT-LLM settles by itself, or when an engine is built."""


def check_options(options: EngineOptions) -> None:
    """Refuse options that would change nothing here."""
    options.refuse(_OF_EMBEDDED, "embedded engines", "TensorRT-LLM")


def check_version(folder: FolderSpec) -> None:
    if not is_installed():
        raise MissingDependency(f"this engine needs TensorRT-LLM {folder.version}, which is not installed; {INSTALL}")
    import tensorrt_llm

    if tensorrt_llm.__version__ != folder.version:
        raise EngineFolderError(
            f"the engine was built with TensorRT-LLM {folder.version} and {tensorrt_llm.__version__} is installed; "
            f"build it again, or install {PINNED}"
        )


def nodes_by_depth(speculative: SpeculativeConfig) -> tuple[int, ...]:
    """How many nodes every draft of the engine has at each depth; for windows and growing trees, at least one."""
    if speculative.method is Method.NONE:
        return ()
    if speculative.dynamic_tree or speculative.method is Method.LOOKAHEAD:
        return (1,) * speculative.draft_tokens
    depths = [len(path) for path in choices(speculative)]
    return tuple(depths.count(depth) for depth in range(1, max(depths) + 1))


def _law(speculative: SpeculativeConfig) -> OutputLaw:
    """Drafts that the runtime verifies have met no test of ours but over a double."""
    if speculative.acceptance == TYPICAL:
        return OutputLaw.TYPICAL
    return OutputLaw.EXACT if speculative.method is Method.NONE else OutputLaw.UNPROVEN


def engine_info(
    manifest: Manifest,
    flow: str,
    speculative: SpeculativeConfig,
    *,
    max_batch_size: int,
    max_pass_tokens: int,
    pool_tokens: int,
) -> EngineInfo:
    """What is served. A pool of unknown size counts as one context."""
    context = manifest.max_context_tokens
    return EngineInfo(
        model=manifest.model,
        engine_id=manifest.engine_id,
        engine_facts=manifest.facts,
        backend=manifest.backend,
        method=speculative.method,
        architecture=manifest.architecture,
        dtype=manifest.dtype,
        quantization=manifest.quantization,
        limits=Limits(
            max_context_tokens=context,
            max_batch_size=max_batch_size,
            max_draft_tokens=speculative.draft_tokens,
            max_tree_nodes=speculative.draft_nodes,
            max_pass_tokens=max_pass_tokens,
            kv_cache_tokens=pool_tokens or context,
            vocabulary_size=manifest.vocabulary_size,
        ),
        output_law=_law(speculative),
        default_draft_tokens=speculative.draft_tokens,
        acceptance=speculative.acceptance,
        flow=flow,
        derived_statistics=True,
        unverified_target=manifest.drafter is not None and manifest.drafter.unverified,
    )
