"""Guides on their way to an engine, without one: the gate, what is kept, matchers and their costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.guides import EOS, GRAMMARS, SPECIAL, SPELT, compiled
from tests.models import tiny_tokenizer
from trtspec.decoding.draft import Draft
from trtspec.decoding.guiding import GuidedText, prune
from trtspec.errors import DeadlineExceeded, EngineFault, InvalidField
from trtspec.executors.guides import grammars
from trtspec.executors.guides.compiler import GuideCompiler, Kept
from trtspec.executors.guides.gate import GatedInbox, GuideGate
from trtspec.executors.guides.opening import with_guides
from trtspec.executors.guides.rehearsal import rehearse
from trtspec.executors.guides.tokens import info_of
from trtspec.executors.messages import Cancel, Close, Report, Submit
from trtspec.guides import Guide, GuideKind
from trtspec.types import EngineInfo, EngineStats, Failed, Limits, Method, OutputLaw, Request

WAIT = 30.0
GOOD, BAD, SLOW = (Guide(GuideKind.REGEX, text) for text in ("a", "([", "slow"))


class Rehearsal:
    """Stands for the process: a guide of some text takes until it is let go."""

    def __init__(self) -> None:
        self.asked: list[Guide] = []
        self.go_on = threading.Event()
        self.closed = False

    def check(self, guide: Guide) -> None:
        self.asked.append(guide)
        if guide == BAD:
            raise InvalidField(guide.field, "not understood", "a text of that kind")
        if guide == SLOW:
            assert self.go_on.wait(WAIT)

    def close(self) -> None:
        self.closed = True
        self.go_on.set()

    def end(self) -> None:
        assert self.closed


class Gate:
    """A gate between an inbox and whoever reads it."""

    def __init__(self, finish: Callable[[Guide], Guide] = lambda guide: guide) -> None:
        self.rehearsal = Rehearsal()
        self.compiler = GuideCompiler(lambda: self.rehearsal, finish)  # type: ignore[arg-type, return-value]
        self.outer: SimpleQueue[Any] = SimpleQueue()
        self.reports: list[Report] = []
        self.inbox = GatedInbox(self.outer, self.compiler, self.reports.append, EngineStats(waiting=1))

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.compiler.close()

    def until_failed(self) -> Failed:
        """Read until a failure is told; nothing comes out meanwhile."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            with pytest.raises(Empty):
                self.inbox.get(timeout=0.05)
            for report in self.reports:
                if report.events:
                    (event,) = report.events
                    assert isinstance(event, Failed)
                    return event
        raise AssertionError("nothing failed")


def asked(name: str, guide: Guide | None = None, **changes: object) -> Request:
    return replace(Request(name, (1,), 5, guide=guide), **changes)  # type: ignore[arg-type]


def test_a_request_waits_for_its_guide_and_others_do_not() -> None:
    with Gate() as gate:
        gate.outer.put(Submit(asked("slow", SLOW)))
        gate.outer.put(Submit(asked("free")))
        assert gate.inbox.get() == Submit(asked("free"))
        assert gate.reports[-1].stats.waiting == 2, "who waits for a guide waits"
        with pytest.raises(Empty):
            gate.inbox.get_nowait()
        gate.rehearsal.go_on.set()
        assert gate.inbox.get(timeout=WAIT) == Submit(asked("slow", SLOW))
        gate.outer.put(Submit(asked("again", SLOW)))
        assert gate.inbox.get_nowait() == Submit(asked("again", SLOW)), "what is known is not tried again"
        assert gate.rehearsal.asked == [SLOW]
        gate.inbox.publish(Report((), EngineStats(running=3)))
        assert gate.reports[-1].stats == EngineStats(running=3)


def test_what_is_wrong_is_told_at_once_and_again_without_trying() -> None:
    with Gate() as gate:
        for name in ("first", "second"):
            gate.outer.put(Submit(asked(name, BAD)))
            failed = gate.until_failed()
            assert failed.request_id == name and failed.error.details["field"] == "guided_decoding.regex"
            gate.reports.clear()
        assert gate.rehearsal.asked == [BAD]


def test_equal_guides_are_tried_once_and_each_request_is_answered() -> None:
    with Gate() as gate:
        for index in range(5):
            gate.outer.put(Submit(asked(str(index), SLOW)))
        with pytest.raises(Empty):
            gate.inbox.get(timeout=0.2)
        gate.rehearsal.go_on.set()
        found = {gate.inbox.get(timeout=WAIT).request.request_id for _ in range(5)}
        assert found == {"0", "1", "2", "3", "4"} and gate.rehearsal.asked == [SLOW]


def test_a_cancelled_request_does_not_come_out_later() -> None:
    with Gate() as gate:
        gate.outer.put(Submit(asked("a", SLOW)))
        gate.outer.put(Cancel("a"))
        assert gate.inbox.get() == Cancel("a")
        gate.rehearsal.go_on.set()
        gate.outer.put(Submit(asked("b", SLOW)))
        assert gate.inbox.get(timeout=WAIT).request.request_id == "b"
        with pytest.raises(Empty):
            gate.inbox.get(timeout=0.1)


