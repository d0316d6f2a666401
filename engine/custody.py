"""Whose the socket is, when a thread that computes is also the one that talks.

    device thread   ──at the socket──┐away: computes     ┌──at the socket──┐away ...
    standby                          └─(20 ms)─stands in─┘

The device thread has the socket while it waits and whenever it has something to send, and leaves it to compute. So a
request that is soon computed is received, computed and answered by one thread, without a hand-over. The standby (the
main thread) looks now and then whether the device thread has been away for long; then it has the socket until the
device thread claims it back. At rest the standby sleeps: it is woken when the device thread next leaves the socket.

A lock says whose the socket is. It is also the memory fence that ZeroMQ asks for when a socket changes threads.
"""

from __future__ import annotations

import enum
import os
import threading

from engine.messages import ExitCode

LOOKS_BEFORE_SLEEP = 50
"""So many looks in a row at a device thread that waits at the socket, and the standby goes to sleep."""

LONGEST_PAUSE = 8
"""So many usual times may pass until the next look, while each finds that the device thread was at the socket since."""


class Step(enum.Enum):
    """What the standby does until it looks again."""

    WATCH = enum.auto()
    STAND_IN = enum.auto()
    SLEEP = enum.auto()


class Vigil:
    """What the standby makes of each look. Pure: it sees numbers, and its time is how often it looked.

    pause: after how many of its usual times to look again. A device thread that comes and goes needs nobody, and on a
    machine with many engines each look wakes a thread with cold caches: so looks become rarer, and as frequent as
    usual with the first that finds it where it was.
    """

    def __init__(self) -> None:
        self.pause = 1
        self._departures = -1
        self._unchanged = 0

    def look(self, departures: int, at_socket: bool) -> Step:
        """departures: how often the device thread has left the socket; at_socket: whether it is there now."""
        if departures != self._departures:
            self._departures = departures
            self._unchanged = 0
            self.pause = min(self.pause + 1, LONGEST_PAUSE)
            return Step.WATCH
        self.pause = 1
        if not at_socket:
            self._unchanged = 0
            return Step.STAND_IN
        self._unchanged += 1
        return Step.SLEEP if self._unchanged >= LOOKS_BEFORE_SLEEP else Step.WATCH


class Custody:
    """The lock, and the descriptor by which the device thread wakes the standby. At first nobody is at the socket."""

    def __init__(self) -> None:
        self.departures = 0
        self.claimed = False
        self.ending: ExitCode | None = None
        self._lock = threading.Lock()
        self._asleep = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    # ------------------------------------------------------------------------------- the device thread

    def __enter__(self) -> None:
        """Come to the socket; where the standby is there, it gets up."""
        if not self._lock.acquire(blocking=False):
            self.claimed = True
            self._wake()
            self._lock.acquire()
            self.claimed = False

    def __exit__(self, *_: object) -> None:
        """Leave it."""
        self.departures += 1
        self._lock.release()
        if self._asleep:
            self._asleep = False
            self._wake()

    def end(self, code: ExitCode) -> None:
        """At the socket: it is of no more use to anybody, and the standby is to end the process."""
        self.claimed = True
        self.ending = code
        self._wake()

    # ------------------------------------------------------------------------------- the standby

    @property
    def taken(self) -> bool:
        """Whether somebody is at the socket."""
        return self._lock.locked()

    def stand_in(self) -> bool:
        """Take the socket; False where the device thread came back meanwhile."""
        return self._lock.acquire(blocking=False)

    def give_back(self) -> None:
        """The device thread may have it."""
        self._lock.release()

    def sleep(self) -> bool:
        """Say that only a wake-up ends the coming sleep; False where the device thread has just left the socket."""
        self._asleep = True
        if self._lock.locked():
            return True
        self._asleep = False
        return False

    def fileno(self) -> int:
        """Readable when the standby is to look up."""
        return self._reader

    def woken(self) -> None:
        """Clear the descriptor."""
        try:
            os.read(self._reader, 64)
        except BlockingIOError:
            return

    def _wake(self) -> None:
        try:
            os.write(self._writer, b"\0")
        except BlockingIOError:  # full of wake-ups that were not seen yet: one more says nothing new
            return
