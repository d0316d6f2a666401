"""Who gets the next request, what its end means, when a replica is ejected (spec 6, 7): by rule and at random."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.core.dispatch import (
    MOST_IN_FLIGHT,
    AskHealth,
    Assignment,
    BackedOff,
    Consequence,
    Ejected,
    EjectionWithheld,
    Member,
    Pool,
    Readmitted,
    Refusal,
    Tickets,
)
from supervisor.core.ejection import Outcome, Policy, Return, Standing, Withheld

OK, FAILED, REJECTED, CANCELLED = Outcome.OK, Outcome.FAILED, Outcome.REJECTED, Outcome.CANCELLED
CALLER, DEPLOYMENT = Outcome.CALLER_TIMEOUT, Outcome.DEPLOYMENT_TIMEOUT


def pool(replicas: int, **policy: float) -> Pool:
    made = Pool(Tickets(), Policy(**policy), replicas)  # type: ignore[arg-type]
    made.members = [Member(f"m/{number}", in_rotation=True) for number in range(replicas)]
    return made


def send(to: Pool, size: int = 1, now: float = 0.0) -> Assignment:
    picked = to.pick(now)
    assert isinstance(picked, Member), picked
    return to.assign(picked, size)


def kinds(consequences: list[Consequence]) -> list[type]:
    return [type(consequence) for consequence in consequences]


# ---------------------------------------------------------------------------------------------------- choosing


def test_twelve_sequential_requests_on_four_idle_replicas_are_three_each() -> None:
    four = pool(4)
    taken = []
    for _ in range(12):
        assignment = send(four)
        taken.append(assignment.member.name)
        four.settle(assignment, OK, 0.0)
    assert sorted(taken) == sorted([f"m/{n}" for n in range(4)] * 3)


def test_the_fewest_outstanding_bytes_win() -> None:
    two = pool(2)
    large = send(two, 8_000_000)
    small = [send(two, 8_000) for _ in range(20)]
    assert {assignment.member for assignment in small} == {two.members[1]}
    two.settle(large, OK, 0.0)
    assert send(two, 8_000).member is large.member


def test_an_empty_body_still_costs_something() -> None:
    assert send(pool(1), 0).cost == 1


def test_all_ready_replicas_full_is_overloaded() -> None:
    two = pool(2)
    for _ in range(2 * MOST_IN_FLIGHT):
        send(two)
    assert two.pick(0.0) is Refusal.OVERLOADED


def test_none_ready_is_unavailable() -> None:
    two = pool(2)
    for member in two.members:
        member.in_rotation = False
    assert two.pick(0.0) is Refusal.UNAVAILABLE
    assert pool(0).pick(0.0) is Refusal.UNAVAILABLE


def test_some_full_and_the_rest_in_backoff_is_overloaded_all_in_backoff_is_unavailable() -> None:
    two = pool(2)
    full, failing = two.members
    two.settle(two.assign(failing, 1), FAILED, 0.0)
    for _ in range(MOST_IN_FLIGHT):
        two.assign(full, 1)
    assert two.pick(0.05) is Refusal.OVERLOADED
    full.in_rotation = False
    assert two.pick(0.05) is Refusal.UNAVAILABLE
    assert two.pick(0.11) is failing


def test_a_member_that_lost_the_request_already_is_not_tried_again() -> None:
    two = pool(2)
    first = send(two).member
    assert two.pick(0.0, (first,)) is not first
    assert two.pick(0.0, tuple(two.members)) is Refusal.UNAVAILABLE


# ---------------------------------------------------------------------------------------------------- outcomes


def test_backoff_doubles_from_a_tenth_of_a_second_to_three_point_two() -> None:
    standing = Standing()
    lengths = [standing.back_off(0.0) for _ in range(8)]
    assert lengths == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2])


@pytest.mark.parametrize("outcome", [REJECTED, CANCELLED, CALLER])
def test_neither_rejected_nor_cancelled_nor_the_callers_timeout_backs_off(outcome: Outcome) -> None:
    one = pool(1)
    assert one.settle(send(one), outcome, 0.0) == []
    assert one.pick(0.0) is one.members[0]


@pytest.mark.parametrize("outcome", [FAILED, DEPLOYMENT])
def test_a_failure_backs_off_and_has_health_asked(outcome: Outcome) -> None:
    one = pool(1)
    assert kinds(one.settle(send(one), outcome, 0.0)) == [BackedOff, AskHealth]


def test_success_clears_failures() -> None:
    one = pool(1)
    held = send(one)
    one.settle(send(one), FAILED, 0.0)
    one.settle(held, OK, 0.0)
    assert one.members[0].standing.failures == 0
    assert one.pick(0.0) is one.members[0]


def test_a_second_settlement_changes_nothing() -> None:
    one = pool(1)
    assignment = send(one, 5)
    one.settle(assignment, FAILED, 0.0)
    assert one.settle(assignment, OK, 0.0) == []
    assert (one.members[0].in_flight, one.members[0].outstanding_bytes) == (0, 0)
    assert one.members[0].standing.failures == 1


# ---------------------------------------------------------------------------------------------------- ejection


def hang(to: Pool, member: Member, now: float, outcome: Outcome = CALLER) -> list[Consequence]:
    """One exchange on a member that times out, while the others that are not ejected answer one each."""
    assignment = to.assign(member, 1)
    for peer in to.members:
        if peer is not member and not peer.standing.is_ejected(now):
            to.settle(to.assign(peer, 1), OK, now)
    return to.settle(assignment, outcome, now)


def test_three_timeouts_in_a_row_eject_while_another_answers() -> None:
    two = pool(2, base_ejection_s=2.0, max_ejection_s=20.0)
    a = two.members[0]
    assert hang(two, a, 1.0) == [] == hang(two, a, 2.0)
    assert hang(two, a, 3.0) == [Ejected(a, 2.0, 3), AskHealth(a)]
    assert two.pick(3.0) is two.members[1]
    assert two.pick(4.99) is two.members[1]


def test_after_cool_down_one_timeout_is_enough_and_the_length_doubles_up_to_max() -> None:
    two = pool(2, base_ejection_s=2.0, max_ejection_s=10.0)
    a, now, lengths = two.members[0], 0.0, []
    for _ in range(3):
        consequences = hang(two, a, now)
    for _ in range(5):
        (ejected, _) = consequences
        assert isinstance(ejected, Ejected)
        lengths.append(ejected.length_s)
        now += ejected.length_s
        assert two.cool_down(now) == [Readmitted(a, Return.COOL_DOWN)]
        consequences = hang(two, a, now)
    assert lengths == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_success_while_ejected_readmits_at_once_and_everything_starts_over() -> None:
    two = pool(2, base_ejection_s=2.0)
    a = two.members[0]
    still_open = two.assign(a, 1)
    for _ in range(3):
        hang(two, a, 0.0)
    assert two.settle(still_open, OK, 0.5) == [Readmitted(a, Return.SUCCESS)]
    assert a.standing.timeouts == 0 and a.standing.next_ejection_s == 0
    assert hang(two, a, 1.0) == [] == hang(two, a, 1.0)


def test_one_replica_is_never_ejected() -> None:
    one = pool(1)
    for _ in range(20):
        assert one.settle(send(one), CALLER, 0.0) == []


def test_zero_turns_ejection_off() -> None:
    two = pool(2, consecutive_timeouts=0)
    assert [hang(two, two.members[0], 0.0) for _ in range(9)] == [[]] * 9


def test_a_model_that_is_slow_everywhere_keeps_all_replicas() -> None:
    two = pool(2)
    wave = [two.assign(member, 1) for _ in range(5) for member in two.members]
    consequences = [c for assignment in wave for c in two.settle(assignment, CALLER, 1.0)]
    assert consequences and set(kinds(consequences)) == {EjectionWithheld}
    assert all(c.reason is Withheld.NO_PEER_ANSWERED for c in consequences if isinstance(c, EjectionWithheld))


def test_at_most_the_percentage_is_out_and_one_always_may_be() -> None:
    for replicas, percent, most in [(2, 50, 1), (3, 50, 1), (5, 50, 2), (4, 25, 1), (4, 0, 1), (4, 100, 4)]:
        assert Policy(max_ejection_percent=percent).most_ejected(replicas) == most


def test_five_replicas_two_of_them_hung_are_both_out_and_a_third_is_withheld() -> None:
    five = pool(5, consecutive_timeouts=1)
    assert kinds(hang(five, five.members[0], 0.0)) == [Ejected, AskHealth]
    assert kinds(hang(five, five.members[1], 0.0)) == [Ejected, AskHealth]
    (withheld,) = hang(five, five.members[2], 0.0)
    assert isinstance(withheld, EjectionWithheld) and withheld.reason is Withheld.MAX_EJECTION_PERCENT


def test_one_timeout_ejects_where_one_is_enough_and_another_answered_while_it_hung() -> None:
    two = pool(2, consecutive_timeouts=1)
    a, b = two.members
    two.settle(two.assign(b, 1), OK, 0.0)
    hung = two.assign(a, 1)
    assert kinds(two.settle(hung, CALLER, 1.0)) == [EjectionWithheld]
    hung = two.assign(a, 1)
    two.settle(two.assign(b, 1), OK, 1.5)
    assert kinds(two.settle(hung, CALLER, 2.0)) == [Ejected, AskHealth]


def test_a_wave_of_timeouts_ejects_once_and_does_not_double() -> None:
    two = pool(2, base_ejection_s=2.0)
    a, b = two.members
    wave = [two.assign(a, 1) for _ in range(10)]
    two.settle(two.assign(b, 1), OK, 0.5)
    ejections = [c for one in wave[:9] for c in two.settle(one, CALLER, 1.0) if isinstance(c, Ejected)]
    assert [ejected.length_s for ejected in ejections] == [2.0]
    two.cool_down(3.0)
    assert two.settle(wave[9], CALLER, 3.5) == [], "the last of the wave comes after the cool-down"


def test_the_ejected_serve_again_where_nobody_else_can() -> None:
    two = pool(2, consecutive_timeouts=1)
    a, b = two.members
    hang(two, a, 0.0)
    for _ in range(MOST_IN_FLIGHT):
        two.assign(b, 1)
    assert two.pick(0.1) is a
    b.in_rotation = False
    assert two.pick(0.1) is a


def test_neither_cancel_nor_rejection_nor_failure_counts_or_resets() -> None:
    two = pool(2)
    a = two.members[0]
    hang(two, a, 0.0)
    hang(two, a, 0.0)
    for outcome in (CANCELLED, REJECTED, FAILED):
        two.settle(two.assign(a, 1), outcome, 0.0)
    assert a.standing.timeouts == 2
    assert kinds(hang(two, a, 0.0)) == [Ejected, AskHealth]


def test_what_was_in_flight_does_not_bring_back_what_was_taken_out_by_hand_a_later_answer_does() -> None:
    two = pool(2, base_ejection_s=2.0)
    a, _ = two.members
    in_flight = two.assign(a, 1)
    two.eject_by_hand(a, 0.0)
    assert two.settle(in_flight, OK, 0.1) == []
    assert a.standing.is_ejected(0.1)
    assert two.settle(two.assign(a, 1), OK, 0.2) == [Readmitted(a, Return.SUCCESS)]


def test_ejected_by_hand_and_back_by_hand() -> None:
    two = pool(2, base_ejection_s=2.0)
    a, b = two.members
    assert two.eject_by_hand(a, 0.0).length_s == 2.0
    assert two.pick(0.1) is b
    assert two.readmit_by_hand(a) == [Readmitted(a, Return.BY_HAND)]
    assert two.readmit_by_hand(a) == []


# ---------------------------------------------------------------------------------------------------- at random


class Dispatching(RuleBasedStateMachine):
    """Random dispatches, answers, timeouts, deaths and clock steps, beside a model written from the spec's text."""

    @initialize(
        replicas=st.integers(1, 6),
        needed=st.integers(0, 3),
        percent=st.sampled_from([0, 25, 50, 100]),
    )
    def make(self, replicas: int, needed: int, percent: int) -> None:
        self.pool = pool(
            replicas, consecutive_timeouts=needed, base_ejection_s=1.0, max_ejection_s=4.0, max_ejection_percent=percent
        )
        self.now = 0.0
        self.open: list[Assignment] = []
        self.born = replicas
        self.order = 0
        self.dispatched: dict[int, int] = {}
        self.answered_at: dict[str, int] = {}
        self.streak_since: dict[str, int | None] = {}

    @rule(size=st.integers(0, 10_000))
    def dispatch(self, size: int) -> None:
        picked = self.pool.pick(self.now)
        assert picked is self.pool._pick_among_all(self.now, ()), "the short way and the long one differ"
        tried = tuple(self.pool.members[: len(self.pool.members) // 2])
        assert self.pool.pick(self.now, tried) is self.pool._pick_among_all(self.now, tried)
        able = [m for m in self.pool.members if m.in_rotation and not m.standing.is_backing_off(self.now)]
        free = [m for m in able if m.in_flight < MOST_IN_FLIGHT]
        preferred = [m for m in free if not m.standing.is_ejected(self.now)] or free
        if not preferred:
            assert picked is (Refusal.OVERLOADED if able else Refusal.UNAVAILABLE)
            return
        least = min(m.outstanding_bytes for m in preferred)
        lightest = [m for m in preferred if m.outstanding_bytes == least]
        assert picked is min(lightest, key=lambda m: m.last_assigned)
        assert isinstance(picked, Member)
        assignment = self.pool.assign(picked, size)
        self.order += 1
        self.dispatched[id(assignment)] = self.order
        self.open.append(assignment)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        assignment = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        member = assignment.member
        out_before = {m.name for m in self.pool.members if m.standing.is_ejected(self.now)}
        consequences = self.pool.settle(assignment, outcome, self.now)
        self.order += 1
        if outcome is OK:
            self.answered_at[member.name] = self.order
            self.streak_since.pop(member.name, None)
            assert not member.standing.is_ejected(self.now)
            assert (member.name in out_before) == any(isinstance(c, Readmitted) for c in consequences)
        elif outcome in (CALLER, DEPLOYMENT) and member.name not in out_before:
            since = self.streak_since.get(member.name)
            mine = self.dispatched[id(assignment)]
            self.streak_since[member.name] = mine if since is None else min(since, mine)
        for consequence in consequences:
            if isinstance(consequence, Ejected):
                self.check_ejection(consequence, outcome, out_before)

    def check_ejection(self, ejected: Ejected, outcome: Outcome, out_before: set[str]) -> None:
        assert outcome in (CALLER, DEPLOYMENT)
        assert self.pool.desired > 1 and self.pool.policy.consecutive_timeouts > 0
        assert ejected.member.name not in out_before
        since = self.streak_since[ejected.member.name]
        assert since is not None
        assert any(
            peer.in_rotation and peer.name not in out_before and self.answered_at.get(peer.name, 0) > since
            for peer in self.pool.members
            if peer is not ejected.member
        ), "ejected while nobody else had answered"
        assert 1.0 <= ejected.length_s <= 4.0

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0]))
    def clock(self, seconds: float) -> None:
        self.now += seconds
        for consequence in self.pool.cool_down(self.now):
            self.streak_since.pop(consequence.member.name, None)

    @rule(data=st.data())
    def a_replica_dies_and_its_next_incarnation_comes(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.pool.members) - 1))
        dead = self.pool.members[index]
        dead.in_rotation = False
        for assignment in [one for one in self.open if one.member is dead]:
            self.pool.settle(assignment, FAILED, self.now)
            self.open.remove(assignment)
        assert (dead.in_flight, dead.outstanding_bytes) == (0, 0)
        self.born += 1
        self.pool.members[index] = Member(f"m/{self.born}", in_rotation=True)
        assert not self.pool.members[index].standing.is_ejected(self.now)

    @rule(needed=st.integers(0, 4), base=st.sampled_from([1.0, 2.0]))
    def reload(self, needed: int, base: float) -> None:
        before = [dataclasses.astuple(member.standing) for member in self.pool.members]
        percent = self.pool.policy.max_ejection_percent
        self.pool.policy = Policy(needed, base, 4.0, percent)
        assert [dataclasses.astuple(member.standing) for member in self.pool.members] == before

    @rule(data=st.data(), serving=st.booleans())
    def a_replica_leaves_rotation_or_returns(self, data: st.DataObject, serving: bool) -> None:
        data.draw(st.sampled_from(self.pool.members)).in_rotation = serving

    @invariant()
    def nobody_holds_more_than_its_share(self) -> None:
        if not hasattr(self, "pool"):
            return
        for member in self.pool.members:
            own = [one for one in self.open if one.member is member]
            assert member.in_flight == len(own) <= MOST_IN_FLIGHT
            assert member.outstanding_bytes == sum(one.cost for one in own)
        out = sum(1 for member in self.pool.members if member.standing.is_ejected(self.now))
        assert out <= self.pool.policy.most_ejected(self.pool.desired)
        if self.pool.desired == 1:
            assert out == 0


Dispatching.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestDispatching = Dispatching.TestCase


@given(sizes=st.lists(st.integers(0, 1000), max_size=200), replicas=st.integers(1, 5))
def test_in_flight_and_bytes_return_to_zero(sizes: list[int], replicas: int) -> None:
    some = pool(replicas)
    taken = []
    for size in sizes:
        if isinstance(picked := some.pick(0.0), Member):
            taken.append(some.assign(picked, size))
    for number, assignment in enumerate(taken):
        some.settle(assignment, list(Outcome)[number % len(Outcome)], 0.0)
    assert all(member.in_flight == member.outstanding_bytes == 0 for member in some.members)