def test_a_deadline_ends_the_waiting() -> None:
    with Gate() as gate:
        gate.outer.put(Submit(asked("a", SLOW, deadline=time.monotonic() + 0.1)))
        failed = gate.until_failed()
        assert isinstance(failed.error, DeadlineExceeded) and gate.reports[-1].stats.waiting == 1


def test_a_compiler_that_breaks_is_a_fault_and_is_asked_again() -> None:
    broken = [True]

    def finish(guide: Guide) -> Guide:
        if broken:
            raise OSError("no space")
        return guide

    with Gate(finish) as gate:
        gate.outer.put(Submit(asked("a", GOOD)))
        assert isinstance(gate.until_failed().error, EngineFault)
        broken.clear()
        gate.outer.put(Submit(asked("b", GOOD)))
        assert gate.inbox.get(timeout=WAIT).request.request_id == "b"


def test_close_goes_through_while_requests_wait() -> None:
    with Gate() as gate:
        gate.outer.put(Submit(asked("a", SLOW)))
        gate.outer.put(Close())
        assert gate.inbox.get() == Close()


def test_what_is_kept_is_bounded_by_guides_and_by_bytes() -> None:
    guides = [Guide(GuideKind.REGEX, "x" * (index + 1)) for index in range(5)]
    by_count, by_bytes = Kept(most=3), Kept(most_bytes=7)
    for guide in guides:
        by_count.put(guide, guide)
        by_bytes.put(guide, guide)
        assert by_count.get(guides[0]) is not None or guide is guides[4] or len(guide.text) > 3
    assert [by_count.get(guide) is not None for guide in guides] == [True, False, False, True, True]
    assert [by_bytes.get(guide) is not None for guide in guides] == [False, False, False, False, True]


def test_a_compiled_guide_is_kept_by_its_own_size() -> None:
    kept, guides = Kept(most_bytes=0), [compiled(GuideKind.REGEX, text) for text in ("a", "b")]
    for guide in guides:
        kept.put(Guide(guide.kind, guide.text), guide)
    assert guides[0].size > 0 and kept.get(Guide(GuideKind.REGEX, "a")) is None
    assert kept.get(Guide(GuideKind.REGEX, "b")) is guides[1], "the last one stays, whatever its size"


INFO = EngineInfo(
    *("m", "e", "{}", "embedded", Method.NONE, "L", "float32", "none"),
    Limits(8, 1, 0, 0, 8, 8, 16),
    OutputLaw.EXACT,
    0,
)


class Opened:
    """Stands for an engine: reads its inbox until it is closed."""

    def __init__(self, info: EngineInfo = INFO) -> None:
        self.info = info
        self.seen: list[Any] = []

    def stats(self) -> EngineStats:
        return EngineStats()

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        while not isinstance(message := inbox.get(), Close):
            self.seen.append(message)

    def check(self) -> None:
        self.seen.append("checked")


def test_an_engine_gets_a_gate_where_it_can_follow_guides(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    gate = with_guides(opened, tmp_path)
    assert isinstance(gate, GuideGate) and gate.info == INFO and gate.stats() == EngineStats()
    inbox: SimpleQueue[Any] = SimpleQueue()
    inbox.put(Submit(asked("a")))
    inbox.put(Close())
    gate.run(inbox, lambda report: None)
    gate.check()
    assert opened.seen == [Submit(asked("a")), "checked"]
    refusing = Opened(replace(INFO, flow="engine", method=Method.MEDUSA))
    assert with_guides(refusing, tmp_path) is refusing
    monkeypatch.setattr("trtspec.executors.guides.opening.find_spec", lambda name: None)
    ((feature, reason),) = with_guides(opened, tmp_path).info.lacks
    assert feature == "guided_decoding" and "trtspec[guided]" in reason


# ------------------------------------------------------------------ grammars


def test_special_tokens_spell_nothing_and_ids_beyond_the_vocabulary_are_not_there() -> None:
    tokenizer = tiny_tokenizer()
    tokens = info_of(tokenizer, frozenset({0, 2, 999}), 264)
    assert tokens.vocab_size == 264 and sorted(tokens.stop_token_ids) == [0, 2]
    anything = grammars.Grammars(tokens).compile(Guide(GuideKind.REGEX, "(.|\\n)*")).matcher()
    allowed = anything.allowed()
    assert allowed.shape == (264,) and allowed[[0, 2]].all() and not allowed[1]
    assert not anything.accept(1) and not anything.accept(-2) and not anything.accept(264)
    wider = info_of(tokenizer, frozenset({0}), 300)
    matcher = grammars.Grammars(wider).compile(Guide(GuideKind.REGEX, "(.|\\n)*")).matcher()
    assert matcher.allowed().shape == (300,) and not matcher.allowed()[267:].any()


def test_nothing_follows_the_end_and_it_can_be_taken_back() -> None:
    matcher = compiled(GuideKind.REGEX, "ab?").matcher()
    assert matcher.accept(7) and matcher.complete and matcher.allowed()[[8, EOS]].all()
    assert matcher.accept(EOS) and not matcher.allowed().any() and not matcher.accept(8)
    matcher.rollback(1)
    assert matcher.accept(8) and matcher.allowed().nonzero()[0].tolist() == [EOS]


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        (GuideKind.REGEX, "([", "Unclosed"),
        (GuideKind.JSON_SCHEMA, '{"type": "nonsense"}', "nonsense"),
        (GuideKind.JSON_SCHEMA, "{", "JSON"),
        (GuideKind.GRAMMAR, "root ::= nowhere", "nowhere"),
        (GuideKind.STRUCTURAL_TAG, '{"type": "structural_tag"}', ""),
        (GuideKind.GRAMMAR, "root ::= root", "allowing no text"),
        (GuideKind.JSON_SCHEMA, '{"$ref": "#"}', "Circular"),
    ],
)
def test_a_guide_that_makes_no_sense_names_its_field_and_says_why(kind: GuideKind, text: str, word: str) -> None:
    error = rehearse(Guide(kind, text), GRAMMARS).error
    assert error is not None and error.details["field"] == f"guided_decoding.{kind.value}"
    assert word in str(error) and "/project/" not in str(error) and len(str(error)) < 500


