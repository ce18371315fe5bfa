"""How fast an engine is in its worker process: plain and with drafts, alone and in a batch, with and without graphs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.gpu_check.running import BATCH, opened, requests, run
from scripts.gpu_check.subject import Prompt, Subject
from trtspec.config import EngineOptions
from trtspec.decoding.stats import SpeculationStats

METHODS = {"none": 0, "ngram": 8}
"""By name, the deepest draft. The same engine runs both: a depth of 0 is plain decoding."""
CONCURRENCIES = (1, BATCH)


@dataclass(frozen=True, slots=True)
class Speed:
    """One measured load."""

    method: str
    concurrency: int
    graphs: bool
    seconds: float
    tokens: int
    passes: int
    stats: SpeculationStats

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def pass_ms(self) -> float:
        """Prefill passes included."""
        return 1000 * self.seconds / self.passes


async def measure(subject: Subject, prompts: Sequence[Prompt], tokens: int, options: EngineOptions) -> list[Speed]:
    """Each load twice; the first run records and warms, the second one counts."""
    found = []
    async with opened(subject.engine, options, in_process=False) as executor:
        for method, depth in METHODS.items():
            for concurrency in CONCURRENCIES:
                asked = requests(prompts, tokens, depth)
                await run(executor, asked, concurrency)
                started = time.perf_counter()
                said = await run(executor, asked, concurrency)
                seconds = time.perf_counter() - started
                records = [record for text in said for record in text.passes]
                passes = len({record.pass_index for record in records})
                count = sum(len(text.ids) for text in said)
                stats = SpeculationStats.of(records)
                found.append(Speed(method, concurrency, options.embedded.cuda_graphs, seconds, count, passes, stats))
    return found
