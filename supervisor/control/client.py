"""How the CLI and the dashboard reach a supervisor: calls with an answer each, and the streams behind a subscription.

Two clients over one wire: `ControlClient` blocks (the CLI starts in milliseconds and has no loop), `AsyncControlClient`
lives in a loop (the dashboard). Both find out at once when nobody listens, rather than by a time-out.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Iterator

import zmq

from engine.errors import StokerError
from supervisor.control.messages import (
    CONTROL_PROTOCOL,
    Answer,
    AnyCommand,
    Call,
    CommandRefused,
    FromSupervisor,
    Refused,
    Reply,
    decode_from_supervisor,
    encode,
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
        self._socket.send(encode(Call(CONTROL_PROTOCOL, number, command)))
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._receive(deadline)
            if isinstance(message, Reply) and message.id == number:
                return _unless_refused(message.answer)

    def notices(self, timeout_s: float | None = None) -> Iterator[FromSupervisor | None]:
        """What a subscription brings, as it comes; None where nothing came for `timeout_s` seconds."""
        while True:
            if self._socket.poll(None if timeout_s is None else int(timeout_s * 1000)):
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


class AsyncControlClient:
    """A client for an event loop: `ask` for answers, `notices` for what subscriptions bring."""

    def __init__(self, path: str) -> None:
        check_listening(path)
        import zmq.asyncio

        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{path}")
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._path = path
        self.notices: asyncio.Queue[FromSupervisor] = asyncio.Queue(maxsize=10_000)
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def ask(self, command: AnyCommand, timeout_s: float = ANSWER_S) -> Answer:
        """The answer to one command. Raises CommandRefused, NotRunning, NoAnswer."""
        number = next(self._ids)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._socket.send(encode(Call(CONTROL_PROTOCOL, number, command)))
            return _unless_refused(await asyncio.wait_for(answer, timeout_s))
        except TimeoutError:
            check_listening(self._path)
            raise NoAnswer("the supervisor does not answer; is its process stopped?") from None
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Stop reading and give the socket back."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._socket.close()
        self._context.term()

    async def _read(self) -> None:
        while True:
            message = decode_from_supervisor(await self._socket.recv())
            if not isinstance(message, Reply):
                await self.notices.put(message)
            elif (answer := self._waiting.get(message.id)) is not None and not answer.done():
                answer.set_result(message.answer)


def check_listening(path: str) -> None:
    """Raises NotRunning unless a process accepts connections on that socket."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(1.0)
        probe.connect(path)
    except OSError as error:
        raise NotRunning(f"no supervisor is running there ({path}): {error.strerror or error}") from None
    finally:
        probe.close()


def _unless_refused(answer: Answer) -> Answer:
    if isinstance(answer, Refused):
        raise CommandRefused(answer.message, answer.code)
    return answer
