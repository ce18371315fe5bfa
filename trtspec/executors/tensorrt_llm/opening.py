"""From an engine folder of this backend to what serves it, by the flow that it was built for."""

from __future__ import annotations

from pathlib import Path

from trtspec.capabilities import ENGINE
from trtspec.config import EngineOptions
from trtspec.executors.opened import Opened
from trtspec.executors.tensorrt_llm import engine_spec, world
from trtspec.executors.tensorrt_llm.following import check_ranks
from trtspec.executors.tensorrt_llm.serving import check_options, check_version
from trtspec.followed import check_followed
from trtspec.manifest import Manifest
from trtspec.narrowing import narrowed
from trtspec.ranks import launched


def open_engine(directory: Path, manifest: Manifest, options: EngineOptions) -> Opened:
    """Open the folder. Raises what an operator can mend, with what to do."""
    folder = engine_spec.read(directory)
    check_ranks(directory, manifest, ranks := launched())
    if ranks.size > 1:
        world.join(ranks)
    check_version(folder)
    check_options(options)
    speculative = narrowed(manifest.speculative, options.speculative)
    check_followed(options.speculative, speculative.method, folder.flow)
    if folder.flow == ENGINE:
        from trtspec.executors.tensorrt_llm import compiled_opening

        return compiled_opening.open_engine(directory, manifest, folder, speculative, options)
    from trtspec.executors.tensorrt_llm import llm_opening

    return llm_opening.open_engine(directory, manifest, folder, speculative, options)
