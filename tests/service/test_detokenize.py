"""Incremental text: deltas join to the whole, nothing is sent that could be taken back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.fakes import ids_of
from tests.models import tiny_tokenizer
from trtspec.service.detokenize import REPLACEMENT, Detokenizer, StopScanner
from trtspec.service.text import Tokenizer as TextTokenizer

BYTES = tiny_tokenizer().backend_tokenizer
FIRST_BYTE, LAST_BYTE = 3, 258
"""Ids of the single bytes in the tiny tokenizer."""


def decode(ids: Sequence[int]) -> str:
    return BYTES.decode(list(ids), skip_special_tokens=True)


def spaced(*words: str) -> tuple[Tokenizer, list[int]]:
    """A tokenizer that drops the space at the start of a text, as many do, and ids of its words."""
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=words[0]))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, [vocabulary[word] for word in words]


def deltas(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(id_).text for id_ in ids), detokenizer.flush().text]


@given(st.text())
def test_deltas_of_any_text_join_to_it_and_hold_no_half_character(text: str) -> None:
    got = deltas(Detokenizer(decode), BYTES.encode(text, add_special_tokens=False).ids)
    assert "".join(got) == text
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in delta for delta in got)


@given(st.lists(st.integers(FIRST_BYTE, LAST_BYTE), max_size=40))
def test_deltas_of_any_bytes_join_to_the_whole_decode(ids: list[int]) -> None:
    assert "".join(deltas(Detokenizer(decode), ids)) == decode(ids)


@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=40), st.binary(max_size=6))
def test_where_ids_simply_join_no_context_is_needed(ids: list[int], before: bytes) -> None:
    """The short way gives each delta that the long one gives, for text: how often broken bytes count is open."""
    prompt = [FIRST_BYTE + byte for byte in before]
    short = deltas(Detokenizer(decode, prompt, piece=lambda id_: decode([id_])), ids)
    long = deltas(Detokenizer(decode, prompt), ids)
    if not any(REPLACEMENT in delta for delta in long):
        assert short == long


def test_whole_characters_are_not_decoded_again_where_ids_simply_join() -> None:
    asked: list[int] = []
    detokenizer = Detokenizer(lambda ids: asked.append(len(ids)) or decode(ids), piece=lambda id_: decode([id_]))
    asked.clear()
    assert "".join(detokenizer.push(id_).text for id_ in ids_of("plain text")) == "plain text" and asked == []


def test_a_tokenizer_tells_whether_ids_simply_join() -> None:
    joined = TextTokenizer(tiny_tokenizer())
    assert joined.piece is not None and joined.piece(ids_of("a")[0]) == "a"
    tokenizer, _ = spaced("▁a", "▁b")
    assert TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer)).piece is None


def test_a_character_comes_with_its_last_byte() -> None:
    got = deltas(Detokenizer(decode), ids_of("é😀 한"))
    assert [delta for delta in got if delta] == ["é", "😀", " ", "한"]
    assert len(got) == 10 + 1


def test_a_stream_that_ends_inside_a_character_flushes_once() -> None:
    detokenizer = Detokenizer(decode)
    assert [detokenizer.push(id_).text for id_ in ids_of("aé")[:-1]] == ["a", ""]
    assert detokenizer.flush().text == REPLACEMENT
    assert detokenizer.flush().text == ""


def test_invalid_bytes_do_not_hold_text_back_for_ever() -> None:
    detokenizer = Detokenizer(decode)
    lone_continuation = ids_of("é")[1]
    sent = "".join(detokenizer.push(lone_continuation).text for _ in range(100))
    assert len(sent) >= 96


def test_spaces_between_tokens_survive_a_decoder_that_drops_the_first_one() -> None:
    tokenizer, ids = spaced("▁logs", "▁and", "▁me", "trics", "▁", "▁end")
    assert "".join(deltas(Detokenizer(tokenizer.decode), ids)) == "logs and metrics  end"


def test_the_first_token_keeps_its_space_to_the_right_of_the_prompt() -> None:
    tokenizer, ids = spaced("▁The", "▁capital", "▁is", "▁Paris")
    assert "".join(deltas(Detokenizer(tokenizer.decode, prompt=ids[:3]), ids[3:])) == " Paris"


def test_special_tokens_have_no_text_and_cost_no_more_the_more_there_are() -> None:
    longest = 0

    def measured(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    detokenizer = Detokenizer(measured)
    assert "".join(deltas(detokenizer, [*ids_of("a"), *[1] * 500, *ids_of("b")])) == "ab"
    assert longest < 40


@pytest.mark.parametrize("size", range(1, 7))
def test_text_that_only_looks_like_a_stop_string_is_sent_once(size: int) -> None:
    text = " Alice!, Alic and more"
    scanner = StopScanner(["\n", "Alice:"])
    got = [scanner.push(text[at : at + size]) for at in range(0, len(text), size)]
    assert not any(found.stop for found in got)
    assert "".join(found.text for found in got) + scanner.rest() == text


@pytest.mark.parametrize("size", range(1, 9))
def test_no_part_of_a_stop_string_is_sent(size: int) -> None:
    scanner, sent, stop = StopScanner(["END", "a much longer stop string"]), "", None
    text = "text EN and a much longer stop string!"
    for at in range(0, len(text), size):
        found = scanner.push(text[at : at + size])
        sent += found.text
        if stop := found.stop:
            break
    assert (sent, stop) == ("text EN and ", "a much longer stop string")


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1), st.integers(1, 5))
def test_the_stop_that_completes_first_wins_however_text_is_split(text: str, stops: list[str], size: int) -> None:
    expected: tuple[str, str | None] = (text, None)
    for end in range(1, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            longest = max(ending, key=len)
            expected = text[: end - len(longest)], longest
            break
    scanner, sent, stop = StopScanner(stops), "", None
    for at in range(0, len(text), size):
        found = scanner.push(text[at : at + size])
        sent += found.text
        if stop := found.stop:
            break
    assert (sent + scanner.rest(), stop) == expected


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 12),
)
def test_a_stop_string_that_completes_among_the_first_tokens_is_text(text: str, stops: list[str], least: int) -> None:
    expected: tuple[str, str | None] = (text, None)
    for end in range(least + 1, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            longest = max(ending, key=len)
            expected = text[: end - len(longest)], longest
            break
    detokenizer = Detokenizer(decode, scanner=StopScanner(stops), min_tokens=least)
    sent, stop = "", None
    for id_ in ids_of(text):
        found = detokenizer.push(id_)
        sent += found.text
        if stop := found.stop:
            break
    if stop is None:
        sent += detokenizer.flush().text
    assert (sent, stop) == expected


@pytest.mark.parametrize(("least", "stop"), [(1, REPLACEMENT), (2, None)])
def test_the_end_completes_no_stop_string_among_the_first_tokens(least: int, stop: str | None) -> None:
    detokenizer = Detokenizer(decode, scanner=StopScanner([REPLACEMENT]), min_tokens=least)
    assert [detokenizer.push(id_).text for id_ in ids_of("aé")[:-1]] == ["a", ""]
    found = detokenizer.flush()
    assert (found.text, found.stop) == ("" if stop else REPLACEMENT, stop)


def test_an_included_stop_string_stays_and_what_follows_does_not() -> None:
    found = StopScanner(["stop"], include=True).push("do not stop here")
    assert (found.text, found.stop) == ("do not stop", "stop")


def test_a_stop_string_that_completes_with_the_end_is_told() -> None:
    # The last byte is missing, so only the end makes a replacement character of the others.
    ids = ids_of("aé")[:-1]
    detokenizer = Detokenizer(decode, scanner=StopScanner([REPLACEMENT]))
    assert "".join(detokenizer.push(id_).text for id_ in ids) == "a"
    found = detokenizer.flush()
    assert (found.text, found.stop) == ("", REPLACEMENT)
