"""From tokens, one at a time, to text that may be shown at once and never has to be taken back.

Two things are held back until they are sure: bytes that are not a whole character yet, and text that may be the
beginning of a stop string. The unstreamed answer is joined from the same pieces, so it equals the streamed one.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

BROKEN = "\ufffd"
"""What a decoder puts where bytes are no character (yet)."""

CONTEXT = 6
"""Tokens of the prompt that the first ones are decoded after: many vocabularies drop a space at the beginning."""


class Detokeniser:
    """The text of tokens that follow a prompt. Special tokens have none."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-CONTEXT:])
        self._said = self._decode()
        if self._said.endswith(BROKEN):  # the prompt ends within a character: what follows stands alone
            self._tokens, self._said = [], ""
        self._shown = len(self._tokens)

    def push(self, token: int) -> str:
        """The characters that this token completes; empty where it ends within one."""
        self._tokens.append(token)
        text = self._decode()
        return "" if text.endswith(BROKEN) else self._advance(text)

    def flush(self) -> str:
        """What is still held back when no token follows, but for the half character that it may end in."""
        return self._advance(self._decode().rstrip(BROKEN))

    def _advance(self, text: str) -> str:
        """Show what is new, and forget the tokens whose text no later one depends on."""
        new = text[len(self._said) :]
        self._tokens = self._tokens[self._shown :] if new else self._tokens
        self._said = self._decode() if new else text
        self._shown = len(self._tokens)
        return new

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return text


class StopWatch:
    """Passes text on, but for what may be, or is, the beginning of a stop string. `found`: one was seen whole."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = False
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """What of the held and the new text is sure to be shown; a stop string and what follows it never are."""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of a text that a stop string begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
