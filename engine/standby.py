"""The main thread of an engine: it sees signals and the end of the supervisor, and stands in at the socket.

While the device thread is busy with one thing for long (a forward that hangs, or runs for minutes in native code), it
sends the heartbeats, answers `Ask`, notes requests and cancellations and sets faults; that is how a hang can be told
from a death (spec 2). It never computes. It is the main thread because Python runs signal handlers there.
`engine.custody` says when it has the socket.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

import zmq

from engine.custody import Custody, Step, Vigil
from engine.link import Link
from engine.messages import ExitCode

LOOK_EACH_MS = 20
"""Time between two looks at a busy device thread: it is away for one to two of them before someone stands in.
The looks are up to `custody.LONGEST_PAUSE` times rarer while it comes and goes."""


class Standby:
    """Watches until the process is told to leave. lifeline: a descriptor whose end of file says so, too."""

    def __init__(self, link: Link, custody: Custody, lifeline: int) -> None:
        self._link = link
        self._custody = custody
        self._lifeline = lifeline
        self._signals = _signal_pipe()
        self._vigil = Vigil()
        self._watched = select.poll()
        self._poller = zmq.Poller()
        for descriptor in (custody.fileno(), lifeline, self._signals):
            self._watched.register(descriptor, select.POLLIN)
            self._poller.register(descriptor, zmq.POLLIN)
        self._poller.register(link.socket, zmq.POLLIN)

    def run(self) -> ExitCode:
        """Serve until a signal, the end of the supervisor or a failed load; the reason."""
        wait_ms: int | None = LOOK_EACH_MS
        while True:
            ending = self._ending(descriptor for descriptor, _ in self._watched.poll(wait_ms))
            if ending is not None:
                return ending
            step = self._vigil.look(self._custody.departures, self._custody.taken)
            wait_ms = LOOK_EACH_MS * self._vigil.pause
            match step:
                case Step.SLEEP:
                    wait_ms = None if self._custody.sleep() else LOOK_EACH_MS
                case Step.STAND_IN:
                    if (ending := self._stand_in()) is not None:
                        return ending
                case Step.WATCH:
                    pass

    def _stand_in(self) -> ExitCode | None:
        """Serve the socket until the device thread claims it."""
        if not self._custody.stand_in():
            return None
        try:
            while not self._custody.claimed:
                self._link.receive()
                self._link.beat_if_due()
                wait_ms = max(0, int(self._link.until_heartbeat() * 1000) + 1)
                ending = self._ending(ready for ready, _ in self._poller.poll(wait_ms))
                if ending is not None:
                    return ending
        finally:
            self._custody.give_back()
        return None

    def _ending(self, ready: Iterable[object]) -> ExitCode | None:
        """Why the process ends, by the descriptors that are readable."""
        for descriptor in ready:
            if descriptor == self._lifeline:
                return ExitCode.ORPHANED
            if descriptor == self._signals:
                return ExitCode.LEFT
            if descriptor == self._custody.fileno():
                self._custody.woken()
        return self._custody.ending


def _signal_pipe() -> int:
    """A descriptor that becomes readable when SIGTERM arrives, also while the interpreter is in a poll."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return reader
