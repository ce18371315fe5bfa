"""What `ExecutorConfig` is given for each compiled engine of a folder, as plain JSON values.

A dry run of the builder prints them and the executor passes them, so that both say the same. Enums are their members'
names; only what differs from TensorRT-LLM's default, or is a decision of ours, is set.
"""

from __future__ import annotations

from typing import Any

from trtspec.executors.tensorrt_llm.engine_spec import (
    DRAFT,
    EAGLE,
    EXTERNAL,
    LOOKAHEAD,
    MEDUSA,
    NONE,
    TOP_LOGITS,
    EngineSpec,
    FolderSpec,
)
from trtspec.speculative import TYPICAL, WINDOWS, SpeculativeConfig

_CHUNKED = (NONE, EAGLE)
"""Modes whose prompts may come in chunks: upstream tests it with these."""
_POOL_FRACTION = 0.9
_MOST_QUEUED = 1024
"""Beyond, `enqueue_requests` refuses at once; a server's own bound is lower."""
_MOST_ITERATIONS = 1000
"""Iterations whose statistics wait to be read; they are read several times a second."""


def executor_arguments(name: str, folder: FolderSpec, speculative: SpeculativeConfig) -> dict[str, Any]:
    """The arguments for one of the folder's engines."""
    engine = folder.engines[name]
    return {
        "max_beam_width": 1,
        "max_batch_size": folder.max_batch_size,
        "batching_type": "INFLIGHT",
        "enable_chunked_context": takes_chunks(engine),
        "kv_cache_config": _kv_cache(name, engine),
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        "decoding_config": _decoding(engine.mode, speculative),
        # Attention in several blocks does not know the masks of draft trees.
        "extended_runtime_perf_knob_config": {"multi_block_mode": engine.mode not in (MEDUSA, EAGLE)},
        "additional_model_outputs": (
            [{"name": TOP_LOGITS, "gather_context": True}] if TOP_LOGITS in engine.outputs else None
        ),
        "parallel_config": (
            {"communication_type": "MPI", "communication_mode": "LEADER"} if folder.world_size > 1 else None
        ),
        "max_queue_size": _MOST_QUEUED,
        "iter_stats_max_iterations": _MOST_ITERATIONS,
    }


def takes_chunks(engine: EngineSpec) -> bool:
    """Whether a prompt may come in parts; otherwise it is one pass."""
    return engine.mode in _CHUNKED and engine.paged_context


def _kv_cache(name: str, engine: EngineSpec) -> dict[str, Any]:
    """A draft engine opens first, with a pool for a full batch; its target then takes its share of what remains.

    Prompts share blocks in plain engines, and where rounds have to find the text before them: whether the other modes
    restore all their state from a block that another request filled is not documented.
    """
    paired = name == DRAFT
    return {
        "enable_block_reuse": engine.mode in (NONE, EXTERNAL) and engine.paged_context,
        # A position that is found in a block has no row of additional outputs: rounds need those of the text's end.
        "enable_partial_reuse": TOP_LOGITS not in engine.outputs,
        "free_gpu_memory_fraction": None if paired else _POOL_FRACTION,
        "max_tokens": engine.max_batch_size * engine.max_seq_len if paired else None,
    }


def _decoding(mode: str, config: SpeculativeConfig) -> dict[str, Any] | None:
    if mode == MEDUSA:
        return {"decoding_mode": "Medusa", "medusa_choices": choices(config)}
    if mode == LOOKAHEAD:
        return {"decoding_mode": "Lookahead", "lookahead_decoding_config": [getattr(config, key) for key in WINDOWS]}
    if mode == EAGLE:
        return {"decoding_mode": "Eagle", "eagle_config": _eagle(config)}
    return None


def _eagle(config: SpeculativeConfig) -> dict[str, Any]:
    """Greedy or not, and which tree, holds for all requests of an executor."""
    typical = config.acceptance == TYPICAL
    return {
        "eagle_choices": None if config.dynamic_tree else choices(config),
        "greedy_sampling": not typical,
        "posterior_threshold": config.typical_threshold if typical else None,
        "use_dynamic_tree": config.dynamic_tree,
        "dynamic_tree_max_topK": config.tree_width if config.dynamic_tree else None,
    }


def choices(config: SpeculativeConfig) -> list[list[int]]:
    """Every node of the tree as a path; a chain is the best child of the best child."""
    tree = config.tree or tuple((0,) * depth for depth in range(1, config.draft_tokens + 1))
    return [list(path) for path in tree]
