"""An open load: requests come at a rate of their own.

The latency of a request counts from the moment that it was to be sent: where the server falls behind, the requests that
wait in this process wait on the record, so a stalled server cannot hide by being asked less (coordinated omission).
"""

from __future__ import annotations

import collections
import contextlib
import random
import signal

from ui.bench.bodies import Source
from ui.bench.connection import NO_CONNECTION, TIMEOUT, Connection, Server, clock
from ui.bench.plan import OnTick, Plan
from ui.bench.running import RECONNECT_S, Load

MOST_CONNECTIONS = 1024
"""Further requests wait here, on the record."""
LEAST_DELAY_S = 20e-6
"""The interval timer takes 0 for never."""


class OpenLoad(Load):
    """Arrivals by a clock, whatever the server does; connections as many as that takes.

    The interval timer of the process wakes it: event loops count in whole milliseconds, in which ten requests may be
    due.
    """

    def __init__(self, plan: Plan, server: Server, head: bytes, bodies: Source, on_tick: OnTick) -> None:
        super().__init__(plan, server, head, bodies, on_tick)
        assert plan.rate is not None
        self._rate = plan.rate
        self._chance = random.Random(7)
        self._idle: list[Connection] = []
        self._due: collections.deque[float] = collections.deque()
        self._opening = 0
        self._refused_until = 0.0

    @property
    def most_connections(self) -> int:
        return MOST_CONNECTIONS

    @property
    def waiting(self) -> int:
        return len(self._due)

    def start(self) -> None:
        self._next_at = clock()
        self._loop.add_signal_handler(signal.SIGALRM, self._arrive)
        self._arrive()

    def close(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._loop.remove_signal_handler(signal.SIGALRM)
        super().close()

    def free(self, connection: Connection) -> None:
        if connection.usable:
            self._idle.append(connection)
        self._serve()

    def drop_late(self, oldest: float) -> None:
        while self._due and self._due[0] < oldest:
            self.record_failure(self._due.popleft(), TIMEOUT)
        if self._due:
            self._serve()

    def _arrive(self) -> None:
        """Everything that is due by now, then sleep until the next."""
        now = clock()
        while not self.over and self._next_at <= now:
            if self.may_send(self._next_at):
                self._due.append(self._next_at)
                self._next_at += 1.0 / self._rate if self.plan.even else self._chance.expovariate(self._rate)
        self._serve()
        if self.over:
            self.end_if_done()
        else:
            signal.setitimer(signal.ITIMER_REAL, max(LEAST_DELAY_S, self._next_at - clock()))

    def _serve(self) -> None:
        """Send what is due on connections that are free, and open some where there are too few."""
        while self._due and self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self.send(connection, self._due.popleft())
            else:
                with contextlib.suppress(ValueError):
                    self.connections.remove(connection)
        wanted = min(len(self._due) - self._opening, MOST_CONNECTIONS - len(self.connections))
        if clock() >= self._refused_until:
            for _ in range(wanted):
                self._opening += 1
                self.spawn(self._more())

    async def _more(self) -> None:
        opened = await self.open(connection := self.new_connection())
        self._opening -= 1
        if opened:
            self._idle.append(connection)
        else:
            self._refused_until = clock() + RECONNECT_S
            if self._due:
                self.record_failure(self._due.popleft(), NO_CONNECTION)
        self._serve()
        self.end_if_done()
