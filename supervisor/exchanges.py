"""The request path: from a caller's bytes to a replica and back, one deadline, each slot given back once (spec 6).

    caller --submit--> pick --> send --> [chunks] --> answer --> caller
                                 |          |           |
                                 +-- lost --+-- late ---+--> retry before the first byte, else an error

It decides nothing about replicas: `core.dispatch` picks and judges, this only carries its word out. It holds no HTTP
and no socket: the caller is a `Sink`, the way to a replica a `Carrier`. Callbacks, not tasks: a request costs no task
here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import itertools
import time
from collections.abc import Callable
from typing import Protocol

from engine.messages import Request
from supervisor.core.dispatch import Assignment, Consequence, Member, Pool, Refusal, Tickets
from supervisor.core.durations import Durations
from supervisor.core.ejection import Outcome
from supervisor.core.result_cache import ResultCache
from supervisor.core.traffic import Traffic
from supervisor.links.carrier import Carrier


class Failure(enum.Enum):
    """Why a caller gets no answer from a replica; `supervisor.gateway.errors` turns it into a status."""

    OVERLOADED = enum.auto()
    UNAVAILABLE = enum.auto()
    TIMEOUT = enum.auto()
    REPLICA_LOST = enum.auto()
    STOPPING = enum.auto()


class Sink(Protocol):
    """The caller's side of an exchange. Every exchange ends with exactly one of `answer`, `end` and `fail`."""

    def answer(self, status: int, body: bytes, replica: str) -> None:
        """The whole answer."""

    def chunk(self, data: bytes, replica: str) -> None:
        """The next bytes of a streamed answer."""

    def end(self) -> None:
        """The streamed answer is complete."""

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        """There is no answer, or no more of it. replica: who was to give it, None where nobody took it."""


@dataclasses.dataclass(slots=True, eq=False)
class Target:
    """One incarnation as the request path sees it: who it is, the way to it, what it has open, what it counted."""

    member: Member
    carrier: Carrier
    counts: dict[Outcome, int]
    traffic: Traffic
    open: dict[int, Exchange] = dataclasses.field(default_factory=dict)
    on_idle: Callable[[], None] | None = None
    """Called when the last exchange ended; set while the incarnation drains."""


