"""The bound on a token's text: true for the tokenizers that have one, and absent for the others."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from tests.models import tiny_tokenizer
from trtspec.service.token_length import longest_token


def bound(tokenizer: Tokenizer) -> int | None:
    return longest_token(json.loads(tokenizer.to_str()))


def byte_level() -> Tokenizer:
    tokenizer: Tokenizer = tiny_tokenizer().backend_tokenizer
    return tokenizer


def fallback(**options: bool) -> Tokenizer:
    """A tokenizer as SentencePiece makes them: known pieces, and bytes for what is left."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", **options)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


@given(st.text(max_size=60) | st.lists(st.sampled_from(["<|endoftext|>", " the", "an", "é"])).map("".join))
def test_no_text_takes_fewer_tokens_than_the_bound_says(text: str) -> None:
    for tokenizer in (byte_level(), fallback(byte_fallback=True, fuse_unk=True)):
        longest = bound(tokenizer)
        assert longest is not None
        assert len(text) <= longest * len(tokenizer.encode(text, add_special_tokens=False).ids)


def lowered(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Strip()


def shortened(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Replace("  ", " ")


def dropping(tokenizer: Tokenizer) -> None:
    split = pre_tokenizers.Split(" ", "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def greedy_token(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken("<mask>", rstrip=True)])


def other_model(tokenizer: Tokenizer) -> None:
    tokenizer.model = models.WordLevel({"<unk>": 0}, unk_token="<unk>")


@pytest.mark.parametrize("change", [lowered, shortened, dropping, greedy_token, other_model])
def test_a_step_that_may_drop_or_join_text_leaves_no_bound(change: Callable[[Tokenizer], None]) -> None:
    tokenizer = byte_level()
    change(tokenizer)
    assert bound(tokenizer) is None


def test_unknown_characters_that_melt_into_one_token_leave_no_bound() -> None:
    assert bound(fallback(fuse_unk=True)) is None
