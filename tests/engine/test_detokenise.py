"""Text that was shown is never taken back, never broken, and joined it is the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.backends.detokenise import Detokeniser, StopWatch
from tests.engine.small import save_byte_tokenizer


@pytest.fixture(scope="module")
def by_byte(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return save_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def pieces(tokenizer: Tokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    detokeniser = Detokeniser(tokenizer, prompt)
    return [*(detokeniser.push(token) for token in tokens), detokeniser.flush()]


@pytest.mark.parametrize("text", ["plain", "naïve café", "東京の天気は？", "🙂👩‍👩‍👧‍👦🇫🇷", "a\u0300\u200b\n\t "])
def test_no_piece_has_a_broken_character_and_together_they_are_the_text(by_byte: Tokenizer, text: str) -> None:
    said = pieces(by_byte, by_byte.encode("some prompt").ids, by_byte.encode(text).ids)
    assert "".join(said) == text
    assert not any("\ufffd" in piece for piece in said)


@settings(max_examples=200, deadline=None)
@given(prompt=st.lists(st.integers(0, 258), max_size=8), tokens=st.lists(st.integers(0, 258), max_size=24))
def test_any_tokens_joined_are_what_the_tokeniser_makes_of_them(
    by_byte: Tokenizer, prompt: list[int], tokens: list[int]
) -> None:
    """But for the half character at the very end, which is left out; a prompt that ends in half a one stands apart."""
    joined = "".join(pieces(by_byte, prompt, tokens))
    assert joined == by_byte.decode(tokens, skip_special_tokens=True).rstrip("\ufffd") or by_byte.decode(
        prompt
    ).endswith("\ufffd")


def test_half_a_character_at_the_end_is_left_out(by_byte: Tokenizer) -> None:
    assert pieces(by_byte, [], by_byte.encode("ok🙂").ids[:-1]) == ["o", "k", "", "", "", ""]


def watch(stops: list[str], parts: list[str]) -> tuple[list[str], bool]:
    stop = StopWatch(stops)
    said = []
    for part in parts:
        said.append(stop.push(part))
        if stop.found:
            return said, True
    return [*said, stop.flush()], False


def test_a_stop_string_across_pieces_is_never_shown() -> None:
    assert watch(["END"], ["text E", "N", "D more"]) == (["text ", "", ""], True)
    assert watch(["END"], ["text E", "N", "Q more"]) == (["text ", "", "ENQ more", ""], False)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert watch(["bb", "ab"], ["xxabb"]) == (["xx"], True)
    assert watch(["\n\n"], ["a\n", "b\n", "\nc"]) == (["a", "\nb", ""], True)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    parts=st.lists(st.text("abc", max_size=3), max_size=8),
)
def test_what_is_shown_is_the_text_up_to_the_first_stop_string(stops: list[str], parts: list[str]) -> None:
    """Whatever the pieces: a longer string that began earlier loses to one that was complete before it."""
    said, found = watch(stops, parts)
    text, shown = "".join(parts), "".join(said)
    assert text.startswith(shown)
    assert found == any(stop in text for stop in stops)
    assert not any(stop in shown for stop in stops)
