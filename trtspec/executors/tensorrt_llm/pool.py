"""The memory that an operator gives to keys and values, and whether it is free on this rank's GPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtspec.config import EngineOptions
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.engine_spec import FolderSpec
from trtspec.executors.tensorrt_llm.probe import visible_gpus
from trtspec.ranks import Ranks

_MIB = 2**20


def check_pool(directory: Path, folder: FolderSpec, names: Iterable[str], options: EngineOptions, ranks: Ranks) -> None:
    """Refuse pools for which there is no room beside the engines, before minutes are spent on opening those."""
    if options.kv_cache_mib is None:  # pools take their share of what is free
        return
    gpus = visible_gpus()
    if not gpus or not (gpu := gpus[ranks.place % len(gpus)]).memory_mib:
        return
    files = [directory / name / f"rank{ranks.rank}.engine" for name in names]
    engines = sum(file.stat().st_size for file in files if file.is_file()) // _MIB
    pools = options.kv_cache_mib * len(files) // folder.world_size
    each = f" for each of {len(files)} engines" if len(files) > 1 else ""
    if pools + engines > gpu.free_mib:
        raise ConfigError(
            f"--kv-cache-mib is {options.kv_cache_mib}{each}, of which this rank holds {pools} MiB beside {engines} "
            f"MiB of what is compiled, and {gpu.name} has {gpu.free_mib} MiB free; give less, leave it out (keys and "
            "values then take what is free), or end what else uses the GPU"
        )
