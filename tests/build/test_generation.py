"""Sampling defaults and end-of-text ids follow the rule of transformers' `generate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.generation import generation_defaults
from trtspec.errors import CheckpointError
from trtspec.generation import NAME, read, write
from trtspec.types import SamplingParams

GREEDY = SamplingParams()


def test_end_ids_are_the_union() -> None:
    assert generation_defaults(None, frozenset({9, 2}), 5).eos_ids == {2, 5, 9}
    assert generation_defaults(None, frozenset({9, 2}), 2).eos_ids == {2, 9}
    assert generation_defaults(None, frozenset(), None).eos_ids == frozenset()


def test_without_a_config_the_default_is_greedy() -> None:
    defaults = generation_defaults(None, frozenset(), None)
    assert defaults.sampling == GREEDY
    assert "no generation config" in defaults.source


@pytest.mark.parametrize("config", [{}, {"do_sample": False, "temperature": 0.7}, {"top_p": 0.9}])
def test_config_that_does_not_sample_is_greedy(config: dict[str, object]) -> None:
    assert generation_defaults(config, frozenset(), None).sampling == GREEDY


def test_sampling_config_is_completed_as_transformers_does() -> None:
    bare = generation_defaults({"do_sample": True}, frozenset(), None)
    assert bare.sampling == SamplingParams(temperature=1.0, top_k=50, top_p=1.0, min_p=0.0)
    asked = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
    full = generation_defaults({"do_sample": True, **asked}, frozenset(), None)
    assert full.sampling == SamplingParams(**asked)


@pytest.mark.parametrize("sampled", [False, True])
def test_penalty_and_least_length_act_in_greedy_decoding_too(sampled: bool) -> None:
    config = {"do_sample": sampled, "temperature": 0.5, "repetition_penalty": 1.1, "min_new_tokens": 3}
    defaults = generation_defaults(config, frozenset(), None)
    assert (defaults.sampling.repetition_penalty, defaults.sampling.min_tokens) == (1.1, 3)
    assert defaults.sampling.temperature == (0.5 if sampled else 0.0)
    assert defaults.source.endswith(" min_new_tokens 3 is applied as min_tokens.")


def test_settings_that_are_not_applied_are_named() -> None:
    config = {"do_sample": True, "no_repeat_ngram_size": 2, "num_beams": 1, "bad_words_ids": [[7]]}
    source = generation_defaults(config, frozenset(), None).source
    assert source.endswith("Not applied: bad_words_ids [[7]], no_repeat_ngram_size 2.")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("temperature", -1, "a number, 0 to 100"),
        ("temperature", 100.5, "a number, 0 to 100"),
        ("temperature", "hot", "a number, 0 to 100"),
        ("temperature", True, "a number, 0 to 100"),
        ("temperature", float("nan"), "a number, 0 to 100"),
        ("temperature", float("inf"), "a number, 0 to 100"),
        ("top_k", -1, "a whole number, 0 to 2147483647"),
        ("top_k", 20.5, "a whole number, 0 to 2147483647"),
        ("top_k", 2**31, "a whole number, 0 to 2147483647"),
        ("top_p", 0, "a number above 0 and at most 1"),
        ("top_p", 1.01, "a number above 0 and at most 1"),
        ("min_p", 1.0, "a number, 0 or more and below 1"),
        ("min_p", -0.1, "a number, 0 or more and below 1"),
        ("repetition_penalty", 0, "a number, 0.01 to 100"),
        ("repetition_penalty", float("inf"), "a number, 0.01 to 100"),
        ("min_new_tokens", -1, "a whole number, 0 to 2147483647"),
        ("min_new_tokens", 1.5, "a whole number, 0 to 2147483647"),
    ],
)
def test_value_that_a_server_would_refuse_is_refused(key: str, value: object, allowed: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        generation_defaults({"do_sample": True, key: value}, frozenset(), None)
    assert str(refusal.value) == f"generation_config.json: {key} is {value!r}; allowed is {allowed}"


@pytest.mark.parametrize(("key", "value"), [("temperature", 100), ("top_k", 2**31 - 1), ("top_p", 1), ("min_p", 0)])
def test_bounds_are_allowed(key: str, value: object) -> None:
    defaults = generation_defaults({"do_sample": True, key: value}, frozenset(), None)
    assert getattr(defaults.sampling, key) == value


def test_a_server_reads_what_is_written(tmp_path: Path) -> None:
    config = {"do_sample": True, "temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.125}
    config |= {"repetition_penalty": 1.25, "min_new_tokens": 4}
    defaults = generation_defaults(config, frozenset({1}), 0)
    write(defaults, tmp_path)
    assert read(tmp_path) == defaults
    assert json.loads((tmp_path / NAME).read_text())["eos_token_ids"] == [0, 1]


def test_a_folder_of_an_older_build_is_read(tmp_path: Path) -> None:
    old = {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.125}
    (tmp_path / NAME).write_text(json.dumps({"eos_token_ids": [1], "sampling": old, "source": "x"}))
    assert read(tmp_path).sampling == SamplingParams(**old)
