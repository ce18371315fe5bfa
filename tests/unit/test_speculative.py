"""`--speculative-config`: what is accepted, and that every refusal names its key."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.errors import ConfigError
from trtspec.narrowing import narrowed
from trtspec.speculative import EXACT, REJECTION, TYPICAL, WINDOWS, SpeculativeConfig, from_dict, parse
from trtspec.types import Method

BUILT = SpeculativeConfig(Method.NGRAM, num_speculative_tokens=4, prompt_lookup_min=2, prompt_lookup_max=3)


def test_text_and_file_say_the_same(tmp_path: Path) -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 6}'
    (tmp_path / "config.json").write_text(text)
    assert parse(text) == parse(f"@{tmp_path}/config.json") == {"method": "ngram", "num_speculative_tokens": 6}
    assert from_dict(parse(text)) == SpeculativeConfig(Method.NGRAM, num_speculative_tokens=6)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, '"method" is missing'),
        ([1], "must be a JSON object, not list"),
        ({"method": "magic"}, "method 'magic' is unknown; known are none, ngram"),
        ({"method": ["ngram"]}, "is unknown"),
        ({"method": "ngram", "tokens": 3}, "method 'ngram' has no key 'tokens'; its keys are acceptance, acceptance_"),
        ({"method": "ngram", "model": "/x"}, "has no key 'model'"),
        ({"method": "none", "num_speculative_tokens": 4}, "method 'none' has no key 'num_speculative_tokens'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens is 0; allowed is 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": True}, "must be a whole number, not True"),
        ({"method": "ngram", "num_speculative_tokens": 2.0}, "must be a whole number, not 2.0"),
        ({"method": "ngram", "prompt_lookup_min": 33}, "prompt_lookup_min is 33; allowed is 1 to 32"),
        ({"method": "medusa", "model": 3}, "model must be a path, not 3"),
        ({"method": "medusa", "dynamic_tree": True}, "method 'medusa' has no key 'dynamic_tree'"),
        ({"method": "eagle", "typical_alpha": 0.3}, "method 'eagle' has no key 'typical_alpha'"),
        ({"method": "ngram", "acceptance": "typical"}, "is 'typical'; method 'ngram' has exact, engine"),
        ({"method": "eagle", "prompt_lookup_min": 2}, "method 'eagle' has no key 'prompt_lookup_min'"),
        ({"method": "mtp", "ngram_first": 33}, "ngram_first is 33; allowed is 0 to 32"),
        ({"method": "mtp", "ngram_first": -1}, "ngram_first is -1; allowed is 0 to 32"),
        ({"method": "eagle", "dynamic_tree": 1}, "dynamic_tree must be true or false, not 1"),
        ({"method": "eagle", "max_tree_nodes": 65}, "max_tree_nodes is 65; allowed is 1 to 64"),
        ({"method": "eagle", "tree_width": 0}, "tree_width is 0; allowed is 1 to 64"),
        ({"method": "eagle", "min_confidence": 1.5}, "min_confidence is 1.5; allowed is 0 to 1"),
        ({"method": "eagle", "min_confidence": math.nan}, "min_confidence is nan; allowed is 0 to 1"),
        ({"method": "eagle", "min_confidence": "a"}, "min_confidence must be a number, not 'a'"),
        ({"method": "eagle", "min_confidence": True}, "min_confidence must be a number, not True"),
        ({"method": "medusa", "typical_threshold": -0.1}, "typical_threshold is -0.1; allowed is 0 to 1"),
        ({"method": "medusa", "typical_alpha": 2}, "typical_alpha is 2.0; allowed is 0 to 1"),
        ({"method": "medusa", "acceptance": 1}, "acceptance must be a text, not 1"),
        ({"method": "medusa", "acceptance": "rejection"}, "is 'rejection'; method 'medusa' has exact, typical"),
        ({"method": "draft_model", "acceptance": "typical"}, "is 'typical'; method 'draft_model' has exact, rejection"),
        ({"method": "eagle", "acceptance": "rejection"}, "is 'rejection'; method 'eagle' has exact, typical"),
        ({"method": "mtp", "acceptance": "typical"}, "acceptance is 'typical'; method 'mtp' has exact"),
        (
            {"method": "lookahead", "num_speculative_tokens": 4},
            "method 'lookahead' has no key 'num_speculative_tokens'",
        ),
        ({"method": "lookahead", "ngram_size": 1}, "ngram_size is 1; allowed is 2 to 32"),
        ({"method": "lookahead", "window_size": 0}, "window_size is 0; allowed is 1 to 64"),
        ({"method": "draft_model", "acceptance": "rejection", "tree": [[0]]}, "is for chains, and there is a tree"),
        ({"method": "draft_model", "acceptance": "rejection", "dynamic_tree": True}, "is for chains"),
        ({"method": "eagle", "tree": [[0]], "dynamic_tree": True}, "tree and dynamic_tree exclude each other"),
        ({"method": "medusa", "tree": [0, 1]}, r"tree must be a list of paths, .* not \[0, 1\]"),
        ({"method": "medusa", "tree": [[]]}, "tree must be a list of paths"),
        ({"method": "medusa", "tree": [[-1]]}, "tree must be a list of paths"),
        ({"method": "medusa", "tree": [[64]]}, "tree must be a list of paths"),
        ({"method": "medusa", "tree": [[True]]}, "tree must be a list of paths"),
        ({"method": "medusa", "tree": [[0, 0]]}, r"tree names \[0, 0\] before its parent, or twice"),
        ({"method": "medusa", "tree": [[0], [0]]}, r"tree names \[0\] before its parent, or twice"),
        (
            {"method": "medusa", "tree": [[0], [0, 0]], "num_speculative_tokens": 1},
            r"tree has \[0, 0\], 2 deep, and num_speculative_tokens is 1; raise it",
        ),
        ({"method": "mtp", "max_concurrency": 4}, "method 'mtp' has no key 'max_concurrency'"),
        ({"method": "ngram", "max_concurrency": 0}, "max_concurrency is 0; allowed is 1 or more, or null"),
        ({"method": "ngram", "max_concurrency": 1.0}, "max_concurrency must be a whole number, not 1.0"),
        ({"method": "ngram", "draft_len_schedule": [[1, 8]]}, "draft_len_schedule must be an object of whole numbers"),
        ({"method": "ngram", "draft_len_schedule": {"1": "8"}}, "draft_len_schedule must be an object of whole"),
        ({"method": "ngram", "draft_len_schedule": {"01": 8}}, "draft_len_schedule must be an object of whole"),
        ({"method": "ngram", "draft_len_schedule": {"one": 8}}, "draft_len_schedule must be an object of whole"),
        ({"method": "ngram", "draft_len_schedule": {"1": True}}, "draft_len_schedule must be an object of whole"),
        ({"method": "ngram", "draft_len_schedule": {"2": 0}}, "draft_len_schedule has nothing for 1 request"),
        (
            {"method": "ngram", "num_speculative_tokens": 8, "draft_len_schedule": {"2": 0}},
            "says nothing for 1 request",
        ),
        ({"method": "ngram", "draft_len_schedule": {"1": 0, "4": 0}}, "draft_len_schedule has 0 for 1 request"),
        ({"method": "ngram", "draft_len_schedule": {"1": 8, "0": 8}}, "draft_len_schedule names 0 requests; allowed"),
        ({"method": "ngram", "draft_len_schedule": {"1": 8, "4": 9}}, "has 9 tokens from 4 requests on; allowed is 0"),
        ({"method": "ngram", "draft_len_schedule": {"1": 8, "4": -1}}, "has -1 tokens from 4 requests on"),
        (
            {"method": "ngram", "draft_len_schedule": {"1": 3}, "num_speculative_tokens": 4},
            "has 3 tokens for 1 request and num_speculative_tokens is 4; make them equal",
        ),
        ({"method": "ngram", "acceptance_window": -1}, "acceptance_window is -1; allowed is 0 or more"),
        ({"method": "ngram", "acceptance_window": 5}, "acceptance_window is 5 and acceptance_length_threshold is 0.0"),
        ({"method": "ngram", "acceptance_length_threshold": 0.5}, "acceptance_window is 0 and .*_threshold is 0.5"),
        ({"method": "ngram", "acceptance_length_threshold": math.nan}, "threshold is nan; allowed is 0 to num_spec"),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "acceptance_length_threshold": 5},
            "acceptance_length_threshold is 5.0; allowed is 0 to num_speculative_tokens, which is 4",
        ),
        ({"method": "medusa", "tree": [[i] for i in range(64)] + [[0, 0]]}, "tree has 65 nodes; allowed is 64"),
    ],
)
def test_wrong_values_are_named(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(json.dumps(value))


def test_unreadable_texts_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe{")
    for text, message in (
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"method": "ngram", "method": "none"}', "the key 'method' stands there twice"),
        (f"@{tmp_path}/none", "cannot read"),
        (f"@{tmp_path}/binary", "is not a text file"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(text)


def test_keys_that_are_not_written_keep_what_was_built() -> None:
    assert narrowed(BUILT, None) == narrowed(BUILT, {"method": "ngram"}) == BUILT
    assert narrowed(BUILT, {"method": "ngram", "num_speculative_tokens": 2}).prompt_lookup_min == 2
    assert narrowed(BUILT, {"method": "none"}).draft_tokens == 0


def test_an_engine_is_only_narrowed() -> None:
    with pytest.raises(ConfigError, match="is 5 and the engine was built for at most 4"):
        narrowed(BUILT, {"method": "ngram", "num_speculative_tokens": 5})
    with pytest.raises(ConfigError, match="asks for medusa and the engine was built for ngram"):
        narrowed(BUILT, {"method": "medusa"})
    with pytest.raises(ConfigError, match="'engine', which is compiled into engines, and the engine was built with"):
        narrowed(BUILT, {"method": "ngram", "acceptance": "engine"})


TREE = ((0,), (1,), (0, 0), (0, 0, 0))
STATIC = SpeculativeConfig(Method.EAGLE, num_speculative_tokens=4, tree=TREE)
DYNAMIC = SpeculativeConfig(Method.EAGLE, num_speculative_tokens=4, dynamic_tree=True, max_tree_nodes=12)


def test_depth_and_tree_change_within_what_was_built() -> None:
    """Less depth cuts the built tree; another shape takes its place; other settings stay."""
    assert narrowed(STATIC, {"method": "eagle", "num_speculative_tokens": 2}).tree == TREE[:3]
    assert narrowed(STATIC, {"method": "eagle", "tree": [[0], [1], [2]]}).tree == ((0,), (1,), (2,))
    chain = narrowed(STATIC, {"method": "eagle", "tree": [], "min_confidence": 0.25})
    assert (chain.tree, chain.num_speculative_tokens, chain.min_confidence) == ((), 4, 0.25)
    grown = narrowed(STATIC, {"method": "eagle", "dynamic_tree": True, "max_tree_nodes": 4})
    assert (grown.tree, grown.dynamic_tree, grown.draft_nodes) == ((), True, 4)
    fixed = narrowed(DYNAMIC, {"method": "eagle", "tree": [[0], [1]]})
    assert (fixed.tree, fixed.dynamic_tree) == (((0,), (1,)), False)
    chain = narrowed(DYNAMIC, {"method": "eagle", "tree": []})
    assert (chain.tree, chain.dynamic_tree, chain.draft_nodes) == ((), False, 4)
    assert narrowed(DYNAMIC, {"method": "eagle", "tree_width": 2}).max_tree_nodes == 12


@pytest.mark.parametrize(
    ("built", "asked", "message"),
    [
        (
            STATIC,
            {"tree": [[0], [1], [2], [3], [4]]},
            "nodes of tree is 5 and the engine was built for at most 4",
        ),
        (STATIC, {"dynamic_tree": True, "max_tree_nodes": 5}, "is 5 and the engine was built for at most 4"),
        (DYNAMIC, {"max_tree_nodes": 13}, "is 13 and the engine was built for at most 12"),
        (DYNAMIC, {"num_speculative_tokens": 5}, "num_speculative_tokens is 5 and the engine was built for at most 4"),
        (STATIC, {"tree": [[0], [0, 0]], "num_speculative_tokens": 1}, "2 deep, and num_speculative_tokens is 1"),
    ],
)
def test_no_tree_grows_beyond_what_was_built(built: SpeculativeConfig, asked: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        narrowed(built, {"method": built.method.value, **asked})


def test_an_engine_that_promises_the_law_of_the_target_keeps_it() -> None:
    """What a manifest labels as exact is never served with typical acceptance; the other way is safe."""
    built = SpeculativeConfig(Method.MEDUSA)
    with pytest.raises(ConfigError, match="acceptance is 'typical', which is not lossless, and the .* with 'exact'"):
        narrowed(built, {"method": "medusa", "acceptance": "typical"})
    loose = SpeculativeConfig(Method.MEDUSA, acceptance=TYPICAL)
    assert narrowed(loose, {"method": "medusa", "typical_alpha": 0.2}).acceptance == TYPICAL
    assert narrowed(loose, {"method": "medusa", "acceptance": "exact"}).acceptance == EXACT
    small = SpeculativeConfig(Method.DRAFT_MODEL)
    assert narrowed(small, {"method": "draft_model", "acceptance": "rejection"}).acceptance == REJECTION
    with pytest.raises(ConfigError, match='ask for "tree": '):
        narrowed(replace(small, tree=((0,),)), {"method": "draft_model", "acceptance": "rejection"})


@pytest.mark.parametrize(
    ("config", "nodes"),
    [
        (SpeculativeConfig(Method.NONE), 0),
        (SpeculativeConfig(Method.NGRAM, num_speculative_tokens=5), 5),
        (STATIC, 4),
        (DYNAMIC, 12),
        (replace(DYNAMIC, max_tree_nodes=2), 2),
        (replace(DYNAMIC, max_tree_nodes=2, ngram_first=2), 4),
        (replace(STATIC, tree=((0,), (1,)), ngram_first=3), 4),
    ],
)
def test_a_draft_has_room_for_its_tree_and_for_the_chain_that_may_replace_it(
    config: SpeculativeConfig, nodes: int
) -> None:
    assert config.draft_nodes == nodes


@pytest.mark.parametrize(
    "config",
    [
        STATIC,
        DYNAMIC,
        replace(STATIC, ngram_first=2, min_confidence=0.1),
        SpeculativeConfig(Method.MEDUSA, acceptance=TYPICAL, typical_threshold=0.2, typical_alpha=0.5, tree=TREE),
        SpeculativeConfig(Method.DRAFT_MODEL, acceptance=REJECTION, num_speculative_tokens=3),
        SpeculativeConfig(Method.MTP, tree=TREE),
        SpeculativeConfig(Method.EAGLE3, dynamic_tree=True, tree_width=2),
        SpeculativeConfig(Method.EAGLE3, max_concurrency=8, draft_len_schedule=((1, 8), (4, 2), (12, 0))),
        SpeculativeConfig(Method.NGRAM, acceptance_window=50, acceptance_length_threshold=0.5),
    ],
)
def test_facts_say_all_that_a_method_reads_and_are_read_again_from_json(config: SpeculativeConfig) -> None:
    facts = json.loads(json.dumps(config.facts()))
    assert from_dict(facts) == config
    assert facts == config.facts()


def test_equal_settings_have_equal_facts_however_they_are_written() -> None:
    """A whole number stands for a fraction, and the engine's identity must not tell them apart."""
    written = [{"method": "eagle", "min_confidence": value} for value in (0, 0.0, 0.5)]
    facts = [json.dumps(from_dict(value).facts()) for value in written]
    assert facts[0] == facts[1] != facts[2]


