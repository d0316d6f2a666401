"""What the device thread has to say, on its way to the I/O loop: a queue and one descriptor that wakes the loop.

The descriptor is written only when the loop may be asleep, so a busy engine pays one system call for many answers.
"""

from __future__ import annotations

import collections
import os

from engine.messages import ToSupervisor

Outgoing = tuple[ToSupervisor, bytes | None]


class Outbox:
    """Many writers, one reader. `put` may be called from any thread; `take` and `fileno` belong to the I/O loop."""

    def __init__(self) -> None:
        self._queue: collections.deque[Outgoing] = collections.deque()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        self._awake = True

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._reader

    def put(self, message: ToSupervisor, body: bytes | None = None) -> None:
        """Queue a message (and its body frame) and wake the loop if it sleeps."""
        self._queue.append((message, body))
        if not self._awake:
            self._awake = True
            os.write(self._writer, b"\0")

    def take(self) -> list[Outgoing]:
        """Everything queued by now."""
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken

    def sleep(self) -> bool:
        """Say that the loop is about to wait; False when something came in meanwhile, so that it must not."""
        self._awake = False
        if self._queue:
            self._awake = True
            return False
        return True

    def woken(self) -> None:
        """The loop no longer waits; clears the descriptor."""
        self._awake = True
        try:
            os.read(self._reader, 64)
        except BlockingIOError:
            return


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer
