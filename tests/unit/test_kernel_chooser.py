"""Choosing on a device decides what the host decides: whole passes of random rows, on the CPU.

The eager twins stand for the kernels where many passes are tried; interpreted kernels try some of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plugins import eager
from plugins.launch import ChosenTokens
from tests.choosers import CHOOSERS, TWIN_FUNCTIONS, TWINS
from tests.fake_gpu import FakeGpu, on_gpu
from tests.law import world
from tests.law.passes import PROMPT, drawn_chain, one_pass
from tests.plans import chunk_row, decode_row, plan_of
from trtspec.decoding.acceptance import rejection
from trtspec.decoding.chooser import HOST, Chooser
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.plan import PlanRow, StepPlan
from trtspec.decoding.processors import PlaceEdits
from trtspec.decoding.sampling import NO_TOKEN, NOTHING_ALLOWED
from trtspec.decoding.verify import Outcome
from trtspec.executors.embedded.chosen_places import bits, groups, send_all
from trtspec.executors.embedded.kernel_chooser import KernelChooser, Kernels
from trtspec.types import Request, SamplingParams

VOCABULARY = 12
SMALL_GROUPS = KernelChooser(TWINS, most_processed=3 * VOCABULARY)

PLAIN = [SamplingParams(), SamplingParams(1.0)]
PROCESSED = [
    SamplingParams(0.7),
    SamplingParams(1.6, top_k=3),
    SamplingParams(1.0, top_p=0.7),
    SamplingParams(0.8, min_p=0.2, top_k=6, top_p=0.95),
]
EDITED = [
    SamplingParams(min_tokens=3),
    SamplingParams(0.9, repetition_penalty=1.4, frequency_penalty=0.3),
    SamplingParams(presence_penalty=2.0, bad_words=((3,), (1, 2))),
    SamplingParams(1.0, logit_bias=((2, 3e38), (4, -math.inf)), repetition_penalty=0.01),
    SamplingParams(1.2, logit_bias=tuple((token, -math.inf) for token in range(VOCABULARY))),
    SamplingParams(bad_words=tuple((token,) for token in range(VOCABULARY))),
]
KINDS = [*PLAIN, *PROCESSED, *EDITED]
FAULTS = (math.nan, math.inf, -math.inf)
FAULT_TOKENS = {NO_TOKEN, NOTHING_ALLOWED}


class Counted(Editor):
    """Counts the places whose edits are asked for."""

    places = 0

    def edits(self, row: PlanRow, path: Sequence[int], logits: Tensor) -> PlaceEdits | None:
        self.places += 1
        return super().edits(row, path, logits)


def led(rows: PassRows) -> PassRows:
    """The same with drafts that the target follows for some steps: first children of a path get what it chooses."""
    tokens = rows.draft.tokens.clone()
    rows = rows._replace(draft=replace(rows.draft, tokens=tokens))
    for step in range(3):
        outcome = HOST.exact(rows, Editor())
        for index in range(step, len(tokens)):
            node = max(outcome.path[index].tolist(), default=-1)
            parents = rows.draft.parents[index, : rows.draft.counts[index]].tolist()
            if node in parents and outcome.bonus[index] >= 0:
                tokens[index, parents.index(node)] = outcome.bonus[index]
    return rows


@st.composite
def passes(draw: st.DrawFn) -> tuple[PassRows, Chooser]:
    """Rows of every kind, some with a tree, some in the middle of a prompt, some whose prompt is scored too."""
    values = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 5))
    kinds = draw(st.sampled_from([KINDS, PLAIN, PROCESSED, [*PLAIN, *PROCESSED]]))
    rows, trees, places = [], [], 0
    for index in range(count):
        row, tree = _row(values, index, kinds[values.integers(len(kinds))])
        rows.append(row)
        trees.append(tree)
        places += row.scored + len(tree[0])
    logits = torch.from_numpy(values.normal(size=(places, VOCABULARY)) * 2).to(draw(st.sampled_from(DTYPES)))
    for place in range(places):
        if values.random() < 0.08:
            at = slice(None) if values.random() < 0.3 else values.integers(VOCABULARY)
            logits[place, at] = FAULTS[values.integers(3)]
    if draw(st.booleans()):  # a part of wider rows
        logits = torch.cat([logits, torch.full_like(logits, math.nan)], dim=1)[:, :VOCABULARY]
    return led(PassRows(plan_of(*rows), Draft.trees(trees), logits)), draw(
        st.sampled_from([CHOOSERS["twins"], SMALL_GROUPS])
    )


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _row(values: Any, index: int, sampling: SamplingParams) -> tuple[PlanRow, tuple[list[int], list[int]]]:
    prompt = tuple(values.integers(0, VOCABULARY, values.integers(1, 5)).tolist())
    seed = int(values.integers(0, 2**64, dtype=np.uint64))
    request = Request(str(index), prompt, 40, sampling, seed=seed, eos_ids=frozenset({values.integers(VOCABULARY)}))
    if values.random() < 0.15 and len(prompt) > 1:
        row = replace(chunk_row(request, 0, len(prompt) - 1, sequence_id=index), choice=int(values.integers(3)))
        return replace(row, scored=row.fed if values.random() < 0.5 else 0), ([], [])
    output = tuple(values.integers(0, VOCABULARY, values.integers(0, 5)).tolist())
    row = replace(decode_row(request, output, sequence_id=index), choice=int(values.integers(3)))
    if values.random() < 0.15:
        row = replace(row, scored=row.fed)
    nodes = int(values.integers(0, 9)) if values.random() < 0.8 else 0
    parents = [int(values.integers(-1, node)) if node else -1 for node in range(nodes)]
    return row, (values.integers(0, VOCABULARY, nodes).tolist(), parents)


def assert_same(found: Outcome, expected: Outcome) -> None:
    for name, ours, theirs in zip(Outcome._fields, found, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.device.type == "cpu", name
        assert ours.tolist() == theirs.tolist(), name


@settings(max_examples=150, deadline=None)
@given(passes())
def test_every_pass_is_decided_as_the_host_decides_it(case: tuple[PassRows, Chooser]) -> None:
    rows, chooser = case
    assert_same(chooser.exact(rows, Editor()), HOST.exact(rows, Editor()))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(passes())
def test_kernels_decide_every_pass_as_the_host_does(case: tuple[PassRows, Chooser]) -> None:
    rows, _ = case
    assert_same(CHOOSERS["kernels"].exact(rows, Editor()), HOST.exact(rows, Editor()))


def test_kernels_decide_a_pass_of_every_kind_of_row() -> None:
    rows = every_kind(torch.bfloat16)
    outcome = CHOOSERS["kernels"].exact(rows, Editor())
    assert_same(outcome, HOST.exact(rows, Editor()))
    assert {0, 1, 2, 3} <= set(outcome.accepted.tolist()) and set(outcome.bonus.tolist()) >= FAULT_TOKENS


def every_kind(dtype: torch.dtype) -> PassRows:
    """A tree of nine nodes for each kind of sampling, and one row more whose logits are no numbers."""
    values = np.random.default_rng(4)
    rows = [
        decode_row(Request(str(i), (1, 2), 40, kind, seed=i, eos_ids=frozenset({5})), (1,), sequence_id=i)
        for i, kind in enumerate([*KINDS, SamplingParams(0.6)])
    ]
    draft = Draft.trees([(values.integers(0, VOCABULARY, 9).tolist(), [-1, -1, 0, 0, 1, 2, 2, 3, 5])] * len(rows))
    logits = torch.from_numpy(values.normal(size=(10 * len(rows), VOCABULARY)) * 2).to(dtype)
    logits[-10:] = math.nan
    return led(PassRows(plan_of(*rows), draft, logits))


@pytest.mark.parametrize("chooser", CHOOSERS.values(), ids=CHOOSERS)
def test_rejection_decides_what_the_host_decides(chooser: KernelChooser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of the papers' rule, in which every fate occurs, with edits and with logits that are no numbers.

    What is beyond a chain's end is not set.
    """
    new_empty = Tensor.new_empty

    def unset(*given: Any, **more: Any) -> Tensor:
        made = new_empty(*given, **more)
        return made.fill_(math.nan) if made.is_floating_point() else made

    monkeypatch.setattr(Tensor, "new_empty", unset)
    place = world.make_world(SamplingParams(0.8, top_k=6))
    place = replace(place, target=place.target.clone())
    place.target[0, 2] = math.nan
    forbidden = SamplingParams(0.8, logit_bias=tuple((token, -math.inf) for token in range(world.VOCABULARY)))
    kinds = [place.sampling, SamplingParams(0.7, presence_penalty=0.5), SamplingParams(), place.sampling, forbidden]
    rows = [decode_row(Request(str(i), PROMPT, 99, kinds[i % 5], seed=i), sequence_id=i) for i in range(40)]
    drawn = [replace(row, request=replace(row.request, sampling=place.sampling)) for row in rows]
    draft = replace(drawn_chain(3)(place, drawn), counts=torch.arange(40) % 4, certain=torch.arange(40) % 8 == 0)
    outcome = one_pass(place, partial(rejection, chooser=chooser), rows, draft)
    assert_same(outcome, one_pass(place, rejection, rows, draft))
    assert set(outcome.accepted.tolist()) == {0, 1, 2, 3} and set(outcome.bonus.tolist()) >= FAULT_TOKENS