def test_facts_hold_what_the_method_reads_and_no_path() -> None:
    assert SpeculativeConfig(Method.NONE).facts() == {"method": "none"}
    assert from_dict(BUILT.facts()) == BUILT
    assert "model" not in SpeculativeConfig(Method.MEDUSA, model="/secret").facts()


def test_what_is_not_written_is_what_was_built_and_no_default() -> None:
    long = SpeculativeConfig(Method.NGRAM, num_speculative_tokens=10, prompt_lookup_min=2, prompt_lookup_max=8)
    assert narrowed(long, parse('{"method": "ngram", "prompt_lookup_min": 6}')).prompt_lookup_max == 8
    deep = SpeculativeConfig(Method.EAGLE, num_speculative_tokens=10)
    path = [[0] * length for length in range(1, 11)]
    assert len(narrowed(deep, parse(json.dumps({"method": "eagle", "tree": path}))).tree) == 10
    small = narrowed(STATIC, {"method": "eagle", "dynamic_tree": True})
    assert small.max_tree_nodes == STATIC.draft_nodes


def test_an_engine_keeps_its_drafter() -> None:
    with pytest.raises(ConfigError, match="names the model '/other' and the engine has its drafter in its folder"):
        narrowed(STATIC, {"method": "eagle", "model": "/other"})


