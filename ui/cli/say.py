"""What a command writes and where: data on standard output, words on standard error (spec 13).

Text that came from replicas is shown, never obeyed: on a terminal its control characters are escaped.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import TextIO

import click

from engine.errors import StokerError
from ui.literal import literal

_OBEYED_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys in JSON, which has C0 escaped already; these can only stand within a string of it."""

BAR = 20
"""Characters of a progress bar."""
PIPE_S = 10.0
"""Between two lines of progress where nobody watches but a log."""


class CannotWrite(StokerError):
    """Standard output does not take what is written to it."""


def emit(line: str) -> None:
    """One line of data, flushed: a reader has it at once. Raises CannotWrite, BrokenPipeError."""
    try:
        click.echo(line, color=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CannotWrite(f"standard output cannot be written: {error.strerror or error}") from error


def say(words: str) -> None:
    """Words for a person; several lines are fine."""
    lines = words.split("\n")
    click.echo("\n".join(map(literal, lines) if on_terminal(sys.stderr) else lines), err=True)


def json_text(encoded: bytes) -> str:
    """JSON for standard output; on a terminal, what it would obey is escaped in the way of JSON."""
    text = encoded.decode()
    return _OBEYED_IN_JSON.sub(_escaped_in_json, text) if on_terminal(sys.stdout) else text


def on_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads that stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def coloured(stream: TextIO) -> bool:
    """Whether that stream may have colours (https://no-color.org)."""
    return on_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def takes_symbols(stream: TextIO) -> bool:
    """Whether glyphs beyond ASCII can be written there."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


class Progress:
    """How far a wait is, on standard error: one line with a bar on a terminal, a plain line now and then in a pipe."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._seen = on_terminal(self._stream) and os.environ.get("TERM") != "dumb"
        self._last = ""
        self._said_at = time.monotonic()

    def show(self, text: str, share: float | None = None) -> None:
        """Replace the line. share: what is done, 0 to 1; None where that is not known."""
        if not self._seen:
            self._now_and_then(text)
            return
        line = literal(f"{self._bar(share)}{text}")[: _columns(self._stream) - 1]
        if line != self._last:
            self._write(f"\r{line}\x1b[K")
            self._last = line

    def clear(self) -> None:
        """Take the line away."""
        if self._seen and self._last:
            self._write("\r\x1b[K")
            self._last = ""

    def _bar(self, share: float | None) -> str:
        if share is None:
            return ""
        done, left = ("━", "─") if takes_symbols(self._stream) else ("#", "-")
        filled = int(max(0.0, min(1.0, share)) * BAR)
        return f"{done * filled}{left * (BAR - filled)} "

    def _now_and_then(self, text: str) -> None:
        now = time.monotonic()
        if text != self._last and now - self._said_at >= PIPE_S:
            self._write(f"{text}\n")
            self._last, self._said_at = text, now

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """A progress line that is taken away however the wait ends."""
    line = Progress()
    try:
        yield line
    finally:
        line.clear()


def _columns(stream: TextIO) -> int:
    """Width of that terminal; 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _escaped_in_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
