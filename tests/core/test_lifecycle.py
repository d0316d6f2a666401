"""A replica's life is one table of legal moves; a dead one comes back after 1 s doubling to 60 s (spec 5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from supervisor.core.lifecycle import (
    ALIVE,
    AT_REST,
    COMING_UP,
    IN_ROTATION,
    MOVES,
    Ending,
    GiveUp,
    Record,
    Restart,
    State,
    after_exit,
    is_legal,
)


def test_every_state_has_a_row_and_every_life_can_end() -> None:
    assert set(MOVES) == set(State)
    for state in State:
        reached, frontier = {state}, [state]
        while frontier:
            for after in MOVES[frontier.pop()] - reached:
                reached.add(after)
                frontier.append(after)
        assert State.STOPPED in reached


def test_the_named_sets_partition_what_has_a_process() -> None:
    assert COMING_UP | IN_ROTATION <= ALIVE
    assert not ALIVE & AT_REST
    assert set(State) - ALIVE - AT_REST == {State.RESTARTING}


def test_a_drained_replica_never_serves_again_in_the_same_incarnation() -> None:
    assert not any(is_legal(state, State.READY) for state in (State.DRAINING, State.STOPPING, State.STOPPED))


class Lives(RuleBasedStateMachine):
    """Random walks over the table: only READY is in rotation, and a new process only comes from a place without one."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State.STOPPED

    @rule(after=st.sampled_from(State))
    def move(self, after: State) -> None:
        if not is_legal(self.state, after):
            return
        if after is State.STARTING:
            assert self.state not in ALIVE
        if after in ALIVE and after is not State.STARTING:
            assert self.state in ALIVE
        self.state = after


TestLives = Lives.TestCase


def delays(endings: list[Ending]) -> list[float]:
    record, found = Record(), []
    for ending in endings:
        verdict = after_exit(record, ending)
        assert isinstance(verdict, Restart)
        record = verdict.record
        found.append(verdict.delay_s)
    return found


def test_restart_delays_double_from_one_second_to_sixty() -> None:
    served = Ending(ran_s=40.0, was_ready=True)
    assert delays([served] * 8) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_two_minutes_of_running_clear_the_delay() -> None:
    short, long = Ending(40.0, True), Ending(121.0, True)
    assert delays([short, short, long, short]) == [1, 2, 1, 2]


def test_three_quick_exits_in_a_row_give_up() -> None:
    quick = Ending(ran_s=2.0, was_ready=False)
    record = Record()
    for _ in range(2):
        verdict = after_exit(record, quick)
        assert isinstance(verdict, Restart)
        record = verdict.record
    assert isinstance(after_exit(record, quick), GiveUp)


def test_a_quick_exit_after_ready_does_not_count_toward_giving_up() -> None:
    assert len(delays([Ending(2.0, was_ready=True)] * 10)) == 10


def test_three_failed_loads_give_up_however_long_they_took() -> None:
    slow_failure = Ending(ran_s=100.0, was_ready=False, load_failed=True)
    record = Record()
    for _ in range(2):
        verdict = after_exit(record, slow_failure)
        assert isinstance(verdict, Restart)
        record = verdict.record
    assert isinstance(after_exit(record, slow_failure), GiveUp)


@given(ran=st.floats(0, 1e6), ready=st.booleans())
def test_a_final_failure_is_never_tried_again(ran: float, ready: bool) -> None:
    assert isinstance(after_exit(Record(), Ending(ran, ready, load_failed=True, final=True)), GiveUp)
