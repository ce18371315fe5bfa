"""`--speculative-config`: what is accepted, and that every refusal names its key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtspec.errors import ConfigError
from trtspec.speculative import SpeculativeConfig, from_dict, narrowed, parse
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
        ({"method": "ngram", "tokens": 3}, "method 'ngram' has no key 'tokens'; its keys are method, num_"),
        ({"method": "ngram", "model": "/x"}, "has no key 'model'"),
        ({"method": "none", "num_speculative_tokens": 4}, "method 'none' has no key 'num_speculative_tokens'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens is 0; allowed is 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": True}, "must be a whole number, not True"),
        ({"method": "ngram", "num_speculative_tokens": 2.0}, "must be a whole number, not 2.0"),
        ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup_min is 5; allowed is 1 to 4"),
        ({"method": "medusa", "model": 3}, "model must be a path, not 3"),
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


def test_facts_hold_what_the_method_reads_and_no_path() -> None:
    assert SpeculativeConfig(Method.NONE).facts() == {"method": "none"}
    assert from_dict(BUILT.facts()) == BUILT
    assert "model" not in SpeculativeConfig(Method.MEDUSA, model="/secret").facts()
