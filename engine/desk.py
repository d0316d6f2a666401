"""The device thread's place at the socket: what it says is collected, and leaves with its next visit.

So the answers of one forward leave together, and a visit to send is also the one to receive.
"""

from __future__ import annotations

from engine.custody import Custody
from engine.device_thread import Arrival, Outgoing
from engine.link import Link
from engine.messages import ExitCode, LoadFailed, ToSupervisor


class Desk:
    """`device_thread.Wire` over a link that is shared with the standby."""

    def __init__(self, link: Link, custody: Custody) -> None:
        self._link = link
        self._custody = custody
        self._outgoing: list[Outgoing] = []

    def put(self, message: ToSupervisor, body: bytes | None = None) -> None:
        """Say something at the next visit."""
        self._outgoing.append((message, body))

    def flush(self) -> None:
        """Visit the socket now if there is something to say."""
        if self._outgoing:
            with self._custody:
                self._send()

    def take(self) -> list[Arrival]:
        """Say everything; what arrived by now."""
        with self._custody:
            self._send()
            self._link.receive()
            self._link.beat_if_due()
            return self._link.take()

    def wait(self) -> list[Arrival]:
        """Say everything; what arrived, and stay until something has."""
        link = self._link
        with self._custody:
            self._send()
            link.beat_if_due()
            while not link.holds:
                link.wait()
                link.beat_if_due()
            return link.take()

    def something_waits(self) -> bool:
        """Say everything; whether something has arrived."""
        with self._custody:
            self._send()
            self._link.receive()
            self._link.beat_if_due()
            return self._link.holds

    def fail(self, reason: LoadFailed) -> None:
        """Say that there will be nothing to serve, as the last word of this process."""
        self.put(reason)
        self._end(ExitCode.LOAD_FINAL if reason.final else ExitCode.LOAD_FAILED)

    def abandon(self) -> None:
        """Nobody computes any more: the process is to end."""
        self._end(ExitCode.BROKEN)

    def _end(self, code: ExitCode) -> None:
        with self._custody:
            self._send()
            self._link.close()
            self._custody.end(code)

    def _send(self) -> None:
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            self._link.send_all(outgoing)
