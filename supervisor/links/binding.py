"""Binding a ZeroMQ socket to a path that only this user may connect to (spec 15)."""

from __future__ import annotations

import os

import zmq


def bind_private(socket: zmq.Socket[bytes], path: str) -> str:
    """Bind to a path of this host with mode 0600; the endpoint. The mode is right from the first moment."""
    endpoint = f"ipc://{path}"
    previous = os.umask(0o177)
    try:
        socket.bind(endpoint)
    finally:
        os.umask(previous)
    return endpoint