@pytest.mark.parametrize(
    ("kinds", "waits", "sent"),
    [
        ([SamplingParams()], ["cpu"], 0),
        (PLAIN, ["cpu"], 1),
        ([*PLAIN, SamplingParams(0.7)], ["cpu"], 2),
        ([SamplingParams(0.7, top_k=4, min_p=0.1)], ["cpu"], 4),
        ([SamplingParams(0.7, top_p=0.9)], ["nonzero", "__int__", "cpu"], 5),
    ],
    ids=["greedy", "plain", "temperature", "top-k", "top-p"],
)
def test_a_pass_over_trees_waits_for_the_device_once(kinds: list[SamplingParams], waits: list[str], sent: int) -> None:
    """But for nuclei, whose size must be known before they are sorted. Nothing mixes devices."""
    rows = every_kind(torch.float32)
    some = rows.pick([0, 1, 2])
    plan = [
        replace(row, request=replace(row.request, sampling=kinds[i % len(kinds)]))
        for i, row in enumerate(some.plan.rows)
    ]
    wide = torch.cat([some.logits, torch.full_like(some.logits, math.nan)], dim=1)  # kernels read rows without gaps
    rows = led(PassRows(plan_of(*plan), some.draft, wide[:, :VOCABULARY]))
    expected = HOST.exact(rows, Editor())
    assert max(expected.accepted.tolist()) > 1
    gpu = FakeGpu()
    chooser = KernelChooser(Kernels(*(gpu.kernel(twin) for twin in TWIN_FUNCTIONS)))
    with gpu:
        outcome = chooser.exact(rows._replace(logits=on_gpu(rows.logits)), Editor())
    assert_same(outcome, expected)
    assert (gpu.waits, gpu.sent) == (waits, sent)


