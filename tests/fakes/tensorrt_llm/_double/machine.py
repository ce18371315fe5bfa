"""The engine behind the double: our embedded one, built from a Hugging Face folder when it is needed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tensorrt_llm._double.throttle import Throttle

_KV_CACHE_MIB, _BLOCK_TOKENS, _MOST_PASS_TOKENS = 64, 32, 2048


@dataclass(frozen=True)
class Plan:
    """What is opened."""

    target: Path
    speculative: dict[str, Any]
    """Our speculative configuration."""
    max_batch_size: int
    max_pass_tokens: int
    draft: Path | None = None


class Machine:
    """An opened engine. One thread turns it."""

    def __init__(self, opened: Any) -> None:
        self.engine = opened.engine
        self.limits = opened.info.limits
        self.throttle: Throttle | None = None

    def throttled(self, config: Any, max_num_tokens: int) -> Machine:
        """Drafting as a decoding configuration says; it begins with the next pass."""
        self.throttle = Throttle(self.engine._proposer, config, max_num_tokens)
        self.engine._proposer = self.throttle
        return self

    @classmethod
    def open(cls, plan: Plan) -> Machine:
        """Build into a folder that is gone afterwards, and open. Raises RuntimeError with what the build said."""
        # In a thread of its own: a build runs an event loop, and the caller may be inside of one.
        with ThreadPoolExecutor(1) as pool, tempfile.TemporaryDirectory() as folder:
            return cls(pool.submit(_built, plan, Path(folder) / "engine").result())


def _built(plan: Plan, output: Path) -> Any:
    from builders.build import main
    from trtspec.config import EngineOptions
    from trtspec.executors.opened import open_engine
    from trtspec.ranks import alone

    arguments = ["--target", str(plan.target), "--output", str(output), "--method", plan.speculative["method"]]
    arguments += ["--backend", "embedded", "--runner", "eager", "--dtype", "float32"]
    arguments += ["--speculative-config", json.dumps(plan.speculative)]
    if plan.draft is not None:
        arguments += ["--draft", str(plan.draft), "--allow-unverified-target"]
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        patch.dict(os.environ, alone(), clear=True),  # it is no part of the launch
    ):
        code = main(arguments)
    if code != 0:
        raise RuntimeError(f"the double could not build {plan.target}: {said.getvalue().strip()[-2000:]}")
    options = EngineOptions(
        max_batch_size=plan.max_batch_size,
        max_pass_tokens=max(min(plan.max_pass_tokens, _MOST_PASS_TOKENS), plan.max_batch_size),
        kv_cache_mib=_KV_CACHE_MIB,
        kv_block_tokens=_BLOCK_TOKENS,
        threads=1,
        prefix_sharing=False,
        device="cpu",
    )
    return open_engine(output, options)
