"""Every request is answered exactly once, whatever its replicas and its caller do; everything it held comes back."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import Request
from supervisor.core.dispatch import Consequence, Member, Pool
from supervisor.core.ejection import Outcome
from supervisor.core.traffic import Traffic
from supervisor.exchanges import Exchange, Exchanges, Failure, Lane, Target


class Wire:
    """A replica as a list: what was sent to it, what was cancelled. `up` False: it takes nothing."""

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.cancelled: list[int] = []
        self.asked = 0
        self.up = True

    def send(self, request: Request, body: bytes) -> bool:
        if self.up:
            self.sent.append(request)
        return self.up

    def cancel(self, exchange: int) -> None:
        self.cancelled.append(exchange)

    def ask(self) -> None:
        self.asked += 1


@dataclasses.dataclass
class Caller:
    """What one caller was told."""

    told: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    pieces: list[bytes] = dataclasses.field(default_factory=list)
    left: bool = False

    def answer(self, status: int, body: bytes, replica: str) -> None:
        self.told.append(("answer", status))

    def chunk(self, data: bytes, replica: str) -> None:
        assert not self.told, "a piece after the end"
        self.pieces.append(data)

    def end(self) -> None:
        self.told.append(("end", None))

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        assert message
        self.told.append(("fail", failure))


class Bench:
    """One deployment on in-memory wires."""

    def __init__(self, replicas: int, retries: int = 1, timeout_s: float = 60.0) -> None:
        self.consequences: list[Consequence] = []
        self.exchanges = Exchanges(lambda lane, found, reason: self.consequences.extend(found))
        self.lane = Lane("m", Pool(self.exchanges.tickets, desired=replicas), timeout_s, retries)
        self.callers: list[tuple[Caller, Exchange | None]] = []
        for number in range(replicas):
            self.add(f"m/{number}")

    def add(self, name: str) -> Target:
        member = Member(name, in_rotation=True)
        target = Target(member, Wire(), dict.fromkeys(Outcome, 0), Traffic(0.0))
        self.lane.pool.members.append(member)
        self.lane.targets[member] = target
        return target

    def submit(self, size: int = 3, stream: bool = False, timeout_s: float | None = None) -> Caller:
        caller = Caller()
        exchange = self.exchanges.submit(self.lane, 1, stream, b"x" * size, caller, timeout_s)
        self.callers.append((caller, exchange))
        return caller

    @property
    def targets(self) -> list[Target]:
        return list(self.lane.targets.values())

    def open(self) -> list[tuple[Target, int]]:
        return [(target, number) for target in self.targets for number in target.open]


def in_loop(test: Callable[[], Any]) -> None:
    """Run a function where a loop runs; it awaits nothing, so no timer fires in it."""

    async def main() -> None:
        test()

    asyncio.run(main())


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "stream",
                "answer",
                "refuse",
                "break",
                "piece",
                "end",
                "die",
                "join",
                "leave",
                "expire",
                "late",
                "down",
            ]
        ),
        st.integers(0, 10_000),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(operations=OPERATIONS, replicas=st.integers(1, 4), retries=st.integers(0, 2))
def test_every_caller_is_told_exactly_once_and_nothing_stays_held(
    operations: list[tuple[str, int]], replicas: int, retries: int
) -> None:
    def scenario() -> None:
        bench = Bench(replicas, retries)
        for name, dice in operations:
            play(bench, name, dice)
        for target, number in bench.open():
            bench.exchanges.on_answer(target, number, 200, b"{}")
        assert not bench.open()
        for caller, _ in bench.callers:
            assert len(caller.told) == (0 if caller.left and not caller.told else 1), caller
        for target in bench.targets:
            assert (target.member.in_flight, target.member.outstanding_bytes) == (0, 0)

    in_loop(scenario)


def play(bench: Bench, name: str, dice: int) -> None:
    """One event of a scenario."""
    exchanges, opened = bench.exchanges, bench.open()
    target, number = opened[dice % len(opened)] if opened else (bench.targets[0], 0)
    match name:
        case "submit" | "stream":
            bench.submit(dice, name == "stream")
        case "answer" | "refuse" | "break":
            exchanges.on_answer(target, number, {"answer": 200, "refuse": 400, "break": 500}[name], b"{}")
        case "piece":
            exchanges.on_chunk(target, number, b"data")
        case "end":
            exchanges.on_end(target, number)
        case "late":
            exchanges.on_answer(target, 10**9 + dice, 200, b"{}")
        case "die":
            victim = bench.targets[dice % len(bench.targets)]
            exchanges.on_lost(victim, "died")
            bench.lane.pool.members.remove(victim.member)
            del bench.lane.targets[victim.member]
            bench.add(f"m/{len(bench.callers)}-{dice}")
        case "join":
            bench.add(f"m/joined-{dice}-{len(bench.lane.targets)}")
        case "down":
            wire = bench.targets[dice % len(bench.targets)].carrier
            assert isinstance(wire, Wire)
            wire.up = not wire.up
        case "leave" | "expire":
            still = [(caller, one) for caller, one in bench.callers if one is not None and one.target is not None]
            if still:
                caller, exchange = still[dice % len(still)]
                if name == "leave":
                    caller.left = True
                    exchanges.cancel(exchange)
                else:
                    exchanges._expire(exchange)


def test_an_exchange_whose_replica_died_is_tried_once_more_elsewhere() -> None:
    def scenario() -> None:
        bench = Bench(3)
        caller = bench.submit()
        ((first, number),) = bench.open()
        bench.exchanges.on_lost(first, "SIGKILL")
        ((second, again),) = bench.open()
        assert again == number and second is not first and not caller.told
        bench.exchanges.on_lost(second, "SIGKILL")
        assert caller.told == [("fail", Failure.REPLICA_LOST)] and not bench.open()

    in_loop(scenario)


def test_never_after_the_first_byte() -> None:
    def scenario() -> None:
        bench = Bench(2)
        caller = bench.submit(stream=True)
        ((target, number),) = bench.open()
        bench.exchanges.on_chunk(target, number, b"data")
        bench.exchanges.on_lost(target, "SIGKILL")
        assert caller.told == [("fail", Failure.REPLICA_LOST)] and not bench.open()

    in_loop(scenario)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_never_on_an_answer(status: int) -> None:
    def scenario() -> None:
        bench = Bench(2)
        caller = bench.submit()
        ((target, number),) = bench.open()
        bench.exchanges.on_answer(target, number, status, b"{}")
        assert caller.told == [("answer", status)] and not bench.open()

    in_loop(scenario)


def test_a_replica_that_takes_nothing_is_passed_over_without_using_up_the_retry() -> None:
    def scenario() -> None:
        bench = Bench(3, retries=0)
        for target in bench.targets[:2]:
            assert isinstance(target.carrier, Wire)
            target.carrier.up = False
        caller = bench.submit()
        assert [target.member.name for target, _ in bench.open()] == ["m/2"] and not caller.told

    in_loop(scenario)


def test_at_the_deadline_the_caller_is_told_and_the_engine_is_told_to_cancel() -> None:
    async def scenario() -> None:
        bench = Bench(1, timeout_s=0.05)
        caller = bench.submit()
        ((target, number),) = bench.open()
        async with asyncio.timeout(5):
            while not caller.told:
                await asyncio.sleep(0.005)
        assert caller.told == [("fail", Failure.TIMEOUT)]
        assert isinstance(target.carrier, Wire) and target.carrier.cancelled == [number]
        assert target.counts[Outcome.DEPLOYMENT_TIMEOUT] == 1
        bench.exchanges.on_answer(target, number, 200, b"{}")
        assert len(caller.told) == 1 and bench.exchanges.late_answers == 1

    asyncio.run(scenario())


def test_the_smaller_of_the_two_limits_decides_and_says_whose_it_was() -> None:
    async def scenario() -> None:
        bench = Bench(1, timeout_s=60)
        caller = bench.submit(timeout_s=0.01)
        (target,) = bench.targets
        async with asyncio.timeout(5):
            while not caller.told:
                await asyncio.sleep(0.005)
        assert target.counts[Outcome.CALLER_TIMEOUT] == 1

    asyncio.run(scenario())