def refused(*given: object) -> Any:
    raise AssertionError("launched")


def test_what_draws_no_noise_is_not_launched() -> None:
    """Greedy rows, some with drafts, one edited, one in the middle of a prompt."""
    rows = every_kind(torch.bfloat16).pick([0, 6, 0])
    asked = Request("part", (1, 2), 40, SamplingParams(1.0))
    prompt = replace(chunk_row(asked, 0, 1, sequence_id=9), scored=1)
    draft = Draft.trees([([1, 2], [-1, 0]), ([], []), ([3], [-1]), ([], [])])
    some = PassRows(plan_of(*rows.plan.rows, prompt), draft, rows.logits[:7])
    assert_same(KernelChooser(Kernels(refused, refused, refused)).exact(some, Editor()), HOST.exact(some, Editor()))


@pytest.mark.parametrize(("most", "launched"), [(30, [20, 30, 11]), (29, [20, 11])])
def test_more_truncated_places_than_are_processed_together_are_chosen_where_the_walk_comes(
    most: int, launched: list[int]
) -> None:
    """Three trees of ten places and one more without nodes, beside three rows of which nothing is truncated."""
    rows = every_kind(torch.float32).pick([1, 2, 3, 4, 5, 0, 5])
    best = rows.plan.rows[5]
    best = replace(best, request=replace(best.request, sampling=SamplingParams(0.0, top_k=2)))
    plan, counts = plan_of(*rows.plan.rows[:5], best, rows.plan.rows[6]), torch.tensor([9, 9, 9, 9, 9, 9, 0])
    rows = PassRows(plan, replace(rows.draft, counts=counts), rows.logits[:61])
    seen = list[int]()

    def choose_token(logits: Tensor, *more: Any) -> ChosenTokens:
        seen.append(len(logits))
        return eager.choose_token(logits, *more)

    chooser = KernelChooser(replace(TWINS, choose_token=choose_token), most_processed=most * VOCABULARY)
    assert_same(chooser.exact(rows, Editor()), HOST.exact(rows, Editor()))
    assert seen == launched


