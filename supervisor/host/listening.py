"""The HTTP side's listening socket: `host:port` or `unix:///path`, with a clear sentence where it cannot be had."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

from engine.errors import StokerError

BACKLOG = 2048


def listen(address: str) -> socket.socket:
    """A listening socket. Port 0 takes any free one. Raises StokerError."""
    if address.startswith("unix://"):
        return _listen_unix(address.removeprefix("unix://"))
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as failing:
            bound = failing.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(where)
            bound.listen(BACKLOG)
            bound.setblocking(False)
            failing.pop_all()
    except (OSError, UnicodeError) as error:  # the latter for a name with an empty or too long part
        why = getattr(error, "strerror", None) or error
        raise StokerError(f"cannot listen on {address}: {why}; choose another address with --listen") from error
    return bound


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """A listening socket for a while; its file goes with it. Raises StokerError."""
    bound = listen(address)
    path = address.removeprefix("unix://") if bound.family == socket.AF_UNIX else None
    ours = _file_at(path)
    try:
        yield bound
    finally:
        bound.close()
        if path is not None and ours is not None and _file_at(path) == ours:  # a successor's is not ours to remove
            with contextlib.suppress(OSError):
                os.unlink(path)


def display(listener: socket.socket) -> str:
    """The address as people write it."""
    name = listener.getsockname()
    if isinstance(name, tuple):
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"{host}:{name[1]}"
    return f"unix://{name}"


def _listen_unix(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_dead(path)
        bound.bind(path)
        os.chmod(path, 0o600)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise StokerError(f"cannot listen on unix://{path}: {error.strerror or error}") from error
    bound.setblocking(False)
    return bound


def _file_at(path: str | None) -> tuple[int, int] | None:
    """Which file is there."""
    try:
        found = None if path is None else os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _remove_dead(path: str) -> None:
    """Remove a socket that nobody listens on any more; never anything else."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
