"""A client's connection to one supervisor: one DEALER socket with many requests on it.

    open -> Hello … Welcome -> requests and answers -> closed, by either side

It ends once and for all: when the supervisor goes, everything that waits here fails at once, and the next
request makes a new connection. ZeroMQ's own reconnecting is off, since a supervisor that comes back knows
nothing of what was open. The socket is read on its own descriptor, which is edge-triggered (see
`supervisor.links.zeromq`): each send is followed by a look.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Protocol

import zmq

from engine.errors import ProtocolError, StokerError
from engine.messages import MAX_FRAME_BYTES, Route
from supervisor.native.errors import NoAnswer, NotRunning, Timeout, error_of
from supervisor.native.messages import (
    NATIVE_PROTOCOL,
    Alive,
    Answer,
    Bye,
    Cancel,
    Chunk,
    End,
    Failed,
    FromClient,
    Hello,
    Read,
    Request,
    ToClient,
    Welcome,
    encode,
    parse_to_client,
    request_id,
    weight,
)

MOST_A_TURN = 256
"""Messages read in one turn of the loop, so that the caller's own work gets its turn."""
READ_EACH_BYTES = 1024 * 1024
"""Told each so many bytes that were read; requests tell it by the way."""
WELCOME_S = 5.0
"""How long a supervisor may take to greet."""
SILENT_S = 10.0
"""With a request open a supervisor shows signs of life; one without any for this long is frozen."""
SWEEP_S = 0.5
"""Between two looks for requests that should have ended."""
GRACE_S = 2.0
"""A supervisor ends a request at its limit; where it does not, the client does, this much later."""
FLUSH_MS = 200
"""How long the last words may take to leave."""
NEVER_MS = 2**31 - 1
STOPPED = "is its process stopped?"

