"""`LLM`: the flow that serves checkpoints as they are. Behind it runs the same loop as behind `Executor`."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm._table import Declared, ValidationError, table
from tensorrt_llm._types import evaluate, fits

_ARGUMENTS = "tensorrt_llm.llmapi.TorchLlmArgs"
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Call:
    """One request, as it was asked for."""

    prompt: list[int]
    params: Any
    salt: str | None
    output: Any


class LLM(Declared):
    def _check(self) -> None:
        """The constructor: opens the engine and starts its thread."""
        from tensorrt_llm._double.faults import Faults
        from tensorrt_llm._double.llm_engine import LlmAdmission, Reporter, open_machine
        from tensorrt_llm._double.loop import Loop
        from tensorrt_llm._double.reuse import Reuse

        arguments = self._arguments()
        self._values = {"llm_id": f"double-{id(self)}", "tokenizer": None}
        faults = Faults.planted()
        machine = open_machine(Path(arguments["model"]), arguments)
        cache = arguments["kv_cache_config"]
        reuse = Reuse(cache.tokens_per_block, enabled=cache.enable_block_reuse, partial=cache.enable_partial_reuse)
        self._keeps_stats = arguments["enable_iter_perf_stats"]
        self._stats: deque[dict[str, Any]] = deque(maxlen=arguments["max_stats_len"] if self._keeps_stats else 0)
        self._longest = arguments["max_num_tokens"] if not arguments["enable_chunked_prefill"] else None
        self._ids, self._live, self._shut = itertools.count(1), dict[int, Any](), False
        reporter = Reporter(machine, reuse, self._stats, self._live, arguments["max_batch_size"])
        admission = LlmAdmission(machine, faults, reuse, arguments)
        self._loop = Loop(machine, faults, admission.admit, reporter, arguments["max_batch_size"])

    def _arguments(self) -> dict[str, Any]:
        """Everything that is known of the arguments, with the defaults of what was not given."""
        given = {name: value for name, value in self._values.items() if name != "llm_id"}
        known = {item["name"]: item for item in table()[_ARGUMENTS][0]["params"]}
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"LLM got invalid argument: {name}")
            if not fits(known[name]["type"], value, _ARGUMENTS):
                raise ValidationError(f"LLM: {name} must be {known[name]['type']}, not {value!r:.80}")
        for name, item in known.items():
            given.setdefault(name, evaluate(item["default"], _ARGUMENTS))
        given["max_batch_size"] = given["max_batch_size"] or 2048
        if not given["skip_tokenizer_init"]:
            raise NotImplementedError("the double has no tokenizer: skip_tokenizer_init=True")
        if given["backend"] not in (None, "pytorch"):
            raise ValueError(f"backend {given['backend']} is not pytorch")
        return given

    def generate_async(
        self,
        inputs: Any,
        sampling_params: Any,
        streaming: bool,
        cache_salt: str | None,
        **others: Any,
    ) -> Any:
        from tensorrt_llm._double.sequence import Group
        from tensorrt_llm.executor.utils import RequestError
        from tensorrt_llm.llmapi import RequestOutput

        if self._shut:
            raise RuntimeError("LLM is shutting down")
        if not fits("list[int]", inputs, _ARGUMENTS) or not inputs:
            raise TypeError(f"the double takes token ids, not {inputs!r:.80}")
        if sampling_params is None or sampling_params.end_id is None:
            raise ValueError("end_id is None and there is no tokenizer to tell it")
        if self._longest is not None and len(inputs) > self._longest:
            raise RequestError(
                f"The sum of prompt length ({len(inputs)}.0), query length (0) should not exceed "
                f"max_num_tokens ({self._longest})"
            )
        output = RequestOutput._made(list(inputs), streaming)
        group = Group(next(self._ids), Call(list(inputs), sampling_params, cache_salt, output), 1, time.monotonic())
        output._values["request_id"] = group.id
        output._cancel = lambda: self._loop.cancel(group.id)
        self._live[group.id] = output
        self._loop.put([group], None)
        return output

    async def _stats_until_quiet(self, timeout: float | None) -> AsyncIterator[dict[str, Any]]:
        end = time.monotonic() + (timeout or 0)
        while self._keeps_stats:
            if self._stats:
                yield json.loads(json.dumps(self._stats.popleft()))
                end = time.monotonic() + (timeout or 0)
            elif time.monotonic() >= end:
                return
            else:
                await asyncio.sleep(_POLL_SECONDS)

    def get_stats_async(self, timeout: float | None) -> AsyncIterator[dict[str, Any]]:
        return self._stats_until_quiet(timeout)

    def shutdown(self) -> None:
        if not self._shut:
            self._shut = True
            for group_id in list(self._live):
                self._loop.cancel(group_id)
            self._loop.close()

    def __del__(self) -> None:
        if not self.__dict__.get("_shut", True) and not sys.is_finalizing():
            self.shutdown()