def test_what_costs_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Guide(GuideKind.REGEX, "[ab]{1,9}")
    assert rehearse(guide, GRAMMARS).error is None
    with monkeypatch.context() as patch:
        patch.setattr("trtspec.executors.guides.rehearsal.MOST_GRAMMAR_BYTES", 10)
        assert "bytes once it is compiled" in str(rehearse(guide, GRAMMARS).error)
    with monkeypatch.context() as patch:
        patch.setattr("trtspec.executors.guides.rehearsal.MASK_SECONDS", 0.0)
        assert "which token may follow" in str(rehearse(guide, GRAMMARS).error)


def test_an_output_whose_masks_take_too_long_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(np.arange(0, 1000, 0.6))
    monkeypatch.setattr(grammars.time, "thread_time", lambda: float(next(ticks)))
    matcher = compiled(GuideKind.REGEX, "a*").matcher()
    assert [bool(matcher.allowed().any()) for _ in range(6)] == [True, True, True, True, False, False]


# ------------------------------------------------------------------ drafts


def guided(text: str, guide: str) -> GuidedText:
    request = Request("a", (1,), 99, eos_ids=frozenset({EOS}), guide=compiled(GuideKind.REGEX, guide))
    found = GuidedText(request)
    found.follow([1, *(SPELT.index(each) for each in text)])
    return found


@given(st.data())
def test_pruned_drafts_have_the_nodes_whose_paths_conform_and_no_others(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 8))
    tokens = data.draw(st.lists(st.sampled_from([7, 8, 9, SPECIAL, EOS]), min_size=count, max_size=count))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
    free = data.draw(st.booleans())
    draft = Draft.trees([(tokens, parents), ([SPECIAL, 7], [-1, 0])])
    texts = [None if free else guided("a", "a(a|b){0,3}1?"), None]
    found = prune(draft, texts)
    paths = [path_of(tokens, parents, node) for node in range(count)]
    expected = [path for path in paths if free or may_be(path)]
    kept = int(found.counts[0])
    got_tokens, got_parents = found.tokens[0, :kept].tolist(), found.parents[0, :kept].tolist()
    assert [path_of(got_tokens, got_parents, node) for node in range(kept)] == expected
    assert found.tokens[1, :2].tolist() == [SPECIAL, 7] and found.counts[1] == 2


def path_of(tokens: list[int], parents: list[int], node: int) -> tuple[int, ...]:
    return () if node < 0 else (*path_of(tokens, parents, parents[node]), tokens[node])


def may_be(path: tuple[int, ...]) -> bool:
    """Whether `a(a|b){0,3}1?` goes on so behind its `a`, written down without the library."""
    text = "".join("$" if token == EOS else SPELT[token] or "?" for token in path)
    letters = text.rstrip("$").rstrip("1")
    return (
        text.count("$") <= 1
        and text.rstrip("$").count("1") <= 1
        and text == letters + "1" * text.count("1") + "$" * text.count("$")
        and set(letters) <= {"a", "b"}
        and len(letters) <= 3
    )


def test_an_end_of_text_that_may_not_be_generated_is_not_submitted() -> None:
    """As under ignore_eos: where the text is complete, it could be the end and must not."""
    request = Request("a", (1,), 99, guide=compiled(GuideKind.REGEX, "ab?"))
    free, barred = guided("a", "ab?"), GuidedText(request)
    barred.follow([1, 7])
    assert free.conforming([EOS, 8], [-1, -1]) == [True, True]
    assert barred.conforming([EOS, 8, 7], [-1, -1, 0]) == [False, True, False]


def test_drafts_that_were_drawn_keep_their_nodes() -> None:
    """A node must not go for its value: the law of what follows would change."""
    draft = replace(Draft.chains([[SPECIAL, 7]]), probs=torch.ones(1, 2, 16) / 16)
    assert prune(draft, [guided("a", "ab")]) is draft
    certain = replace(draft, certain=torch.tensor([True]))
    assert prune(certain, [guided("a", "ab")]).counts.tolist() == [0]