@pytest.mark.parametrize(("sizes", "nodes", "depth"), [((4, 3, 4), 15, 2), ((5, 6, 7), 59, 5), ((1, 2, 0), 0, 1)])
def test_lookahead_counts_nodes_as_the_method_does(sizes: tuple[int, int, int], nodes: int, depth: int) -> None:
    """The first two are worked examples of TensorRT-LLM's documentation."""
    config = SpeculativeConfig(Method.LOOKAHEAD, **dict(zip(WINDOWS, sizes, strict=True)))
    assert (config.draft_nodes, config.draft_tokens) == (nodes, depth)


@pytest.mark.parametrize("key", WINDOWS)
def test_lookahead_is_narrowed_on_every_axis(key: str) -> None:
    built = SpeculativeConfig(Method.LOOKAHEAD)
    smaller = getattr(built, key) - 1
    assert getattr(narrowed(built, {"method": "lookahead", key: smaller}), key) == smaller
    with pytest.raises(ConfigError, match=f"{key} is {smaller + 2} and the engine was built for at most {smaller + 1}"):
        narrowed(built, {"method": "lookahead", key: smaller + 2})


LIMITED = SpeculativeConfig(
    Method.NGRAM,
    num_speculative_tokens=4,
    max_concurrency=9,
    draft_len_schedule=((1, 4), (4, 2), (8, 0)),
    acceptance_window=50,
    acceptance_length_threshold=0.5,
)


