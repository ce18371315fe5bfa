"""What Prometheus reads: totals of requests, the engine's state, and on demand the names that others use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry import windows
from trtspec.service.telemetry.catalogue import COMMON, PREFIX, Family
from trtspec.service.telemetry.registry import Key, Row, Snapshot

CONFIG_ID_DIGITS = 12
VLLM = {
    "spec_decode_num_drafts": names.DRAFTS,
    "spec_decode_num_draft_tokens": names.DRAFTED,
    "spec_decode_num_accepted_tokens": names.ACCEPTED,
    "spec_decode_num_accepted_tokens_per_pos": names.ACCEPTED_AT,
}
"""vLLM's counters by their names there; all arms are one to it."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that one answer has, as it was at one moment."""

    common: tuple[str, ...] | None
    """Values of the labels of every series; None before the engine is open, when there are none."""
    totals: Snapshot
    gauges: Mapping[Family, tuple[tuple[str, ...], float]]
    counters: Mapping[Family, float]
    """Of the engine."""
    recent: Snapshot
    """What was counted in the last minute."""
    compatibility: str = "none"


def render(scrape: Scrape, accept: str) -> tuple[bytes, str]:
    """The answer in the format that the client prefers, and its content type. Slow: call it off the event loop."""
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(scrape)), content_type


class _Collected(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        yield from PROCESS_COLLECTOR.collect()
        scrape = self._scrape
        if scrape.common is None:
            return
        yield from _of_requests(scrape.totals, scrape.common)
        for family, (labels, value) in scrape.gauges.items():
            gauge = GaugeMetricFamily(PREFIX + family.name, family.help, labels=(*COMMON, *family.labels))
            gauge.add_metric((*scrape.common, *labels), value)
            yield gauge
        for family, value in scrape.counters.items():
            counter = CounterMetricFamily(PREFIX + family.name, family.help, labels=COMMON)
            counter.add_metric(scrape.common, value)
            yield counter
        if scrape.compatibility in ("vllm", "all"):
            yield from _as_vllm(scrape.totals, scrape.common[0])
        if scrape.compatibility in ("tensorrt_llm", "all"):
            yield from _as_tensorrt_llm(scrape.recent, scrape.common[0])


def _of_requests(totals: Snapshot, common: tuple[str, ...]) -> Iterator[Metric]:
    series: dict[str, list[tuple[Key, Row]]] = {}
    for key, row in sorted(totals.items()):
        series.setdefault(key[0], []).append((key, row))
    for family in names.OF_REQUESTS:
        metric = _metric(family)
        for (_, labels), row in series.get(family.name, ()):
            _add(metric, (*common, *labels), family, row)
        yield metric


def _metric(family: Family) -> CounterMetricFamily | HistogramMetricFamily:
    kind = HistogramMetricFamily if family.buckets else CounterMetricFamily
    return kind(PREFIX + family.name, family.help, labels=(*COMMON, *family.labels))


def _add(
    metric: CounterMetricFamily | HistogramMetricFamily, labels: tuple[str, ...], family: Family, row: Row
) -> None:
    if isinstance(metric, CounterMetricFamily):
        metric.add_metric(labels, row[0])
    else:
        bounds = (*map(str, family.buckets), "+Inf")
        metric.add_metric(labels, list(zip(bounds, accumulate(row[:-1]), strict=True)), row[-1])


def _as_vllm(totals: Snapshot, model: str) -> Iterator[Metric]:
    for name, family in VLLM.items():
        position = family.labels[1:]
        metric = CounterMetricFamily(f"vllm:{name}", family.help, labels=("model_name", "engine", *position))
        found = windows.by_label(totals, family, position[0] if position else "arm") or ({} if position else {"": 0.0})
        if position:
            for label, value in found.items():
                metric.add_metric((model, "0", label), value)
        else:
            metric.add_metric((model, "0"), sum(found.values()))
        yield metric


def _as_tensorrt_llm(recent: Snapshot, model: str) -> Iterator[Metric]:
    metric = GaugeMetricFamily(
        "trtllm_spec_decode_acceptance_length",
        "1 + accepted tokens / spec steps, of the last minute; absent where there was no spec step.",
        labels=("model_name", "engine_type"),
    )
    length = windows.acceptance_length(recent)
    if length is not None:
        metric.add_metric((model, "trtspec"), length)
    yield metric
