"""What the executor's constructor checks, and the engine that it opens for each mode.

The checks are those of executorImpl.cpp and trtGptModelInflightBatching.cpp. Which tree is drafted, and how deep, never
changes greedy text; a Medusa engine without choices, which upstream leaves to its first request, is refused here.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm._double.engine_folder import EngineFolder
from tensorrt_llm._double.errors import check
from tensorrt_llm._double.machine import Machine, Plan

_MOST_NODES = 64
_STATIC = (
    "Static batching type is deprecated. "
    "Please use in-flight batching with CapacitySchedulerPolicy::kSTATIC_BATCH instead."
)
_CHUNKED = "Chunked context requires context FMHA, paged kv_cache and paged context FMHA all enabled at the same time."
_REUSE = "KV cache block reuse must be enabled for speculative decoding target model"
_DEPTH = "EAGLE-1 requires Eagle-tree depth being equal to the the number of build-time EAGLE layers."
Choices = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Opened:
    """A running engine as the admission of requests must know it."""

    folder: EngineFolder
    config: Any
    machine: Machine
    max_batch_size: int
    step_drafts: int
    """Draft tokens that a step counts: at most the depth that was built."""
    fatal: str | None
    """What the first step with any request fails with."""

    @property
    def vocabulary(self) -> int:
        """Ids that the machine's engine emits."""
        return self.machine.limits.vocabulary_size

    @property
    def max_input_len(self) -> int:
        """Longest prompt: see what limits it."""
        build, longest = self.folder.build, self.folder.build["max_seq_len"] - 1
        if self.config.enable_chunked_context:
            return int(longest)
        if self.folder.plugins["context_fmha"] and self.folder.plugins["remove_input_padding"]:
            return int(min(longest, self.config.max_num_tokens or longest, build["max_num_tokens"]))
        return int(build["max_input_len"])

    @property
    def block_reuse(self) -> bool:
        """Asked for, and possible with this engine."""
        able = self.folder.plugins["use_paged_context_fmha"] and not self.folder.build["gather_context_logits"]
        return bool(self.config.kv_cache_config.enable_block_reuse and able)

    @property
    def partial_reuse(self) -> bool:
        return bool(self.config.kv_cache_config.enable_partial_reuse)


def open_folder(path: Path, model_type: Any, config: Any) -> Opened:
    """Raises RuntimeError for what cannot run."""
    check(model_type.name == "DECODER_ONLY", "the double runs decoders alone")
    folder = EngineFolder(path)
    _check_parallel(folder, config.parallel_config)
    check(config.batching_type.name != "STATIC", _STATIC)
    _check_sizes(folder, config)
    plugins = folder.plugins
    paged = plugins["context_fmha"] and plugins["use_paged_context_fmha"] and folder.build["kv_cache_type"] == "paged"
    check(paged or not config.enable_chunked_context, _CHUNKED)
    external = folder.mode == "DRAFT_TOKENS_EXTERNAL"
    shared = paged and config.kv_cache_config.enable_block_reuse and not folder.build["gather_context_logits"]
    check(shared or not external, _REUSE)
    fatal = None
    speculative: dict[str, Any] = {"method": "none"}
    counted = 0
    if folder.speculative:
        speculative, nodes, depth, fatal = _SETTINGS[folder.mode](folder, config.decoding_config)
        counted = min(nodes, depth)
    batch = config.max_batch_size or folder.build["max_batch_size"]
    with tempfile.TemporaryDirectory() as temporary:
        draft = _drafter(folder, Path(temporary) / "drafter") if speculative["method"] in _DRAFTERS else None
        machine = Machine.open(Plan(folder.hugging_face, speculative, batch, folder.build["max_num_tokens"], draft))
    return Opened(folder, config, machine, batch, counted, fatal)


def _check_parallel(folder: EngineFolder, parallel: Any) -> None:
    if parallel is None:
        return
    needs = "OrchestratorConfig must be set when using ORCHESTRATOR communication mode."
    check(parallel.communication_mode.name == "LEADER", needs)
    for name in ("device_ids", "participant_ids"):
        given = getattr(parallel, name)
        fits = given is None or len(given) == folder.world_size
        check(fits, f"{name} has {len(given or ())} entries, and the engine has {folder.world_size} ranks")


def _check_sizes(folder: EngineFolder, config: Any) -> None:
    batch, most = config.max_batch_size or 1, folder.build["max_batch_size"]
    check(batch <= most, f"Runtime configured max batch size ({batch}) must not exceed engine max batch size ({most})")
    width, widest = config.max_beam_width, folder.build["max_beam_width"]
    check(
        width <= widest, f"Runtime configured max beam width ({width}) must not exceed engine max beam width ({widest})"
    )
    check(folder.mode != "EAGLE" or width == 1, "EAGLE does not support beam search")


