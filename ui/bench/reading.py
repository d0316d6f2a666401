"""What a load generator reads of an answer: no more than what is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ui.bench.bodies import GENERATING, Shape
from ui.bench.connection import CUT, Reader, clock


class Counting(Reader, Protocol):
    """A reader that says what an answer held.

    tokens: generated ones. first: when the first of them came, 0 where it was not looked for. gaps: seconds between one
    and the next.
    """

    @property
    def tokens(self) -> int: ...
    @property
    def first(self) -> float: ...
    @property
    def gaps(self) -> list[float]: ...

    def end(self) -> str | None:
        """The answer is whole: why it is none all the same, None where it is one."""


class Usage(msgspec.Struct, frozen=True):
    completion_tokens: int = 0


class Message(msgspec.Struct, frozen=True):
    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """A piece of a text: of a completion (`text`), of a chat (`delta`)."""

    text: str | None = None
    delta: Message | None = None


class Piece(msgspec.Struct, frozen=True):
    """One event of a stream, or a whole generated answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_piece = msgspec.json.Decoder(Piece)


class Skim:
    """Reads nothing: an answer's status says all that is counted."""

    tokens = 0
    first = 0.0

    def __init__(self) -> None:
        self.gaps: list[float] = []

    def begin(self) -> None:
        pass

    def feed(self, piece: bytes) -> None:
        pass

    def end(self) -> str | None:
        return None


class Whole:
    """Keeps the body, and reads from it how many tokens were generated."""

    first = 0.0

    def __init__(self) -> None:
        self.body = b""
        self.gaps: list[float] = []

    def begin(self) -> None:
        self.body = b""

    def feed(self, piece: bytes) -> None:
        self.body += piece

    @property
    def tokens(self) -> int:
        try:
            usage = _piece.decode(self.body).usage
        except msgspec.MsgspecError:
            return 0
        return usage.completion_tokens if usage is not None else 0

    def end(self) -> str | None:
        return None


class Stream:
    """Server-sent events: when the first text came, and the time between one and the next.

    A stream without its `[DONE]`, or with an error in it, is an answer that was cut.
    """

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.begin()

    def begin(self) -> None:
        self._rest = b""
        self._complete = self._broken = False
        self._texts = 0
        self._said: int | None = None
        self._last = 0.0
        self.first = 0.0
        self.gaps.clear()

    def feed(self, piece: bytes) -> None:
        now = clock()
        *events, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                self._take(event[5:].strip(), now)

    @property
    def tokens(self) -> int:
        """As the server counts them; where it does not say, pieces of text."""
        return self._texts if self._said is None else self._said

    def end(self) -> str | None:
        return None if self._complete and not self._broken else CUT

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._complete = True
            return
        try:
            event = _piece.decode(data)
        except msgspec.MsgspecError:
            self._broken = True
            return
        self._broken = self._broken or event.error is not None
        if event.usage is not None:
            self._said = event.usage.completion_tokens
        if any(choice.text or (choice.delta is not None and choice.delta.content) for choice in event.choices):
            self._on_text(now)

    def _on_text(self, now: float) -> None:
        if self._texts:
            self.gaps.append(now - self._last)
        else:
            self.first = now
        self._texts += 1
        self._last = now


def reader_of(shape: Shape) -> Callable[[], Counting]:
    """Makes readers for the answers to requests of that shape."""
    if shape.route not in GENERATING:
        return Skim
    if shape.stream:
        return Stream
    return Whole
