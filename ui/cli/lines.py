"""Log lines and events as lines: with a time and a colour on a terminal, whole and plain in a pipe, JSON for
programs.
"""

from __future__ import annotations

import datetime
import sys
import zlib
from collections.abc import Callable, Iterable

import click
import msgspec

from supervisor.control.events import AnyEvent
from supervisor.control.messages import LogLine
from ui.cli.follow import Back, Gap, Heard, Lost
from ui.cli.say import coloured, emit, json_text, on_terminal, say
from ui.literal import literal

REPLICA_COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_blue")

Writer = Callable[[AnyEvent | LogLine], str]


def as_json(item: AnyEvent | LogLine) -> str:
    """One JSON object, on one line."""
    return json_text(msgspec.json.encode(item))


def as_text(item: AnyEvent | LogLine) -> str:
    """`12:01:02.123 primary/0#2 text` for a log line, `12:01:02.123 #17 sentence` for an event.

    The time is the local clock on a terminal, and date and time in UTC in a pipe, as in the log files.
    """
    terminal = on_terminal(sys.stdout)
    clock = _local_clock(item.time) if terminal else _utc(item.time)
    if isinstance(item, LogLine):
        who, text, colour = f"{item.replica}#{item.incarnation}", item.text, _colour_of(item.replica)
    else:
        who, text, colour = f"#{item.seq}", item.sentence(), "bright_black"
    if terminal:
        who, text = literal(who), literal(text)
    if coloured(sys.stdout):
        clock, who = click.style(clock, dim=True), click.style(who, fg=colour)
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


def _local_clock(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall).strftime("%H:%M:%S.%f")[:-3]


def _utc(wall: float) -> str:
    """As in the log files: `2026-11-29T12:00:00.123Z`."""
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _colour_of(replica: str) -> str:
    """The same for a replica in every run."""
    return REPLICA_COLOURS[zlib.crc32(replica.encode()) % len(REPLICA_COLOURS)]
