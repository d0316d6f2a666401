"""How native clients come in, and who may: one door is one bound socket.

There is one door now, a Unix socket that only this user can open, so no key is asked for (spec 15). Security
in ZeroMQ belongs to a whole socket, so another door is another `NativeServer`: over TCP it will set CURVE and
the allowed keys on the socket before it binds, and nothing but that is to be written for it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

import zmq

from supervisor.links.binding import bind_private


class Door(Protocol):
    """Where a server is reached."""

    def open(self, socket: zmq.Socket[bytes]) -> None:
        """Set what protects the socket, and bind it."""


@dataclasses.dataclass(frozen=True)
class IpcDoor:
    """A Unix socket in the runtime folder: the folder is 0700, the socket 0600."""

    path: Path

    def open(self, socket: zmq.Socket[bytes]) -> None:
        bind_private(socket, str(self.path))