@dataclasses.dataclass(slots=True, eq=False)
class Lane:
    """A deployment as the request path sees it."""

    name: str
    pool: Pool
    timeout_s: float
    retries: int
    targets: dict[Member, Target] = dataclasses.field(default_factory=dict)
    durations: Durations = dataclasses.field(default_factory=Durations)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Requests that no replica took, by failure name."""
    cache: ResultCache = dataclasses.field(default_factory=lambda: ResultCache(time.monotonic()))


@dataclasses.dataclass(slots=True, eq=False)
class Exchange:
    """One request on its way. `deadline` is monotonic seconds; `by_caller`: whose limit that deadline is."""

    number: int
    lane: Lane
    route: int
    stream: bool
    body: bytes
    sink: Sink
    deadline: float
    by_caller: bool
    retries_left: int
    taken: float
    target: Target | None = None
    assignment: Assignment | None = None
    first_byte: bool = False
    tried: tuple[Member, ...] = ()
    timer: asyncio.TimerHandle | None = None


class Exchanges:
    """Every exchange of the supervisor. `on_consequences` is told what an end means for a replica."""

    def __init__(self, on_consequences: Callable[[Lane, list[Consequence], str], None]) -> None:
        self.tickets = Tickets()
        self.late_answers = 0
        self._on_consequences = on_consequences
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------------------------------------- from the caller

    def submit(
        self, lane: Lane, route: int, stream: bool, body: bytes, sink: Sink, caller_timeout_s: float | None = None
    ) -> Exchange | None:
        """Take a request in; None where it ended at once: it failed, or was answered before (the sink was told)."""
        now = time.monotonic()
        cache = lane.cache
        if cache.member is not None and not stream and (known := cache.find(route, body, now)) is not None:
            lane.durations.record(0.0)
            sink.answer(200, known, cache.member.name)
            return None
        by_caller = caller_timeout_s is not None and caller_timeout_s < lane.timeout_s
        limit = caller_timeout_s if by_caller and caller_timeout_s is not None else lane.timeout_s
        exchange = Exchange(
            next(self._numbers), lane, route, stream, body, sink, now + limit, by_caller, lane.retries, now
        )
        if not self._dispatch(exchange, now):
            return None
        exchange.timer = self._loop.call_at(exchange.deadline, self._expire, exchange)
        return exchange

    def cancel(self, exchange: Exchange) -> None:
        """The caller left: its rows are dropped in the engine, its slot is free at once."""
        if exchange.target is not None:
            exchange.target.carrier.cancel(exchange.number)
            self._settle(exchange, Outcome.CANCELLED, "the caller left")
            _close(exchange)

    # ------------------------------------------------------------------------------------------- from the replica

    def on_answer(self, target: Target, number: int, status: int, body: bytes) -> None:
        """A replica answered whole."""
        exchange = target.open.get(number)
        if exchange is None:
            self.late_answers += 1
            return
        if status == 200 and target.member is exchange.lane.cache.member and not exchange.stream:
            exchange.lane.cache.keep(target.member, exchange.route, exchange.body, body)
        outcome = _outcome_of(status)
        self._settle(exchange, outcome, f"answered {status}" if outcome is Outcome.FAILED else "")
        _close(exchange)
        exchange.sink.answer(status, body, target.member.name)

    def on_chunk(self, target: Target, number: int, data: bytes) -> None:
        """A replica streamed a piece of an answer."""
        exchange = target.open.get(number)
        if exchange is None:
            self.late_answers += 1
            return
        exchange.first_byte = True
        exchange.sink.chunk(data, target.member.name)

    def on_end(self, target: Target, number: int) -> None:
        """A replica completed a streamed answer."""
        exchange = target.open.get(number)
        if exchange is None:
            self.late_answers += 1
            return
        self._settle(exchange, Outcome.OK, "")
        _close(exchange)
        exchange.sink.end()

    def on_broken(self, target: Target, number: int, reason: str) -> None:
        """A connection broke under one exchange: tried once more elsewhere if nothing of it was sent."""
        exchange = target.open.get(number)
        if exchange is None:
            self.late_answers += 1
            return
        self._lose(exchange, reason)

    def on_lost(self, target: Target, reason: str) -> None:
        """A replica died or went away: what it had is tried once more elsewhere, where nothing of it was sent yet."""
        target.member.in_rotation = False
        for exchange in list(target.open.values()):
            self._lose(exchange, reason)

    # ------------------------------------------------------------------------------------------- inside

    def _dispatch(self, exchange: Exchange, now: float) -> bool:
        """Find a replica that takes it, or tell the caller why there is none."""
        lane = exchange.lane
        while True:
            picked = lane.pool.pick(now, exchange.tried)
            if isinstance(picked, Refusal):
                self._refuse(exchange, picked)
                return False
            target = lane.targets[picked]
            request = Request(exchange.number, exchange.route, exchange.stream, exchange.deadline - now)
            exchange.target = target
            exchange.assignment = lane.pool.assign(picked, len(exchange.body))
            target.open[exchange.number] = exchange
            if target.carrier.send(request, exchange.body):
                return True
            self._settle(exchange, Outcome.FAILED, "could not be reached")
            exchange.tried = (*exchange.tried, picked)

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        _close(exchange)
        counts = exchange.lane.counts
        counts[refusal.value] = counts.get(refusal.value, 0) + 1
        if exchange.tried:
            lost = exchange.tried[-1].name
            message = f"{lost} was lost with the request and no other replica could take it"
            exchange.sink.fail(Failure.REPLICA_LOST, message, lost)
        elif refusal is Refusal.OVERLOADED:
            message = f"all replicas of {exchange.lane.name} are busy; try again in a moment"
            exchange.sink.fail(Failure.OVERLOADED, message, None)
        else:
            why = exchange.lane.pool.why_unavailable(time.monotonic())
            message = f"no replica of {exchange.lane.name} is ready{': ' if why else ''}{why}"
            exchange.sink.fail(Failure.UNAVAILABLE, message, None)

    def _settle(self, exchange: Exchange, outcome: Outcome, reason: str) -> None:
        """Give the slot back, count, and pass the consequences on. The exchange belongs to no replica afterwards."""
        target, assignment = exchange.target, exchange.assignment
        assert target is not None and assignment is not None
        now = time.monotonic()
        exchange.target = exchange.assignment = None
        del target.open[exchange.number]
        target.counts[outcome] += 1
        if outcome is Outcome.OK:
            target.traffic.record(now, now - exchange.taken)
            exchange.lane.durations.record(now - exchange.taken)
        consequences = exchange.lane.pool.settle(assignment, outcome, now)
        if consequences:
            self._on_consequences(exchange.lane, consequences, reason)
        if target.on_idle is not None and not target.open:
            target.on_idle()

    def _expire(self, exchange: Exchange) -> None:
        """The deadline passed: the caller is told at once, the engine is told to cancel."""
        if exchange.target is None:
            return
        limit = "the caller's limit" if exchange.by_caller else f"timeout_ms {exchange.lane.timeout_s * 1000:.0f}"
        name = exchange.target.member.name
        exchange.target.carrier.cancel(exchange.number)
        outcome = Outcome.CALLER_TIMEOUT if exchange.by_caller else Outcome.DEPLOYMENT_TIMEOUT
        self._settle(exchange, outcome, "timed out")
        exchange.sink.fail(Failure.TIMEOUT, f"{name} did not answer within {limit}", name)

    def _lose(self, exchange: Exchange, reason: str) -> None:
        assert exchange.target is not None
        member = exchange.target.member
        self._settle(exchange, Outcome.FAILED, reason)
        exchange.tried = (*exchange.tried, member)
        now = time.monotonic()
        if exchange.first_byte or exchange.retries_left < 1 or now >= exchange.deadline:
            _close(exchange)
            exchange.sink.fail(Failure.REPLICA_LOST, f"{member.name} was lost with the request: {reason}", member.name)
            return
        exchange.retries_left -= 1
        self._dispatch(exchange, now)


def _outcome_of(status: int) -> Outcome:
    if status < 400:
        return Outcome.OK
    return Outcome.FAILED if status >= 500 else Outcome.REJECTED


def _close(exchange: Exchange) -> None:
    """The caller is about to be told how it ended: no deadline any more, and the body is not needed again."""
    if exchange.timer is not None:
        exchange.timer.cancel()
        exchange.timer = None
    exchange.body = b""
