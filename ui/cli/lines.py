"""Log lines and events as lines: with a time and a colour on a terminal, whole and plain in a pipe, JSON for
programs.
"""

from __future__ import annotations

import datetime
import sys
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import click
import msgspec

from supervisor.control.events import AnyEvent
from supervisor.control.messages import LogLine
from ui.cli.follow import Back, Gap, Heard, Lost
from ui.cli.picture import COLOURS
from ui.cli.say import coloured, emit, json_text, on_terminal, say, takes_symbols
from ui.literal import literal
from ui.looks import EVENT_GLYPHS, TROUBLE, Mood, event_mood

REPLICA_COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_blue")

Writer = Callable[[AnyEvent | LogLine], str]


def as_json(item: AnyEvent | LogLine) -> str:
    """One JSON object, on one line."""
    return json_text(msgspec.json.encode(item))


def as_text(item: AnyEvent | LogLine) -> str:
    """`12:01:02.123 primary/0#2 text` for a log line, `12:01:02.123 #17 ● sentence` for an event.

    On a terminal the time is the local clock's, with the day where that is not today, and an event has a glyph and a
    colour by how serious it is. In a pipe it has neither, and the time is date and time in UTC, as in the log files.
    """
    line = _of_log(item) if isinstance(item, LogLine) else _of_event(item)
    if not on_terminal(sys.stdout):
        return f"{_utc(item.time)} {line.who} {line.text}"
    clock, who = _local_clock(item.time), literal(line.who)
    text = literal(f"{line.glyph} {line.text}" if line.glyph and takes_symbols(sys.stdout) else line.text)
    if coloured(sys.stdout):
        clock, who = click.style(clock, dim=True), click.style(who, fg=line.who_colour)
        text = click.style(text, fg=line.colour) if line.colour else text
    return f"{clock} {who} {text}"


def write_all(heard: Iterable[Heard], write: Writer) -> None:
    """Every item as a line of data; what happened to the stream itself goes to standard error, in words."""
    for item in heard:
        match item:
            case Lost(why):
                say(f"{why}; waiting for it to come back")
            case Back():
                say("the supervisor is back")
            case Gap(count, what):
                say(f"{count} {what} were missed")
            case _:
                emit(write(item))


class _Line(NamedTuple):
    """The parts of a line, and how a terminal shows them."""

    who: str
    text: str
    who_colour: str
    glyph: str = ""
    colour: str = ""


def _of_log(line: LogLine) -> _Line:
    return _Line(f"{line.replica}#{line.incarnation}", line.text, _colour_of(line.replica))


def _of_event(event: AnyEvent) -> _Line:
    """One line, however many its words have."""
    mood = event_mood(event)
    colour = COLOURS[mood] if mood in TROUBLE or mood is Mood.DIM else ""
    words = " | ".join(filter(None, map(str.strip, event.sentence().splitlines())))
    return _Line(f"#{event.seq}", words, "bright_black", EVENT_GLYPHS.get(mood, "·"), colour)


def _local_clock(wall: float) -> str:
    """`14:02:11.123`; of another day than today `11-29 14:02:11.123`."""
    then = datetime.datetime.fromtimestamp(wall)
    day = "" if then.date() == datetime.date.today() else f"{then:%m-%d} "
    return day + then.strftime("%H:%M:%S.%f")[:-3]


def _utc(wall: float) -> str:
    """As in the log files: `2026-11-29T12:00:00.123Z`."""
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _colour_of(replica: str) -> str:
    """The same for a replica in every run."""
    return REPLICA_COLOURS[zlib.crc32(replica.encode()) % len(REPLICA_COLOURS)]
