"""From an engine folder to a warm engine."""

from __future__ import annotations

import os
import time
from dataclasses import fields, replace
from pathlib import Path

import torch

from trtspec.capabilities import EMBEDDED
from trtspec.config import EngineOptions, TensorRtLlmOptions
from trtspec.decoding.acceptance import law, rule
from trtspec.decoding.engine import Engine
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.proposer import make_proposer
from trtspec.errors import ConfigError, EngineFolderError
from trtspec.executors.embedded.choosers import Passes, choose_chooser
from trtspec.executors.embedded.decoder_config import NAME as CONFIG_NAME
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.device import check_device, choose_device, dense_bytes
from trtspec.executors.embedded.drafter_config import NAME as DRAFTER_NAME
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_weights import load_drafter
from trtspec.executors.embedded.runners import Shape, StoredDrafter, runner_kind
from trtspec.executors.embedded.weights import DTYPES, load_weights
from trtspec.executors.opened import OpenedEngine
from trtspec.followed import check_followed
from trtspec.manifest import Manifest
from trtspec.narrowing import narrowed
from trtspec.speculative import SpeculativeConfig
from trtspec.types import EngineInfo, Failed, Limits, Request

_WARM_UP = Request("warm-up", prompt=(0,) * 8, max_tokens=8, tenant="\0warm-up")
"""A repetition, so that lookup drafts something too, whose prefix nobody else finds."""


def open_engine(directory: Path, manifest: Manifest, options: EngineOptions) -> OpenedEngine:
    """Load weights, reserve the cache, run a request to warm up."""
    own = options.embedded
    theirs = {item.name for item in fields(TensorRtLlmOptions)} - {item.name for item in fields(own)}
    options.refuse(sorted(theirs), "TensorRT-LLM", "the embedded backend")
    threads = own.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    if manifest.dtype not in DTYPES:
        raise EngineFolderError(f"{directory} has dtype {manifest.dtype}; this version runs {', '.join(DTYPES)}")
    dtype = DTYPES[manifest.dtype]
    kind = runner_kind(manifest.runner)
    device = choose_device(own.device, manifest.runner)
    config = DecoderConfig.from_json(directory / CONFIG_NAME)
    speculative = narrowed(manifest.speculative, options.speculative)
    check_followed(options.speculative, speculative.method, EMBEDDED)
    drafter = DrafterConfig.from_json(directory / DRAFTER_NAME) if speculative.has_drafter else None
    block_tokens = kind.block_tokens(own.kv_block_tokens)
    caches = [config, *(drafter.caches if drafter else ())]
    position_bytes = sum(kind.slot_bytes(cache, dtype) for cache in caches)
    limits = _limits(manifest, options, speculative, block_tokens, position_bytes)
    blocks = limits.kv_cache_tokens // block_tokens
    shape = Shape(
        config=config,
        dtype=dtype,
        device=device,
        positions=limits.max_context_tokens,
        vocabulary_size=limits.vocabulary_size,
        block_tokens=block_tokens,
        blocks=blocks,
        threads=threads,
        features=drafter.features if drafter else (),
        graphs=own.cuda_graphs and device.type == "cuda",
    )
    weights = load_weights(directory, config)
    stored = StoredDrafter(drafter, load_drafter(directory, drafter, weights)) if drafter else None
    check_device(device, dense_bytes((weights, stored), dtype), limits.kv_cache_tokens * position_bytes)
    networks = kind.create(shape, weights, stored)
    proposer = make_proposer(speculative, networks.drafter)
    kv_cache = KVCache(blocks, block_tokens, prefix_sharing=options.prefix_sharing)
    passes = Passes(dtype, limits.vocabulary_size, speculative.draft_nodes, speculative.acceptance)
    chooser = choose_chooser(device, passes)
    engine = Engine(networks.runner, proposer, kv_cache, limits, rule(speculative, chooser))
    _warm_up(directory, engine, limits)
    return OpenedEngine(engine, _info(manifest, speculative, limits))


def _limits(
    manifest: Manifest,
    options: EngineOptions,
    speculative: SpeculativeConfig,
    block: int,
    position_bytes: int,
) -> Limits:
    """The pool holds what the memory does, in whole blocks; without prefixes to keep, at most what can be in use."""
    own = options.embedded
    blocks = own.kv_cache_mib * 2**20 // (position_bytes * block)
    if not options.prefix_sharing:
        longest = manifest.max_context_tokens + speculative.draft_nodes
        blocks = min(blocks, options.max_batch_size * -(-longest // block))
    if blocks < 1:
        raise ConfigError(
            f"--kv-cache-mib {own.kv_cache_mib} holds no block of {block} positions, "
            f"which takes {position_bytes * block} bytes; raise it"
        )
    return Limits(
        max_context_tokens=min(manifest.max_context_tokens, blocks * block),
        max_batch_size=options.max_batch_size,
        max_draft_tokens=speculative.draft_tokens,
        max_tree_nodes=speculative.draft_nodes,
        max_pass_tokens=max(own.max_pass_tokens, options.max_batch_size),
        kv_cache_tokens=blocks * block,
        vocabulary_size=manifest.vocabulary_size,
    )


def _warm_up(directory: Path, engine: Engine, limits: Limits) -> None:
    """Touch the code of prefill, decoding and drafts, so that the first request does not pay for it."""
    if limits.max_context_tokens < len(_WARM_UP.prompt) + _WARM_UP.max_tokens:
        return
    engine.submit(replace(_WARM_UP, max_draft_tokens=limits.max_draft_tokens))
    while not engine.idle:
        begun = engine.begin(time.monotonic())
        events = engine.finish(begun.plan) if begun.plan else ()
        for event in events:
            if isinstance(event, Failed):
                raise EngineFolderError(f"{directory} does not generate: {event.error}; build the engine again")


def _info(manifest: Manifest, speculative: SpeculativeConfig, limits: Limits) -> EngineInfo:
    return EngineInfo(
        model=manifest.model,
        engine_id=manifest.engine_id,
        engine_facts=manifest.facts,
        backend=manifest.backend,
        method=speculative.method,
        architecture=manifest.architecture,
        dtype=manifest.dtype,
        quantization=manifest.quantization,
        limits=limits,
        output_law=law(speculative),
        acceptance=speculative.acceptance,
        default_draft_tokens=speculative.draft_tokens,
        unverified_target=manifest.drafter is not None and manifest.drafter.unverified,
    )
