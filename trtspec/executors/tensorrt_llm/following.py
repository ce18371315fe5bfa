"""The other ranks of an engine that several GPUs share: they compute what rank 0 tells them, and answer nobody.

`mpirun -n 2 trtspec serve ENGINE` starts a process for each rank. That of rank 0 serves; in the others TensorRT-LLM's
executor takes part in every step until the leader shuts its own down. A launcher sends its signals to all ranks: these
leave them to the leader, which drains first. Where a rank fails, MPI ends all, since no other would ever hear of it.
"""

from __future__ import annotations

from pathlib import Path

from trtspec import manifest as manifests
from trtspec.capabilities import ENGINE
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError, EngineFolderError
from trtspec.executors.tensorrt_llm import engine_spec, world
from trtspec.executors.tensorrt_llm.engine_spec import TARGET
from trtspec.executors.tensorrt_llm.pool import check_pool
from trtspec.executors.tensorrt_llm.serving import check_version
from trtspec.followed import check_followed
from trtspec.manifest import Manifest
from trtspec.narrowing import narrowed
from trtspec.ranks import Ranks
from trtspec.stop_signals import leave_to_others


def check_ranks(directory: Path, manifest: Manifest, ranks: Ranks) -> None:
    """Refuse a launch that does not fit the engine, before anything is loaded."""
    if manifest.backend != "tensorrt_llm":
        if ranks.size > 1:
            raise ConfigError(
                f"{ranks.size} processes were launched and {directory} is an {manifest.backend} engine, which is one; "
                "start it without a launcher"
            )
        return
    folder = engine_spec.read(directory)
    if folder.flow != ENGINE:
        if ranks.size > 1:
            raise ConfigError(
                f"{ranks.size} processes were launched and {directory} is of the {folder.flow} flow, which starts its "
                "own workers; on several nodes, launch `trtllm-llmapi-launch trtspec serve ...`"
            )
        return
    if ranks.size != folder.world_size:
        raise ConfigError(
            f"{directory} has {folder.world_size} ranks and {ranks.size} were launched; start it with "
            f"`mpirun -n {folder.world_size} trtspec serve {directory}`"
        )


def follow(directory: Path, options: EngineOptions, ranks: Ranks) -> int:
    """Work for rank 0 until it shuts down; returns the exit code."""
    leave_to_others()
    together = world.join(ranks)
    return world.all_or_none(together, lambda: _follow(directory, options, ranks))


def _follow(directory: Path, options: EngineOptions, ranks: Ranks) -> int:
    manifest = manifests.read(directory)
    folder = engine_spec.read(directory)
    check_version(folder)
    from trtspec.executors.tensorrt_llm import bindings
    from trtspec.executors.tensorrt_llm.compiled_opening import run_time_arguments

    speculative = narrowed(manifest.speculative, options.speculative)
    check_followed(options.speculative, speculative.method, folder.flow)
    arguments = run_time_arguments(TARGET, folder, speculative, options)
    check_pool(directory, folder, [TARGET], options, ranks)
    executor = bindings.open_executor(directory / TARGET, arguments)
    if executor.can_enqueue_requests():
        raise EngineFolderError("this process was launched to follow, and TensorRT-LLM made it the leader")
    executor.shutdown()  # returns once the leader has shut its own down
    return 0