def test_limits_are_written_as_json_has_them() -> None:
    asked = {"method": "ngram", "num_speculative_tokens": 4, "max_concurrency": 9, "acceptance_window": 50}
    asked |= {"draft_len_schedule": {"8": 0, "1": 4, "4": 2}, "acceptance_length_threshold": 0.5}
    assert from_dict(parse(json.dumps(asked))) == LIMITED
    assert LIMITED.limits["draft_len_schedule"] == {1: 4, 4: 2, 8: 0}


def test_limits_that_are_off_are_no_facts() -> None:
    """So that engines from before there were limits keep their identity."""
    off = {"max_concurrency": None, "draft_len_schedule": {}, "acceptance_window": 0, "acceptance_length_threshold": 0}
    plain = from_dict({"method": "ngram"})
    assert from_dict(parse(json.dumps({"method": "ngram", **off}))) == plain and plain.limits == {}
    lookup = {"prompt_lookup_max", "prompt_lookup_min", "acceptance"}
    assert set(plain.facts()) == {"method", "num_speculative_tokens", *lookup}


@pytest.mark.parametrize(("requests", "depth"), [(1, 4), (3, 4), (4, 2), (7, 2), (8, 0), (9, 0)])
def test_the_depth_follows_the_requests(requests: int, depth: int) -> None:
    assert LIMITED.depth_at(requests, 4) == depth
    few = replace(LIMITED, max_concurrency=3, draft_len_schedule=())
    assert few.depth_at(requests, 4) == (4 if requests <= 3 else 0)


def test_limits_change_at_run_time() -> None:
    assert narrowed(LIMITED, {"method": "ngram", "max_concurrency": None}).max_concurrency is None
    assert narrowed(BUILT, {"method": "ngram", "max_concurrency": 2}).max_concurrency == 2
    assert narrowed(BUILT, parse('{"method": "ngram", "draft_len_schedule": {"1": 4, "2": 0}}')).depth_at(2, 4) == 0
    shallow = narrowed(LIMITED, {"method": "ngram", "num_speculative_tokens": 1, "acceptance_window": 0})
    assert shallow.draft_len_schedule == ((1, 1), (4, 1), (8, 0))


@pytest.mark.parametrize("key", ["acceptance_window", "acceptance_length_threshold"])
def test_either_half_of_the_gate_opens_it(key: str) -> None:
    """And none of them alone closes it."""
    found = narrowed(LIMITED, {"method": "ngram", key: 0})
    assert (found.acceptance_window, found.acceptance_length_threshold) == (0, 0.0)
    with pytest.raises(ConfigError, match="one does nothing without the other"):
        narrowed(BUILT, {"method": "ngram", key: 1})
