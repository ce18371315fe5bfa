"""Sampling defaults and end-of-text ids follow the rule of transformers' `generate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.generation import generation_defaults
from trtspec.errors import CheckpointError

GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def test_end_ids_are_the_sorted_union() -> None:
    assert generation_defaults(None, frozenset({9, 2}), 5).eos_token_ids == (2, 5, 9)
    assert generation_defaults(None, frozenset({9, 2}), 2).eos_token_ids == (2, 9)
    assert generation_defaults(None, frozenset(), None).eos_token_ids == ()


def test_without_a_config_the_default_is_greedy() -> None:
    defaults = generation_defaults(None, frozenset(), None)
    assert defaults.sampling == GREEDY
    assert "no generation config" in defaults.source


@pytest.mark.parametrize("config", [{}, {"do_sample": False, "temperature": 0.7}, {"top_p": 0.9}])
def test_config_that_does_not_sample_is_greedy(config: dict[str, object]) -> None:
    assert generation_defaults(config, frozenset(), None).sampling == GREEDY


def test_sampling_config_is_completed_as_transformers_does() -> None:
    bare = generation_defaults({"do_sample": True}, frozenset(), None)
    assert bare.sampling == {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
    asked = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
    full = generation_defaults(asked, frozenset(), None)
    assert {"do_sample": True, **full.sampling} == asked


def test_settings_that_are_not_applied_are_named() -> None:
    config = {"do_sample": True, "repetition_penalty": 1.1, "num_beams": 1}
    assert generation_defaults(config, frozenset(), None).source.endswith("Not applied: repetition_penalty 1.1.")


@pytest.mark.parametrize("value", [-1, "hot", True, float("nan"), float("inf")])
def test_wrong_value_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match="temperature is"):
        generation_defaults({"do_sample": True, "temperature": value}, frozenset(), None)


def test_file_holds_what_a_server_reads(tmp_path: Path) -> None:
    defaults = generation_defaults({"do_sample": True, "temperature": 0.5}, frozenset({1}), 0)
    defaults.to_json(tmp_path / "generation.json")
    document = json.loads((tmp_path / "generation.json").read_text())
    assert document["eos_token_ids"] == [0, 1]
    assert document["sampling"]["temperature"] == 0.5
    assert document["source"] == defaults.source
