"""Tells systemd how the supervisor is: ready, reloading, stopping, alive.

The protocol is one datagram to the socket that `$NOTIFY_SOCKET` names (sd_notify(3)), so no library is
needed. A lost word to systemd may never hurt the serving of requests: `notify` neither blocks nor raises,
it says whether it was sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Sends `state` ("READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=3 of 4 ready") to systemd.

    False where nobody asked for it or it could not be sent.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode("utf-8", "replace"), _unix_address(address))
    except OSError:
        return False
    return True


def watchdog_interval(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between two `WATCHDOG=1` that keep systemd content: half of `$WATCHDOG_USEC`
    (sd_watchdog_enabled(3)).

    None where no watchdog waits for this process.
    """
    limit_us, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
    if pid != str(os.getpid()) or not (limit_us.isascii() and limit_us.isdigit() and len(limit_us) < 20):
        return None
    return int(limit_us) / 2_000_000 or None


def _unix_address(address: str) -> bytes:
    """The address as the kernel wants it: a leading `@` stands for the NUL of an abstract socket."""
    name = os.fsencode(address)
    return b"\0" + name[1:] if name.startswith(b"@") else name
