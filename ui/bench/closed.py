"""A closed load: so many clients, and each sends when it was answered."""

from __future__ import annotations

import asyncio

from ui.bench.asking import NotMeasurable
from ui.bench.connection import NO_CONNECTION, Connection, clock
from ui.bench.running import RECONNECT_S, Load


class ClosedLoad(Load):
    """Each client has a connection of its own."""

    _returning = 0
    """Requests that wait for a new connection."""

    @property
    def most_connections(self) -> int:
        return self.plan.clients or 1

    @property
    def waiting(self) -> int:
        return self._returning

    async def prepare(self) -> None:
        opened = await asyncio.gather(*(self.open(self.new_connection()) for _ in range(self.most_connections)))
        if not any(opened):
            raise NotMeasurable(f"no connection to {self._server.url} any more")

    def start(self) -> None:
        missing = self.most_connections - len(self.connections)
        for connection in list(self.connections):
            self._next(connection)
        for _ in range(missing):
            self.spawn(self._return())

    def free(self, connection: Connection) -> None:
        if self.over:
            return
        if connection.usable:
            self._next(connection)
        else:
            self.spawn(self._return(RECONNECT_S if connection.failure == NO_CONNECTION else 0.0))

    def _next(self, connection: Connection) -> None:
        now = clock()
        if self.may_send(now):
            self.send(connection, now)

    async def _return(self, after_s: float = 0.0) -> None:
        """A client whose connection is gone: its next request waits for a new one, on the record."""
        await asyncio.sleep(after_s)
        due = clock()
        if not self.may_send(due):
            self.end_if_done()
            return
        connection = self.new_connection()
        self._returning += 1
        opened = await self.open(connection)
        self._returning -= 1
        if opened:
            self.send(connection, due)
            return
        self.record_failure(due, NO_CONNECTION)
        if self.over:
            self.end_if_done()
        else:
            self.spawn(self._return(RECONNECT_S))
