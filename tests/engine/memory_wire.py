"""The other end of a device thread without a process: what goes in, and what came out."""

from __future__ import annotations

import threading

from engine.device_thread import Arrival, Outgoing
from engine.messages import LoadFailed, ToSupervisor


class MemoryWire:
    """A wire within the process. `said`: what came out at its other end."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.said: list[Outgoing] = []
        self.abandoned = False
        self._arrived: list[Arrival] = []

    def arrive(self, arrival: Arrival) -> None:
        with self.changed:
            self._arrived.append(arrival)
            self.changed.notify_all()

    def put(self, message: ToSupervisor, body: bytes | None = None) -> None:
        with self.changed:
            self.said.append((message, body))
            self.changed.notify_all()

    def flush(self) -> None: ...

    def take(self) -> list[Arrival]:
        with self.changed:
            arrived, self._arrived = self._arrived, []
            return arrived

    def wait(self) -> list[Arrival]:
        with self.changed:
            self.changed.wait_for(lambda: self._arrived)
            return self.take()

    def something_waits(self) -> bool:
        return bool(self._arrived)

    def fail(self, reason: LoadFailed) -> None:
        self.put(reason)

    def abandon(self) -> None:
        with self.changed:
            self.abandoned = True
            self.changed.notify_all()
