"""How the CLI and the dashboard reach a supervisor: calls with an answer each, and the streams behind a subscription.

`ControlClient` blocks: the CLI starts in milliseconds and has no loop. `async_client` is its twin for a loop (the
dashboard). Both find out at once when nobody listens, rather than by a time-out.
"""

from __future__ import annotations

import collections
import itertools
import socket
import time
from collections.abc import Iterator

import zmq

from engine.errors import StokerError
from supervisor.control.messages import (
    Answer,
    AnyCommand,
    CommandRefused,
    FromSupervisor,
    Refused,
    Reply,
    decode_from_supervisor,
    encode_call,
)

ANSWER_S = 10.0
"""How long an answer may take. The supervisor answers in milliseconds; this only ends a wait for a frozen one."""


class NotRunning(StokerError):
    """No supervisor listens there."""


class NoAnswer(StokerError):
    """The supervisor is there and does not answer."""


class ControlClient:
    """A blocking client of the control socket at `path`. Use as a context manager."""

    def __init__(self, path: str) -> None:
        check_listening(path)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{path}")
        self._ids = itertools.count(1)
        self._path = path
        self._notices: collections.deque[FromSupervisor] = collections.deque()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
        self._context.term()

    def ask(self, command: AnyCommand, timeout_s: float = ANSWER_S) -> Answer:
        """The answer to one command. Raises CommandRefused, NotRunning, NoAnswer."""
        number = next(self._ids)
        self._socket.send(encode_call(number, command))
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._receive(deadline)
            if not isinstance(message, Reply):
                self._notices.append(message)
            elif message.id == number:
                return unless_refused(message.answer)

    def notices(self, timeout_s: float | None = None) -> Iterator[FromSupervisor | None]:
        """What a subscription brings, as it comes; None where nothing came for `timeout_s` seconds."""
        while True:
            if self._notices:
                yield self._notices.popleft()
            elif self._socket.poll(None if timeout_s is None else int(timeout_s * 1000)):
                yield decode_from_supervisor(self._socket.recv())
            else:
                check_listening(self._path)
                yield None

    def _receive(self, deadline: float) -> FromSupervisor:
        left_ms = int((deadline - time.monotonic()) * 1000)
        if left_ms <= 0 or not self._socket.poll(left_ms):
            check_listening(self._path)
            raise NoAnswer("the supervisor does not answer; is its process stopped?")
        return decode_from_supervisor(self._socket.recv())


def check_listening(path: str) -> None:
    """Raises NotRunning unless a process listens on that socket."""
    if _is_listed(path):
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(1.0)
        probe.connect(path)
    except OSError as error:
        raise NotRunning(f"no supervisor is running there ({path}): {error.strerror or error}") from None
    finally:
        probe.close()


def _is_listed(path: str) -> bool:
    """Whether the kernel lists a listener there (Linux). A connection that says nothing would count as a bad frame."""
    accepts_connections = 0x10000
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as sockets:
            rows = [line.split(maxsplit=7) for line in sockets if line.rstrip("\n").endswith(path)]
    except OSError:
        return False
    return any(len(row) == 8 and row[7].rstrip("\n") == path and int(row[3], 16) & accepts_connections for row in rows)


def unless_refused(answer: Answer) -> Answer:
    """The answer, unless it is a refusal. Raises CommandRefused."""
    if isinstance(answer, Refused):
        raise CommandRefused(answer.message, answer.code)
    return answer
