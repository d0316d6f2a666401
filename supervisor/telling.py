"""How the supervisor's events reach people and collectors: sentences on standard error, JSON lines in a file (spec 12).

Both are written by threads: a terminal that stands still (Ctrl-S, a pager) or a slow disk holds up no request.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

import msgspec

from supervisor.control.events import AnyEvent, EventLog
from supervisor.control.events import BadFrames as BadFramesEvent
from supervisor.host.logs import LogSink, iso_utc

EVENTS_FILE = "events.jsonl"
"""In the folder of the replicas' logs."""

BAD_FRAMES_EACH_S = 5.0
"""At most one event about bad frames of a socket in this time."""


class Stream:
    """A descriptor as a place for lines. Where nobody takes them any more, they are gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes, now: float) -> None:
        """See `LogSink`; it may wait, so it belongs on a thread."""
        with contextlib.suppress(OSError):
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:  # somebody who shares it does not wait
                    select.select((), (self._descriptor,), ())

    def close(self) -> None:
        """It stays open for others."""


class EventLines:
    """Events as sentences for people."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink

    def __call__(self, event: AnyEvent) -> None:
        line = f"{iso_utc(event.time)} {event.sentence()}\n"
        self._sink.write(line.encode("utf-8", "backslashreplace"), time.monotonic())


class EventRecords:
    """Events as lines of JSON for collectors, as `stoker events --json` prints them."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, event: AnyEvent) -> None:
        self._sink.write(self._encode(event) + b"\n", time.monotonic())


class BadFrames:
    """Counts dropped frames by socket, and tells of them at a bounded rate."""

    def __init__(self, events: EventLog) -> None:
        self.totals: dict[str, int] = {}
        self._events = events
        self._told: dict[str, tuple[float, int]] = {}

    def count(self, where: str, why: str) -> None:
        """One more."""
        total = self.totals[where] = self.totals.get(where, 0) + 1
        told_at, told_total = self._told.get(where, (0.0, 0))
        now = time.monotonic()
        if now - told_at >= BAD_FRAMES_EACH_S:
            self._told[where] = (now, total)
            self._events.publish(BadFramesEvent(where=where, count=total - told_total, example=why[:300]))
