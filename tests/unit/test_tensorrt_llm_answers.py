"""Results of TensorRT-LLM become steps whose records keep the rules of `decoding.stats`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.decoding.stats import SpeculationStats
from trtspec.executors.tensorrt_llm.answers import Answer
from trtspec.executors.tensorrt_llm.derived import Derived
from trtspec.types import Finish, FinishReason, PassRecord, Request

EOS, OTHER_EOS, STOP = 2, 3, 7
REQUEST = Request("a", (1,), 50, stop_ids=frozenset({STOP}), eos_ids=frozenset({EOS, OTHER_EOS}))
TREE = (2, 2, 1)


@dataclass
class Result:
    """What is read of TensorRT-LLM's."""

    ids: list[int]
    decoding_iter: int
    reason: str = "NOT_FINISHED"
    is_final: bool = False
    avg_decoded_tokens_per_iter: float = 0.0
    request_perf_metrics: object = None
    finish_reasons: list[SimpleNamespace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.output_token_ids = [self.ids]
        self.finish_reasons = [SimpleNamespace(name=self.reason)]


def answer(nodes: tuple[int, ...] = TREE, end: int | None = EOS) -> Answer:
    return Answer(REQUEST, 0, end, Derived(nodes))


def begun(nodes: tuple[int, ...] = TREE) -> Answer:
    found = answer(nodes)
    found.take(Result([10], 1), 1)
    return found


def test_the_first_result_ends_the_prompt_and_counts_in_no_statistic() -> None:
    step = answer().take(Result([10], 1), 4)
    assert step is not None and step.passes == (PassRecord(4, prefill=True),)


def test_a_step_accepts_all_its_tokens_but_one_and_drafted_the_whole_tree() -> None:
    step = begun().take(Result([11, 12, 13], 2), 5)
    assert step is not None and step.passes == (PassRecord(5, TREE, accepted=2, emitted=3),)
    assert (step.passes[0].drafted, step.passes[0].verified_nodes) == (3, 5)


def test_an_engine_without_speculation_drafts_nothing() -> None:
    step = begun(()).take(Result([11], 2), 5)
    assert step is not None and step.passes == (PassRecord(5),)


@pytest.mark.parametrize(
    ("result", "ids", "finish"),
    [
        (Result([11, 12], 2, "LENGTH", True), (11, 12), Finish(FinishReason.LENGTH)),
        (Result([11], 2, "END_ID", True), (11, EOS), Finish(FinishReason.EOS, EOS)),
        (Result([], 2, "END_ID", True), (EOS,), Finish(FinishReason.EOS, EOS)),
        (Result([11, STOP], 2, "STOP_WORDS", True), (11, STOP), Finish(FinishReason.STOP, STOP)),
        (Result([OTHER_EOS], 2, "STOP_WORDS", True), (OTHER_EOS,), Finish(FinishReason.EOS, OTHER_EOS)),
        (Result([], 2, "TIMED_OUT", True), (), Finish(FinishReason.DEADLINE)),
        (Result([], 2, "CANCELLED", True), (), Finish(FinishReason.CANCELLED)),
    ],
)
def test_ends(result: Result, ids: tuple[int, ...], finish: Finish) -> None:
    """The runtime keeps the end of the text to itself; a client gets and pays for it, as from every engine."""
    step = begun().take(result, 2)
    assert step is not None and (step.token_ids, step.finish) == (ids, finish)
    assert sum(record.emitted for record in step.passes) == len(ids)


def test_a_pass_that_ends_the_output_is_cut_to_what_was_kept() -> None:
    step = begun().take(Result([11, STOP], 2, "STOP_WORDS", True), 2)
    assert step is not None and step.passes == (PassRecord(2, (2, 2), accepted=1, emitted=2, cut=True),)


def test_a_last_result_without_tokens_says_only_that_it_is_over() -> None:
    step = begun().take(Result([], 3, "LENGTH", True), 2)
    assert step is not None and (step.token_ids, step.passes) == ((), ())
    assert begun().take(Result([], 3), 2) is None


def drafted(emitted: int) -> PassRecord:
    return PassRecord(9, TREE, accepted=emitted - 1, emitted=emitted)


def test_results_that_were_merged_share_their_tokens() -> None:
    step = begun().take(Result([11, 12, 13, 14, 15], 4), 9)
    assert step is not None and step.passes == (drafted(2), drafted(2), drafted(1))
    plain = begun(()).take(Result([11, 12], 3), 9)
    assert plain is not None and plain.passes == (PassRecord(9), PassRecord(9))


def test_more_tokens_than_a_step_can_give_are_several_steps() -> None:
    step = begun().take(Result([11, 12, 13, 14, 15], 2), 9)
    assert step is not None and step.passes == (drafted(3), drafted(2))


def test_a_first_result_of_several_steps_begins_with_the_prompts() -> None:
    step = answer().take(Result([10, 11, 12], 2), 9)
    assert step is not None and step.passes == (PassRecord(9, prefill=True), drafted(2))


def metrics(accepted: int) -> SimpleNamespace:
    return SimpleNamespace(speculative_decoding=SimpleNamespace(total_accepted_draft_tokens=accepted))


@pytest.mark.parametrize(
    ("mean", "counted", "doubt"),
    [
        (2.0, 2, None),
        (0.0, 2, None),
        (4.0, 2, "4 tokens came, and avg_decoded_tokens_per_iter * decoding_iter is 8.0"),
        (2.0, 9, "2 accepted tokens were derived and the runtime counted 9"),
    ],
)
def test_what_the_runtime_counts_itself_is_compared(mean: float, counted: int, doubt: str | None) -> None:
    found = begun()
    last = Result([11, 12, 13], 2, "LENGTH", True, mean, metrics(counted))
    found.take(last, 2)
    assert found.disagreement(last) == doubt


@given(st.lists(st.integers(1, 4), max_size=12), st.sampled_from(["LENGTH", "END_ID", "STOP_WORDS", "CANCELLED"]))
def test_whatever_comes_the_statistics_hold(sizes: list[int], reason: str) -> None:
    found, records, count = answer(), [], 0
    for step, size in enumerate(sizes, 1):
        last = step == len(sizes)
        ids = [10] * (1 if step == 1 else size)
        ids = [*ids[:-1], STOP] if last and reason == "STOP_WORDS" else ids
        taken = found.take(Result(ids, step, reason if last else "NOT_FINISHED", last), step)
        assert taken is not None
        records += taken.passes
        count += len(taken.token_ids)
    stats = SpeculationStats.of(records)
    stats.check()
    assert stats.completion_tokens == count