GONE = (
    zmq.Event.CLOSED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
"""What the monitor of the socket is asked for: each of these means that nobody is on the other side."""


class Waiting(Protocol):
    """Whoever waits for a request's answer. It ends with exactly one of `answer`, `end` and `fail`."""

    give_up_at: float
    """Monotonic seconds at which nothing is to be expected any more."""

    def answer(self, status: int, body: bytes, replica: str) -> None:
        """The whole answer."""

    def chunk(self, data: bytes, replica: str) -> None:
        """The next bytes of a streamed one."""

    def end(self) -> None:
        """The streamed answer is complete."""

    def fail(self, error: StokerError) -> None:
        """There is none, or no more of it."""


class Connection:
    """Made by `open`. Belongs to the event loop in which it was made."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Waiting] = {}
        self._look_due = False
        self._read = self._read_told = 0
        self._heard = time.monotonic()
        self._sweeper: asyncio.TimerHandle | None = None
        self._session = ""
        self._welcome: asyncio.Future[None] = self._loop.create_future()
        self._open = True
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        self._socket = socket
        self._monitor = socket.get_monitor_socket(GONE)
        self._descriptors = {
            int(socket.getsockopt(zmq.FD)): self._look,
            int(self._monitor.getsockopt(zmq.FD)): self._check_gone,
        }

    @classmethod
    async def open(cls, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> Connection:
        """Connect and be greeted. Raises NotRunning, NoAnswer, ProtocolError (another version)."""
        connection = cls(context, path)
        try:
            await connection._be_greeted()
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        """It can take requests."""
        return self._open

    def close(self) -> None:
        """Say goodbye; what still waits here fails."""
        if self._session and self._open:
            self._socket.setsockopt(zmq.LINGER, FLUSH_MS)
            self._send(Bye())
        self._end(StokerError("the client was closed before the answer came"))

    # ------------------------------------------------------------------------------------- to the supervisor

    def ask(
        self,
        waiting: Waiting,
        route: Route,
        stream: bool,
        body: bytes,
        model: str | None,
        timeout_ms: int | None,
    ) -> int:
        """Send a request; its number. The answer is told to `waiting`."""
        number = next(self._numbers)
        if timeout_ms is not None:
            waiting.give_up_at = time.monotonic() + timeout_ms / 1000 + GRACE_S
        if not self._waiting:
            self._heard = time.monotonic()
        self._waiting[number] = waiting
        self._read_told = self._read
        self._send(Request(number, route, stream, timeout_ms, model, self._read), body)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        return number

    def cancel(self, number: int) -> None:
        """Nobody waits for that request any more. Never fails; one that has ended is no error."""
        if self._waiting.pop(number, None) is not None:
            self._send(Cancel(number))

    def request_id(self, number: int) -> str:
        """The id under which the supervisor knows a request."""
        return request_id(self._session, number)

    def _send(self, message: FromClient, body: bytes | None = None) -> None:
        if self._open:
            header = encode(message)
            self._socket.send_multipart([header] if body is None else [header, body], zmq.NOBLOCK)
            self._look_soon()

    # ----------------------------------------------------------------------------------- from the supervisor

    async def _be_greeted(self) -> None:
        for descriptor, look in self._descriptors.items():
            self._loop.add_reader(descriptor, look)
        self._socket.connect(f"ipc://{self._path}")
        self._send(Hello(NATIVE_PROTOCOL))
        self._check_gone()
        try:
            await asyncio.wait_for(self._welcome, WELCOME_S)
        except TimeoutError:
            raise NoAnswer(f"the supervisor does not answer ({self._path}); {STOPPED}") from None

    def _look(self) -> None:
        self._look_due = False
        taken = 0
        while taken < MOST_A_TURN and (frames := self._receive()) is not None:
            self._take(frames)
            taken += 1
        if taken:
            self._heard = time.monotonic()
            self._tell_read()
        if taken == MOST_A_TURN:
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _receive(self) -> list[bytes] | None:
        """The next message; None where there is none now, or none any more."""
        if not self._open:
            return None
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _tell_read(self) -> None:
        if self._read - self._read_told >= READ_EACH_BYTES:
            self._read_told = self._read
            self._send(Read(self._read))

    def _take(self, frames: list[bytes]) -> None:
        try:
            message, body = parse_to_client(frames)
        except ProtocolError as error:
            self._end(error)
            return
        self._read += weight(frames[0], body)
        self._deliver(message, body)

    def _deliver(self, message: ToClient, body: bytes) -> None:
        """To whom it concerns; what comes for a request that was cancelled is too late, and no error."""
        match message:
            case Answer():
                if (waiting := self._waiting.pop(message.number, None)) is not None:
                    waiting.answer(message.status, body, message.replica)
            case Chunk():
                if (waiting := self._waiting.get(message.number)) is not None:
                    waiting.chunk(body, message.replica)
            case End():
                if (waiting := self._waiting.pop(message.number, None)) is not None:
                    waiting.end()
            case Failed():
                if (waiting := self._waiting.pop(message.number, None)) is not None:
                    waiting.fail(self._error(message))
            case Welcome():
                self._take_welcome(message)
            case Alive():
                pass

    def _error(self, message: Failed) -> StokerError:
        return error_of(
            message.message,
            message.status,
            message.code,
            param=message.param,
            request_id=self.request_id(message.number),
            retry_after_s=message.retry_after_s,
        )

    def _take_welcome(self, message: Welcome) -> None:
        if message.protocol != NATIVE_PROTOCOL:
            self._end(
                ProtocolError(
                    f"the supervisor speaks protocol {message.protocol}, this client {NATIVE_PROTOCOL}; "
                    "use the same version of stoker on both sides"
                )
            )
            return
        self._session = message.session
        if not self._welcome.done():
            self._welcome.set_result(None)

    # ---------------------------------------------------------------------------------------- the end of it

    def _check_gone(self) -> None:
        """Has the monitor told that the other side is gone? What that had sent before is still taken in."""
        if not self._open or not self._monitor.poll(0):
            return
        while (frames := self._receive()) is not None:
            self._take(frames)
        if self._session:
            self._end(NotRunning(f"the supervisor went away before it answered ({self._path})"))
        else:
            self._end(NotRunning(f"no supervisor is running there ({self._path})"))

    def _sweep(self) -> None:
        """End what the supervisor should have ended long ago. Runs only while something waits."""
        self._sweeper = None
        self._look()
        now = time.monotonic()
        if self._waiting and now - self._heard > SILENT_S:
            self._end(NoAnswer(f"no sign of life from the supervisor for {SILENT_S:.0f} s; {STOPPED}"))
        for number, waiting in list(self._waiting.items()):
            if now >= waiting.give_up_at:
                self.cancel(number)
                waiting.fail(Timeout(f"the supervisor did not end the request at its limit; {STOPPED}"))
        if self._waiting:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _end(self, error: StokerError) -> None:
        """Once: nothing is read or sent any more, and everybody who waits is told."""
        if not self._open:
            return
        self._open = False
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        if not self._welcome.done():
            self._welcome.set_exception(error)
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.fail(type(error)(*error.args))