Settings = tuple[dict[str, Any], int, int, str | None]
"""Our speculative configuration, the nodes and the depth of a draft, and what the first step fails with."""


def _medusa(folder: EngineFolder, decoding: Any) -> Settings:
    check(decoding is not None and decoding.medusa_choices is not None, "medusa_choices have to be set for Medusa")
    heads = folder.pretrained["num_medusa_heads"]
    depth = _check_choices(folder, decoding.medusa_choices)
    check(depth <= heads, f"Medusa choices are {depth} deep, and there are {heads} heads")
    config = {"method": "medusa", "num_speculative_tokens": depth, "tree": _ordered(decoding.medusa_choices)}
    return config, len(decoding.medusa_choices), heads, None


def _eagle(folder: EngineFolder, decoding: Any) -> Settings:
    """Static choices as they are, a chain where there are none; or a tree that grows."""
    layers, non_leaves = folder.pretrained["num_eagle_layers"], folder.pretrained["max_non_leaves_per_layer"]
    eagle = decoding.eagle_config if decoding is not None else None
    config: dict[str, Any] = {"method": "eagle", "num_speculative_tokens": layers}
    if eagle is not None and eagle.use_dynamic_tree:
        width = eagle.dynamic_tree_max_topK
        check(
            width is not None and 0 < width <= non_leaves, f"dynamic_tree_max_topK {width} is not in 1 to {non_leaves}"
        )
        check(width <= folder.draft_len, f"dynamic_tree_max_topK {width} exceeds max_draft_len {folder.draft_len}")
        nodes = min(width + width * width * (layers - 1), folder.draft_len, _MOST_NODES)
        return config | {"dynamic_tree": True, "tree_width": width, "max_tree_nodes": nodes}, nodes, layers, None
    if eagle is None or eagle.eagle_choices is None:
        return config, layers, layers, None
    depth = _check_choices(folder, eagle.eagle_choices)
    parents = {tuple(path[:-1]) for path in eagle.eagle_choices if len(path) > 1}
    most = max(Counter(map(len, parents)).values(), default=0)
    check(most <= non_leaves, f"{most} nodes of a level have children, and max_non_leaves_per_layer is {non_leaves}")
    fatal = None if depth == layers else _DEPTH
    config = {"method": "eagle", "num_speculative_tokens": depth, "tree": _ordered(eagle.eagle_choices)}
    return config, len(eagle.eagle_choices), layers, fatal


def _external(folder: EngineFolder, decoding: Any) -> Settings:
    """Drafts come with requests. What a decoding configuration says is overruled by the engine's mode."""
    return {"method": "none"}, 0, 0, None


def _lookahead(folder: EngineFolder, decoding: Any) -> Settings:
    """Prompt lookup is underneath: what is drafted does not change the text."""
    given = decoding.lookahead_decoding_config if decoding is not None else None
    if given is None:
        return {"method": "none"}, 0, 0, "Lookahead decoding config must be provided"
    _, path, drafts, depth = given.calculate_speculative_resource()
    check(drafts <= folder.draft_len, f"lookahead drafts {drafts} tokens, and max_draft_len is {folder.draft_len}")
    return {"method": "ngram", "num_speculative_tokens": max(path - 1, 1)}, drafts, depth, None


_SETTINGS = {"DRAFT_TOKENS_EXTERNAL": _external, "MEDUSA": _medusa, "EAGLE": _eagle, "LOOKAHEAD_DECODING": _lookahead}
_DRAFTERS = ("medusa", "eagle")


def _check_choices(folder: EngineFolder, choices: Choices) -> int:
    """Every node is listed, and there is room for all; returns the depth."""
    paths = {tuple(path) for path in choices}
    check(len(paths) == len(choices) and () not in paths, "choices name a node twice, or the root")
    orphans = [path for path in paths if len(path) > 1 and path[:-1] not in paths]
    check(not orphans, f"choices name {orphans[:1]} and not its parent")
    check(len(paths) <= folder.draft_len, f"{len(paths)} choices exceed max_draft_len {folder.draft_len}")
    return max(map(len, paths), default=0)


def _ordered(choices: Choices) -> list[list[int]]:
    """Parents first, and else as given."""
    return [list(path) for path in sorted(choices, key=len)]


def _drafter(folder: EngineFolder, directory: Path) -> Path:
    from tensorrt_llm._double.drafters import write_eagle, write_medusa
    from tensorrt_llm._double.hugging_face import Source

    if folder.mode == "MEDUSA":
        return write_medusa(directory, folder.pretrained, folder.drafter_parts())
    return write_eagle(directory, folder.pretrained, folder.drafter_parts(), Source(folder.hugging_face))
