"""A subscription that outlives its supervisor: what comes from it, when it was lost, and that it is back.

Events are numbered within one supervisor, so a reconnect to the same one goes on after the last event that
was seen, and a gap is asked for again; a restarted supervisor is read from its first event. Log lines have no
numbers: those printed just before a subscription may come twice, once in the answer and once as a notice, and
are shown once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from supervisor.control.client import ControlClient, NoAnswer, NotRunning, check_listening
from supervisor.control.events import AnyEvent
from supervisor.control.messages import (
    EventNotice,
    Events,
    FromSupervisor,
    GetEvents,
    GetLogs,
    Lines,
    LogLine,
    LogNotice,
    Missed,
    Subscribe,
    Subscribed,
)
from ui.cli.reach import ask, inventory_of

IDLE_S = 1.0
"""How long nothing may come before the socket is looked at."""
RETRY_S = 0.25
"""Between two tries to reach a supervisor that is gone."""
REPEATS_S = 5.0
"""How long after a subscription a notice may still bring lines that were in its first answer."""
LINES_AFTER_LOSS = 2000
"""Lines asked for after a reconnect: all that a replica's ring holds (spec 12)."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The supervisor is gone or does not answer; it is looked for until it is back."""

    why: str


@dataclass(frozen=True, slots=True)
class Back:
    """A supervisor answers again."""


@dataclass(frozen=True, slots=True)
class Gap:
    """So many events, or log lines, were not received and cannot be had any more."""

    count: int
    what: str


Heard = AnyEvent | LogLine | Gap | Lost | Back


def follow(path: str, command: Subscribe, lines: GetLogs | None = None) -> Iterator[Heard]:
    """What a subscriber at that control socket hears, for ever. `lines`: log lines to begin with.

    Raises NotRunning where no supervisor is there at first, CommandRefused where it refuses the subscription.
    """
    follower = _Follower(path, command, lines)
    yield from follower.session()
    while True:
        _wait_until_listening(path)
        try:
            yield from follower.session()
        except (NotRunning, NoAnswer):
            time.sleep(RETRY_S)


class _Follower:
    """What has to be known from one connection to the next."""

    def __init__(self, path: str, command: Subscribe, lines: GetLogs | None) -> None:
        self._path = path
        self._command = command
        self._lines = lines
        self._pid: int | None = None
        self._last_event = command.since
        self._newest: dict[str, float] = {}
        self._first_answer: frozenset[LogLine] = frozenset()
        self._repeats_until = 0.0

    def session(self) -> Iterator[Heard]:
        """One connection from its subscription to its loss."""
        with ControlClient(self._path) as client:
            there = _identity(self._path)
            yield from self._begin(client)
            try:
                yield from self._listen(client, there)
            except (NotRunning, NoAnswer) as error:
                yield Lost(str(error))

    def _begin(self, client: ControlClient) -> Iterator[Heard]:
        now, again = inventory_of(client).supervisor, self._pid is not None
        if again and (now.pid != self._pid or now.last_event < (self._last_event or 0)):
            self._last_event = 0
        subscribed = ask(client, msgspec.structs.replace(self._command, since=self._last_event), Subscribed)
        first = self._first_lines(client, again)
        self._pid = now.pid
        if again:
            yield Back()
        yield from self._events(subscribed.events, subscribed.missed)
        self._last_event = subscribed.inventory.supervisor.last_event
        yield from first

    def _first_lines(self, client: ControlClient, again: bool) -> list[LogLine]:
        if self._lines is None or (self._lines.lines == 0 and not again):
            return []
        count = LINES_AFTER_LOSS if again else self._lines.lines
        answer = ask(client, msgspec.structs.replace(self._lines, lines=count), Lines).lines
        fresh = [line for line in answer if line.time > self._newest.get(line.replica, 0.0)]
        self._newest |= {line.replica: line.time for line in answer}
        self._first_answer, self._repeats_until = frozenset(answer), time.monotonic() + REPEATS_S
        return fresh

    def _listen(self, client: ControlClient, there: tuple[int, ...]) -> Iterator[Heard]:
        for notice in client.notices(IDLE_S):
            if notice is None and _identity(self._path) != there:
                raise NotRunning("the supervisor was restarted")
            yield from self._heard(client, notice)

    def _heard(self, client: ControlClient, notice: FromSupervisor | None) -> Iterator[Heard]:
        match notice:
            case EventNotice(event) if event.seq == (self._last_event or 0) + 1:
                yield from self._events([event], 0)
            case EventNotice(event) if event.seq <= (self._last_event or 0):
                pass
            case EventNotice() | Missed() if self._command.events:
                missing = ask(client, GetEvents(since=self._last_event or 0), Events)
                yield from self._events(missing.events, missing.missed)
            case LogNotice(lines, skipped):
                yield from self._log_lines(lines, skipped)

    def _events(self, events: Sequence[AnyEvent], missed: int) -> Iterator[Heard]:
        if missed:
            yield Gap(missed, "events")
        for event in events:
            self._last_event = event.seq
            yield event

    def _log_lines(self, lines: Sequence[LogLine], skipped: int) -> Iterator[Heard]:
        if skipped:
            yield Gap(skipped, "log lines")
        filtering = time.monotonic() < self._repeats_until
        for line in lines:
            if not (filtering and self._is_repeat(line)):
                self._newest[line.replica] = line.time
                yield line

    def _is_repeat(self, line: LogLine) -> bool:
        return line.time < self._newest.get(line.replica, 0.0) or line in self._first_answer


def _identity(path: str) -> tuple[int, ...]:
    """What tells a socket from a later one of the same name. Raises NotRunning where there is none."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise NotRunning(f"no supervisor is running there ({path}): {error.strerror}") from None
    return (found.st_dev, found.st_ino, found.st_ctime_ns)


def _wait_until_listening(path: str) -> None:
    while True:
        time.sleep(RETRY_S)
        try:
            check_listening(path)
        except NotRunning:
            continue
        return
