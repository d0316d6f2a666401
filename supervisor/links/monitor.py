"""What never becomes a frame: connections that do not speak ZeroMQ (raw bytes, HTTP, another version).

libzmq drops them without a word on the socket itself; its monitor tells, so that they are counted like any bad frame.
A message longer than the limit ends its connection inside libzmq, too, and shows only as that disconnection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

FAILURES = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "a connection that broke off in its handshake",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "a connection that does not speak ZMTP",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "a connection that failed to authenticate",
}


class HandshakeMonitor:
    """Tells `on_bad_frame` of each connection of a socket that fails in its handshake."""

    def __init__(self, socket: zmq.Socket[bytes], on_bad_frame: Callable[[str], None]) -> None:
        self._socket = socket
        self._on_bad_frame = on_bad_frame
        events = 0
        for event in FAILURES:
            events |= event
        self._monitor = socket.get_monitor_socket(events)
        self._fd = int(self._monitor.getsockopt(zmq.FD))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._look)
        self._look()

    def close(self) -> None:
        """Stop watching; before the socket itself is closed."""
        self._loop.remove_reader(self._fd)
        self._socket.disable_monitor()
        self._monitor.close()

    def _look(self) -> None:
        while True:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event = parse_monitor_message(frames)["event"]
            self._on_bad_frame(FAILURES.get(zmq.Event(event), "a connection that failed"))
