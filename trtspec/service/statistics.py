"""The numbers of speculation as protos."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice

from trtspec.decoding.stats import SpeculationStats
from trtspec.service.assemble import MAX_PASS_RECORDS, OutputAssembler
from trtspec.types import Method, PassRecord
from trtspec.v1 import speculation_pb2 as spec


def method_name(value: Method) -> str:
    """The method as protos call it."""
    return f"SPECULATION_METHOD_{value.name}"


def speculation_stats(method: Method, outputs: Sequence[OutputAssembler], *, derived: bool) -> spec.SpeculationStats:
    """Totals over all outputs, without records of passes."""
    return stats_message(method, sum((output.stats for output in outputs), SpeculationStats()), derived=derived)


def stats_message(method: Method, stats: SpeculationStats, *, derived: bool) -> spec.SpeculationStats:
    """Totals of any passes."""
    return spec.SpeculationStats(
        method=method_name(method),
        source=spec.STATS_SOURCE_DERIVED if derived else spec.STATS_SOURCE_MEASURED,
        decode_passes=stats.decode_passes,
        spec_steps=stats.spec_steps,
        drafted_count=stats.drafted,
        accepted_count=stats.accepted,
        verified_node_count=stats.verified_nodes,
        emitted_count=stats.emitted,
        rejected_steps=stats.rejected_steps,
        accepted_length_histogram=stats.histogram,
        drafted_per_position=stats.drafted_at,
        accepted_per_position=stats.accepted_at,
        acceptance_rate=stats.acceptance_rate,
        node_yield=stats.node_yield,
        mean_acceptance_length=stats.acceptance_length,
        tokens_per_pass=stats.tokens_per_pass,
        rejection_frequency=stats.rejection_frequency,
    )


def first_passes(outputs: Sequence[OutputAssembler]) -> list[spec.DecodePass]:
    """The records kept of all outputs, in the order of the passes and as many as are sent."""
    records = ([(record.pass_index, index, record) for record in output.passes] for index, output in enumerate(outputs))
    ordered = heapq.merge(*records, key=lambda item: item[:2])
    return [write_pass(spec.DecodePass(), index, record) for _, index, record in islice(ordered, MAX_PASS_RECORDS)]


def passes_truncated(outputs: Sequence[OutputAssembler]) -> bool:
    """Whether `first_passes` leaves some out."""
    kept = sum(len(output.passes) for output in outputs)
    return kept > MAX_PASS_RECORDS or any(output.passes_truncated for output in outputs)


def write_pass(place: spec.DecodePass, output_index: int, record: PassRecord) -> spec.DecodePass:
    """What one pass did for one output, written to an empty message."""
    place.output_index = output_index
    place.pass_index = record.pass_index
    place.drafted_count = len(record.nodes_by_depth)
    place.accepted_count = record.accepted
    place.verified_node_count = sum(record.nodes_by_depth)
    place.emitted_count = record.emitted
    place.cut = record.cut
    place.prefill = record.prefill
    return place
