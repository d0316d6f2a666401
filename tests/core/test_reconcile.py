"""One reconcile brings what exists to what is wanted, whatever happens meanwhile (spec 8)."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisor.core.lifecycle import AT_REST, COMING_UP, State
from supervisor.core.reconcile import Drain, Forget, Have, Start, plan

READY, LOADING, FAILED, STOPPED, DRAINING = (
    State.READY,
    State.LOADING,
    State.FAILED,
    State.STOPPED,
    State.DRAINING,
)


def ready(number: int, *, identity: str = "a", in_flight: int = 0, born: int | None = None) -> Have:
    return Have(number, identity, READY, in_flight, number if born is None else born)


def test_nothing_to_do_when_all_is_as_wanted() -> None:
    assert plan(["a", "a"], [ready(0), ready(1)]) == []


def test_new_slots_take_the_lowest_free_numbers() -> None:
    assert plan(["a"] * 4, [ready(0), ready(2)]) == [Start(1, 2), Start(3, 3)]


def test_a_leaving_slot_keeps_its_number_until_it_is_gone() -> None:
    leaving = Have(1, "a", DRAINING, leaving=True)
    assert plan(["a", "a"], [ready(0), leaving]) == [Start(2, 1)]


def test_the_victim_is_not_ready_first() -> None:
    assert plan(["a"], [ready(0, in_flight=0), Have(1, "a", LOADING, born=1)]) == [Drain(1)]


def test_then_the_one_with_the_fewest_in_flight() -> None:
    assert plan(["a"], [ready(0, in_flight=1), ready(1, in_flight=5)]) == [Drain(0)]


def test_then_the_newest() -> None:
    assert plan(["a"], [ready(0, born=7), ready(1, born=3)]) == [Drain(0)]


def test_a_slot_drained_by_hand_holds_its_place() -> None:
    assert plan(["a", "a"], [ready(0), Have(1, "a", STOPPED)]) == []


def test_a_failed_slot_that_is_too_many_is_forgotten() -> None:
    assert plan(["a"], [ready(0), Have(1, "a", FAILED)]) == [Forget(1)]


def test_a_replaced_replica_serves_until_its_successor_is_ready() -> None:
    old, loading = ready(0, identity="old"), Have(1, "new", LOADING)
    assert plan(["new"], [old]) == [Start(1, 0)]
    assert plan(["new"], [old, loading]) == []
    assert plan(["new"], [old, dataclasses.replace(loading, state=READY)]) == [Drain(0)]


def test_everything_is_drained_when_nothing_is_wanted() -> None:
    assert set(plan([], [ready(0), Have(1, "a", LOADING)])) == {Drain(0), Drain(1)}


@given(
    wanted=st.lists(st.sampled_from("abc"), max_size=8),
    have=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(State), st.integers(0, 5)), max_size=8),
)
def test_no_slot_is_named_twice_and_no_number_is_used_twice(
    wanted: list[str], have: list[tuple[str, State, int]]
) -> None:
    slots = [Have(n, identity, state, busy, n) for n, (identity, state, busy) in enumerate(have)]
    actions = plan(wanted, slots)
    numbers = [action.number for action in actions]
    assert len(numbers) == len(set(numbers))
    started = {action.number for action in actions if isinstance(action, Start)}
    assert not started & {slot.number for slot in slots}
    assert all(isinstance(action, Start) or action.number < len(slots) for action in actions)


class Fleet(RuleBasedStateMachine):
    """A toy fleet that does what the plan says, while wishes change and processes come up, die and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[str] = []
        self.slots: dict[int, Have] = {}
        self.born = 0

    def carry_out(self) -> None:
        for action in plan(self.wanted, list(self.slots.values())):
            match action:
                case Start():
                    assert action.number not in self.slots
                    self.born += 1
                    self.slots[action.number] = Have(action.number, self.wanted[action.wanted], LOADING, 0, self.born)
                case Drain():
                    self.change(action.number, state=DRAINING, leaving=True)
                case Forget():
                    del self.slots[action.number]

    def change(self, number: int, **fields: object) -> None:
        self.slots[number] = dataclasses.replace(self.slots[number], **fields)  # type: ignore[arg-type]

    @rule(wanted=st.lists(st.sampled_from("ab"), max_size=6))
    def wish(self, wanted: list[str]) -> None:
        self.wanted = wanted
        self.carry_out()

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), state=st.sampled_from([READY, FAILED, State.RESTARTING, STOPPED]))
    def a_slot_moves(self, data: st.DataObject, state: State) -> None:
        number = data.draw(st.sampled_from(sorted(self.slots)))
        if self.slots[number].leaving:
            del self.slots[number]
        else:
            self.change(number, state=state)
        self.carry_out()

    @invariant()
    def asking_again_names_nothing_new(self) -> None:
        before = set(self.slots.values())
        self.carry_out()
        assert set(self.slots.values()) == before

    @invariant()
    def it_gets_there_once_everything_came_up(self) -> None:
        slots = dict(self.slots)
        for _ in range(4):
            for number, slot in list(self.slots.items()):
                if slot.leaving:
                    del self.slots[number]
                elif slot.state in COMING_UP | AT_REST | {State.RESTARTING}:
                    self.change(number, state=READY)
            self.carry_out()
        staying = sorted(slot.identity for slot in self.slots.values() if not slot.leaving)
        assert staying == sorted(self.wanted)
        self.slots = slots


TestFleet = Fleet.TestCase
