"""Who has the socket: never two, never nobody for long, and the one who stands in goes as soon as he is asked to."""

from __future__ import annotations

import random
import select
import sys
import threading
from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.custody import LONGEST_PAUSE, LOOKS_BEFORE_SLEEP, Custody, Step, Vigil

LONG_S = 30.0

moments = st.lists(st.floats(0.01, 130.0), min_size=1, max_size=8)


class Day:
    """A device thread's day, measured in looks: away for `spans[0]`, at the socket for `spans[1]`, away again, …"""

    def __init__(self, spans: list[float]) -> None:
        self._turns = list(accumulate(spans))

    def at(self, now: float) -> tuple[int, bool]:
        """How often it has left the socket by then, and whether it is there."""
        turns = sum(turn <= now for turn in self._turns)
        return turns // 2 + 1, turns % 2 == 1

    def since(self, now: float) -> float:
        """When the span of that moment began."""
        return max((turn for turn in self._turns if turn <= now), default=0.0)

    @property
    def end(self) -> float:
        return self._turns[-1]


@given(moments)
def test_it_is_stood_in_for_after_one_to_two_looks_and_never_sooner(spans: list[float]) -> None:
    day, vigil = Day(spans), Vigil()
    now = 0.0
    while now < day.end + 3:
        departures, at_socket = day.at(now)
        step = vigil.look(departures, at_socket)
        away_for = now - day.since(now)
        if step is Step.STAND_IN:
            assert not at_socket and away_for >= 1
        elif not at_socket:
            assert away_for < 2
        now += 1


@given(moments)
def test_it_sleeps_only_while_the_device_thread_is_at_the_socket_and_has_been_for_long(spans: list[float]) -> None:
    day, vigil = Day(spans), Vigil()
    now = 0.0
    while now < day.end:
        departures, at_socket = day.at(now)
        if vigil.look(departures, at_socket) is Step.SLEEP:
            assert at_socket and now - day.since(now) > LOOKS_BEFORE_SLEEP - 2
        now += 1


def test_looks_become_rarer_while_the_device_thread_comes_and_goes_and_usual_when_it_stays_away() -> None:
    vigil = Vigil()
    pauses = []
    for departures in range(1, 2 * LONGEST_PAUSE):
        assert vigil.look(departures, at_socket=False) is Step.WATCH
        pauses.append(vigil.pause)
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_PAUSE
    assert vigil.look(departures, at_socket=False) is Step.STAND_IN
    assert vigil.pause == 1


@pytest.fixture
def eager_interpreter() -> Iterator[None]:
    """Threads change places after each few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_interpreter")
def test_two_threads_in_a_race_are_never_at_the_socket_together_and_never_wait_for_ever() -> None:
    custody = Custody()
    chance = random.Random(8)
    at_socket: list[str] = []
    together: list[list[str]] = []
    over = threading.Event()
    stood_in = 0

    def visit(who: str) -> None:
        at_socket.append(who)
        if len(at_socket) != 1:
            together.append(list(at_socket))
        at_socket.remove(who)

    def device() -> None:
        for _ in range(20_000):
            with custody:
                visit("device")
            sum(range(chance.choice((0, 0, 10, 500))))
        over.set()

    def standby() -> None:
        nonlocal stood_in
        poller = select.poll()
        poller.register(custody.fileno(), select.POLLIN)
        while not over.is_set():
            if not custody.stand_in():
                continue
            try:
                stood_in += 1
                visit("standby")
                while not custody.claimed and not over.is_set():
                    poller.poll(50)
                    custody.woken()
            finally:
                custody.give_back()

    threads = [threading.Thread(target=one, daemon=True) for one in (device, standby)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive(), "they wait for each other"
    assert together == []
    assert stood_in > 10


@pytest.mark.usefixtures("eager_interpreter")
def test_a_standby_that_sleeps_is_woken_by_the_next_departure() -> None:
    custody = Custody()
    over = threading.Event()
    missed: list[int] = []

    def standby() -> None:
        poller = select.poll()
        poller.register(custody.fileno(), select.POLLIN)
        while not over.is_set():
            departures = custody.departures
            if not custody.sleep():
                continue
            if not poller.poll(LONG_S * 500):
                missed.append(departures)
                return
            custody.woken()

    thread = threading.Thread(target=standby, daemon=True)
    thread.start()
    for _ in range(20_000):
        with custody:
            pass
    over.set()
    with custody:
        pass
    thread.join(LONG_S)
    assert not thread.is_alive() and missed == []