def test_edits_are_made_where_the_walk_comes_and_nothing_mixes_devices() -> None:
    rows = every_kind(torch.float16)
    gpu, editor, launched = FakeGpu(), Counted(), list[int]()

    def choose_token(logits: Tensor, *more: Any) -> ChosenTokens:
        launched.append(len(logits))
        return eager.choose_token(logits, *more)

    kernels = (choose_token, *TWIN_FUNCTIONS[1:])
    chooser = KernelChooser(Kernels(*(gpu.kernel(kernel) for kernel in kernels)), most_processed=30 * VOCABULARY)
    with gpu:
        outcome = chooser.exact(rows._replace(logits=on_gpu(rows.logits)), editor)
    assert_same(outcome, HOST.exact(rows, Editor()))
    edited = outcome.accepted[len(PLAIN) + len(PROCESSED) : len(KINDS)]
    assert editor.places == int(edited.sum()) + len(EDITED) < 10 * len(EDITED)
    assert launched == [10 * len(PLAIN), 30, 20], "of the others, at most so many are processed together"


@pytest.mark.parametrize("certain", [0, 2], ids=["all drawn", "some certain"])
def test_each_rule_of_a_pass_waits_once_and_mixes_no_devices(certain: int) -> None:
    """Laws that were drawn on the device stay there."""
    place = world.make_world(SamplingParams(0.8))
    rows = [decode_row(Request(str(i), PROMPT, 99, place.sampling, seed=i), sequence_id=i) for i in range(6)]
    draft = replace(drawn_chain(2)(place, rows), certain=torch.arange(6) < certain)
    gpu = FakeGpu()
    chooser = KernelChooser(Kernels(*(gpu.kernel(twin) for twin in TWIN_FUNCTIONS)))

    def there(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor) -> Outcome:
        assert draft.probs is not None
        with gpu:
            told = replace(draft, probs=on_gpu(draft.probs))
            return rejection(plan, told, on_gpu(logits), editor, chooser=chooser)

    assert_same(one_pass(place, there, rows, draft), one_pass(place, rejection, rows, draft))
    assert gpu.waits == ["cpu"] * (1 + (certain > 0))


def test_arrays_that_are_sent_begin_at_multiples_of_sixteen_bytes() -> None:
    """Else Triton would compile its kernels again and again."""
    arrays = [np.arange(length) - 2**40 for length in (3, 1, 4, 5, 0, 2)]
    sent = send_all(arrays, torch.device("cpu"))
    for item, array in zip(sent, arrays, strict=True):
        assert item.wide.tolist() == array.tolist() and item.narrow.tolist() == array.astype(np.int32).tolist()
        assert item.wide.storage_offset() % 2 == item.narrow.storage_offset() % 4 == 0
        assert item.wide.is_contiguous() and item.narrow.is_contiguous()


def test_groups_are_plain_places_and_bounded_parts_of_the_others() -> None:
    rows = every_kind(torch.float32)
    taken = [kind not in EDITED for kind in KINDS] + [True]
    made = groups(rows.plan, rows.draft, taken, most=16)
    assert [len(group.source) for group in made] == [20, 16, 16, 16, 2]
    assert made[0].sampling is None and made[0].noisy.tolist() == [0] * 10 + [1] * 10
    assert [kind for group in made[1:] for kind in group.sampling or ()] == [
        kind for kind in [*PROCESSED, SamplingParams(0.6)] for _ in range(10)
    ]
    assert made[-1].source.tolist() == [128, 129] and made[-1].cell.tolist() == [128, 129]
    assert made[0].positions.tolist() == [3, 4, 4, 5, 5, 5, 6, 6, 6, 7] * 2


def test_seeds_are_sent_as_their_bits() -> None:
    assert [bits(seed) for seed in (0, 2**63 - 1, 2**63, 2**64 - 1, -1)] == [0, 2**63 - 1, -(2**63), -1, -1]
