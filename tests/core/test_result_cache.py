"""The result cache at the gateway (spec 10): what is given again, whose it is, and that it stays within bounds."""

from __future__ import annotations

import asyncio
import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.lru import ENTRY_BYTES, Recent
from engine.messages import Request, Route
from supervisor.core.dispatch import Consequence, Member, Pool
from supervisor.core.ejection import Outcome
from supervisor.core.result_cache import LONGEST_BODY, ROUTES, ResultCache
from supervisor.core.traffic import Traffic
from supervisor.exchanges import Exchanges, Failure, Lane, Target

KEYS = st.integers(0, 7)
BODY = b'{"input":"a"}'


@settings(deadline=None)
@given(
    uses=st.lists(st.tuples(st.sampled_from(["get", "put"]), KEYS, st.integers(0, 900)), max_size=60),
    entries=st.integers(0, 5),
    most_bytes=st.integers(0, 4000),
)
def test_the_values_used_last_stay_and_both_bounds_hold(
    uses: list[tuple[str, int, int]], entries: int, most_bytes: int
) -> None:
    recent: Recent[int, int] = Recent(entries, most_bytes)
    expected: dict[int, tuple[int, int]] = {}  # in order of use
    for turn, (what, key, size) in enumerate(uses):
        if what == "get":
            assert recent.get(key) == expected.get(key, (None,))[0]
            if key in expected:
                expected[key] = expected.pop(key)
            continue
        recent.put(key, turn, size)
        expected.pop(key, None)
        if entries and size + ENTRY_BYTES <= most_bytes:
            expected[key] = (turn, size + ENTRY_BYTES)
            while len(expected) > entries or sum(cost for _, cost in expected.values()) > most_bytes:
                del expected[next(iter(expected))]
        assert len(recent) == len(expected) <= entries
        assert recent.held_bytes == sum(cost for _, cost in expected.values()) <= most_bytes
    for key in range(8):
        assert recent.get(key) == expected.get(key, (None,))[0]


def following(entries: int = 4) -> tuple[ResultCache, Member]:
    cache, member = ResultCache(0.0), Member("m/0", in_rotation=True)
    cache.follow(member, entries)
    return cache, member


def test_an_answer_belongs_to_its_route_and_its_bytes() -> None:
    cache, member = following()
    cache.keep(member, Route.EMBEDDINGS, BODY, b"vectors")
    assert cache.find(Route.EMBEDDINGS, bytes(bytearray(BODY)), 1.0) == b"vectors"
    assert cache.find(Route.CLASSIFY, BODY, 1.0) is None
    assert cache.find(Route.EMBEDDINGS, BODY + b" ", 1.0) is None
    assert (cache.hits, cache.misses, len(cache)) == (1, 2, 1)


def test_only_routes_whose_answers_are_not_drawn_are_remembered() -> None:
    cache, member = following(entries=16)
    for route in Route:
        cache.keep(member, route, BODY, b"answer")
        assert (cache.find(route, BODY, 1.0) is not None) == (route in ROUTES)
    assert {Route.EMBEDDINGS, Route.CLASSIFY, Route.RERANK} == ROUTES


def test_long_requests_are_neither_kept_nor_hashed() -> None:
    cache, member = following()
    longest = b"x" * LONGEST_BODY
    cache.keep(member, Route.EMBEDDINGS, longest, b"kept")
    cache.keep(member, Route.EMBEDDINGS, longest + b"x", b"not kept")
    assert cache.find(Route.EMBEDDINGS, longest, 1.0) == b"kept"
    assert cache.find(Route.EMBEDDINGS, longest + b"x", 1.0) is None


def test_the_next_incarnation_starts_with_nothing_and_takes_nothing_from_the_last_one() -> None:
    cache, first = following()
    cache.keep(first, Route.EMBEDDINGS, BODY, b"of the first")
    second = Member("m/0", incarnation=2, in_rotation=True)
    cache.follow(second, 4)
    cache.keep(first, Route.EMBEDDINGS, BODY, b"late")
    assert cache.find(Route.EMBEDDINGS, BODY, 1.0) is None and cache.held_bytes == 0


