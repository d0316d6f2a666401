"""One run of a load, whichever kind: its connections, its record, its end."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Coroutine

from ui.bench.asking import joined, message_of
from ui.bench.bodies import Source
from ui.bench.connection import TIMEOUT, Connection, Server, clock
from ui.bench.measured import Measured, Summary
from ui.bench.plan import Far, OnTick, Plan
from ui.bench.reading import Counting, reader_of

TICK_S = 0.05
"""Between two looks at what has timed out and how far it is."""
RECONNECT_S = 0.1
"""After a connection that broke, so that a server that is gone is not asked a thousand times a second."""
SPARE_FILES = 64
"""Open files beside the connections."""


class Load:
    """What both kinds share: connections, the record, the end."""

    def __init__(self, plan: Plan, server: Server, head: bytes, bodies: Source, on_tick: OnTick) -> None:
        self.plan = plan
        self.connections: list[Connection] = []
        self.over = False
        self._server = server
        self._head = head
        self._bodies = bodies
        self._on_tick = on_tick
        self._readers = reader_of(plan.shape)
        self.measured = Measured()
        self._counted = 0
        self._last_end = 0.0
        self._interrupted = False
        self._unfinished = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> Summary:
        """From the first request to the last answer."""
        _allow_files(self.most_connections + SPARE_FILES)
        await self.prepare()
        cpu = time.process_time()
        self.opens = clock() + self.plan.warmup_s
        self._closes = self.opens + self.plan.seconds if self.plan.seconds is not None else float("inf")
        began = clock()
        self._ticker: asyncio.Handle = self._loop.call_soon(self._tick)
        try:
            self.start()
            await self._ended
        finally:
            self.over = True
            self._ticker.cancel()
            self.close()
        now = clock()
        busy = (time.process_time() - cpu) / max(now - began, 1e-9)
        end = now if self._interrupted else self._last_end
        return self.measured.summary(max(end - self.opens, 0.0), busy, self._interrupted, self._unfinished)

    # ------------------------------------------------------------------------------------------- of each kind

    @property
    def most_connections(self) -> int:
        raise NotImplementedError

    async def prepare(self) -> None:
        """Before the clock starts."""

    def start(self) -> None:
        """The first requests."""
        raise NotImplementedError

    def free(self, connection: Connection) -> None:
        """That connection carries nothing now; it may be gone."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Requests that are due and not sent."""
        return 0

    def drop_late(self, oldest: float) -> None:
        """Give up what was due before that and is not sent."""

    def close(self) -> None:
        """Give everything back."""
        for task in self._tasks:
            task.cancel()
        for connection in self.connections:
            connection.close()

    # ------------------------------------------------------------------------------------------- one request

    def may_send(self, at: float) -> bool:
        """Whether a request that is due then belongs to the run; it is counted by this."""
        if self.over or at >= self._closes:
            self.over = True
            return False
        if at >= self.opens:
            if self.plan.requests is not None and self._counted >= self.plan.requests:
                self.over = True
                return False
            self._counted += 1
        return True

    def send(self, connection: Connection, due: float) -> None:
        """One request, which was to be sent at `due`."""
        connection.send(joined(self._head, self._bodies.make()), due)

    def record_failure(self, due: float, why: str) -> None:
        """A request that has no answer."""
        if due >= self.opens:
            self._last_end = clock()
            self.measured.failures[why] += 1

    def new_connection(self) -> Connection:
        """Not open yet."""
        connection = Connection(self._readers(), self._on_done)
        self.connections.append(connection)
        return connection

    async def open(self, connection: Connection) -> bool:
        """Whether it could be opened."""
        try:
            await self._server.connect(connection)
        except (OSError, TimeoutError):
            self.connections.remove(connection)
            return False
        return True

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """A task that lives as long as the run at the most."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_if_done(self) -> None:
        """The run ends with its last answer."""
        if self.over and not self._ended.done() and not self.waiting and not any(c.busy for c in self.connections):
            self._ended.set_result(None)

    def interrupt(self) -> None:
        """End now; what is in flight is not counted."""
        self.over = self._interrupted = True
        self._unfinished = self._in_flight
        if not self._ended.done():
            self._ended.set_result(None)

    def _on_done(self, connection: Connection) -> None:
        if self._interrupted:
            return
        if connection.began >= self.opens:
            self._record(connection)
        if not connection.usable:
            self.connections.remove(connection)
        self.free(connection)
        if self.over:
            self.end_if_done()

    def _record(self, connection: Connection) -> None:
        now = self._last_end = clock()
        reader: Counting = connection.reader  # type: ignore[assignment]
        failure = connection.failure
        measured = self.measured
        if failure is None and not 200 <= connection.status < 300:
            failure = str(connection.status)
            if failure not in measured.messages:
                measured.messages[failure] = message_of(connection.said)
        failure = failure or reader.end()
        if failure is not None:
            measured.failures[failure] += 1
            return
        measured.latencies.append(now - connection.began)
        measured.inputs += self.plan.shape.inputs
        measured.tokens += reader.tokens
        if reader.first:
            measured.first.append(reader.first - connection.began)
            measured.gaps.extend(reader.gaps)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        now = clock()
        late = now - self.plan.timeout_s
        for connection in [each for each in self.connections if each.busy and each.began < late]:
            connection.give_up(TIMEOUT)
        self.drop_late(late)
        self._on_tick(self._far(now))
        self.end_if_done()

    def _far(self, now: float) -> Far:
        seconds, requests = self.plan.seconds, self.plan.requests
        shares = [(now - self.opens) / seconds] if seconds is not None else []
        shares += [self.measured.requests / requests] if requests is not None else []
        share = min(1.0, max(0.0, *shares, 0.0))
        return Far(share, max(0.0, now - self.opens), now < self.opens, self.measured, self._in_flight)

    @property
    def _in_flight(self) -> int:
        """Requests that are due and have not ended."""
        return sum(each.busy for each in self.connections) + self.waiting


def _allow_files(wanted: int) -> None:
    """As many open files as that takes, where the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
