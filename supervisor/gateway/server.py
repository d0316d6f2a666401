"""The HTTP server: a listening socket, the connections that came in by it, one timer that looks after all of them."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import socket
import time
from collections.abc import AsyncIterator, Callable

from supervisor.core.body_room import BodyRoom
from supervisor.gateway.connection import Application, Connection
from supervisor.host.listening import BACKLOG

SWEEP_S = 1.0
"""Between two looks at the connections; so coarse are their limits of time."""
REST_S = 0.05
"""How long a client rests that was told 429, at the most."""
TELL_EACH_S = 10.0
"""Between two words about connections that were turned away, at least."""
LAST_REQUESTS_S = 0.2
"""At the end, how long idle connections are still read: whoever is just sending gets an answer, not a cut."""
LAST_ANSWERS_S = 5.0
"""How long clients have to take their last answers when the server ends."""


class HttpServer:
    """Serves an application. `now`: monotonic seconds, as coarse as the sweep.

    most: connections that may be open together; those beyond it get 503 and are closed. on_full: told now and then how
    many that were. room: where large bodies of all of them find room.
    """

    def __init__(self, app: Application, most: int, room: BodyRoom, on_full: Callable[[int], None]) -> None:
        self.now = time.monotonic()
        self.stopping = False
        self._app = app
        self.room = room
        self._most = most
        self._on_full = on_full
        self._turned_away = 0
        self._told_full = float("-inf")
        self._connections: set[Connection] = set()
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._resting: list[Connection] = []
        self._all_closed = asyncio.Event()
        self._date = b""
        self._date_of = 0

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Begin to take connections on a bound socket."""
        if listener.family == socket.AF_UNIX:
            return await self._loop.create_unix_server(self._connection, sock=listener, backlog=BACKLOG)
        return await self._loop.create_server(self._connection, sock=listener, backlog=BACKLOG)

    async def take_last(self, listener: socket.socket) -> None:
        """Take in who connected and was not taken in yet: when its socket closes, the kernel resets those."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # there is none (any more)
                return
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._connection, connection)

    async def close(self) -> None:
        """Answer what is on its way in, close what is idle, let answers that are due leave, cut what takes too long."""
        self.stopping = True
        await self._until_all_closed(LAST_REQUESTS_S)
        for connection in list(self._connections):
            connection.stop()
        await self._until_all_closed(LAST_ANSWERS_S)
        for connection in list(self._connections):
            connection.abort()
        await self._until_all_closed(LAST_ANSWERS_S)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _until_all_closed(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._connections:
                    self._all_closed.clear()
                    await self._all_closed.wait()

    # ------------------------------------------------------------------------------------------- for connections

    def opened(self, connection: Connection) -> None:
        """One more."""
        if len(self._connections) >= self._most:
            self._turned_away += 1
            connection.turn_away()
            return
        self._connections.add(connection)
        if self._sweeper is None:  # nobody was there, so nobody looked at the clock
            self.now = time.monotonic()
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def closed(self, connection: Connection) -> None:
        """One less."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def rest(self, connection: Connection) -> None:
        """Have it go on a little later; all that rest go on together."""
        if not self._resting:
            self._loop.call_later(REST_S, self._wake)
        self._resting.append(connection)

    def date(self) -> bytes:
        """The Date header line of now."""
        second = int(time.time())
        if second != self._date_of:
            self._date_of = second
            self._date = f"date: {email.utils.formatdate(second, usegmt=True)}\r\n".encode()
        return self._date

    # ------------------------------------------------------------------------------------------- inside

    def _connection(self) -> Connection:
        return Connection(self, self._app)

    def _wake(self) -> None:
        rested, self._resting = self._resting, []
        for connection in rested:
            connection.go_on()

    def _sweep(self) -> None:
        """Runs while there are connections."""
        self._sweeper = None
        self.now = time.monotonic()
        for connection in list(self._connections):
            connection.sweep(self.now)
        if self._turned_away and self.now - self._told_full >= TELL_EACH_S:
            count, self._turned_away = self._turned_away, 0
            self._told_full = self.now
            self._on_full(count)
        if self._connections:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)


@contextlib.asynccontextmanager
async def serving(
    app: Application, listener: socket.socket, most: int, room: BodyRoom, on_full: Callable[[int], None]
) -> AsyncIterator[None]:
    """HTTP on that socket; at the end, open connections have a moment to take their last answers."""
    server = HttpServer(app, most, room, on_full)
    listening = await server.listen(listener)
    with listener.dup() as last:
        try:
            yield
        finally:
            listening.close()
            await server.take_last(last)
            last.close()
            await server.close()