def test_following_the_same_replica_on_keeps_what_is_known() -> None:
    cache, member = following()
    cache.keep(member, Route.EMBEDDINGS, BODY, b"vectors")
    cache.follow(member, 4)
    assert cache.find(Route.EMBEDDINGS, BODY, 1.0) == b"vectors"
    cache.follow(member, 0)
    assert cache.member is None and len(cache) == 0


def test_out_of_rotation_nothing_is_given() -> None:
    cache, member = following()
    cache.keep(member, Route.EMBEDDINGS, BODY, b"vectors")
    member.in_rotation = False
    assert cache.find(Route.EMBEDDINGS, BODY, 1.0) is None
    member.in_rotation = True
    assert cache.find(Route.EMBEDDINGS, BODY, 1.0) == b"vectors"


# ------------------------------------------------------------------------------------------- on the request path


class Wire:
    """A replica that takes everything and says nothing by itself."""

    def __init__(self) -> None:
        self.sent: list[Request] = []

    def send(self, request: Request, body: bytes) -> bool:
        self.sent.append(request)
        return True

    def cancel(self, exchange: int) -> None: ...

    def ask(self) -> None: ...


@dataclasses.dataclass
class Caller:
    told: list[tuple[int, bytes, str] | Failure] = dataclasses.field(default_factory=list)

    def answer(self, status: int, body: bytes, replica: str) -> None:
        self.told.append((status, body, replica))

    def chunk(self, data: bytes, replica: str) -> None: ...

    def end(self) -> None: ...

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        self.told.append(failure)


class Bench:
    """One replica whose answers are remembered."""

    def __init__(self) -> None:
        self.consequences: list[Consequence] = []
        self.exchanges = Exchanges(lambda lane, found, reason: self.consequences.extend(found))
        self.lane = Lane("m", Pool(self.exchanges.tickets), 60.0, 1)
        self.wire = Wire()
        self.member = Member("m/0", in_rotation=True)
        self.target = Target(self.member, self.wire, dict.fromkeys(Outcome, 0), Traffic(0.0))
        self.lane.pool.members.append(self.member)
        self.lane.targets[self.member] = self.target
        self.lane.cache.follow(self.member, 16)

    def ask(self, body: bytes = BODY, *, stream: bool = False) -> Caller:
        caller = Caller()
        self.exchanges.submit(self.lane, Route.EMBEDDINGS, stream, body, caller)
        return caller

    def reply(self, status: int = 200, body: bytes = b"vectors") -> None:
        self.exchanges.on_answer(self.target, self.wire.sent[-1].exchange, status, body)


def test_a_known_answer_costs_its_replica_nothing_and_names_it() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.ask()
        bench.reply()
        before = (bench.member.last_assigned, dict(bench.target.counts), bench.exchanges.tickets.last)
        assert bench.ask().told == [(200, b"vectors", "m/0")]
        assert len(bench.wire.sent) == 1 and not bench.target.open
        assert (bench.member.last_assigned, bench.target.counts, bench.exchanges.tickets.last) == before
        assert (bench.member.in_flight, bench.member.outstanding_bytes) == (0, 0)
        assert (bench.lane.cache.hits, bench.lane.cache.misses) == (1, 1)

    asyncio.run(scenario())


def test_a_known_answer_is_given_while_its_replica_is_full_or_backs_off() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.ask()
        bench.reply()
        for number in range(32):
            bench.ask(b"other %d" % number)
        assert bench.ask(b"one more").told == [Failure.OVERLOADED]
        assert bench.ask().told == [(200, b"vectors", "m/0")]
        bench.reply(500, b"broken")
        assert bench.member.standing.backoff_until > 0
        assert bench.ask().told == [(200, b"vectors", "m/0")]

    asyncio.run(scenario())


def test_errors_and_streams_are_not_remembered() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.ask()
        bench.reply(400, b"bad")
        bench.ask(stream=True)
        bench.reply()
        assert len(bench.lane.cache) == 0 and bench.ask().told == []
        bench.reply()
        assert bench.ask(stream=True).told == [], "a stream is asked for, and the answer is none"

    asyncio.run(scenario())


def test_a_replica_that_died_gives_no_answer_any_more() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.ask()
        bench.reply()
        bench.exchanges.on_lost(bench.target, "killed")
        assert bench.ask().told == [Failure.UNAVAILABLE]

    asyncio.run(scenario())
