"""Who gets the next request, and what its end means for the replica that had it (spec 6 and 7).

Pure: no socket, no clock. One `Tickets` counter serves the whole supervisor, so that "least recently assigned" and
"answered since" are told by order, not by a clock's resolution.

The pool of a deployment holds its members (physical replicas). A request is one exchange on one member: `assign` takes
the slot and the bytes, `settle` gives them back exactly once and says what follows.

Choosing is quick because the lightest members are tried first, found over plain numbers, and mostly the first of them
can take the request. Only where none of them can (drains, backs off, is full) is every member looked at by all rules.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection

from supervisor.core.ejection import (
    FAILURES,
    TIMEOUTS,
    Outcome,
    Policy,
    Return,
    Standing,
    Withheld,
    reason_to_withhold,
)

MOST_IN_FLIGHT = 32
"""Exchanges that one replica may have open (spec 6). There is no waiting queue behind it."""
TICKET_BITS = 64
"""Room for tickets in a rank; a million requests a second fill it in half a million years."""
NO_RANK = 1 << 200
"""Behind every rank."""
LIGHTEST_TRIED = 4
"""So many of the lightest members are tried before every member is looked at."""


class Refusal(enum.StrEnum):
    """Why no member takes a request."""

    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"


class Tickets:
    """One counter for the whole supervisor; it only grows."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def draw(self) -> int:
        """The next number."""
        self.last += 1
        return self.last


@dataclasses.dataclass(slots=True, eq=False)
class Member:
    """A physical replica as dispatch sees it. `in_rotation` is told by its life (`core.lifecycle`)."""

    name: str
    incarnation: int = 1
    in_rotation: bool = False
    in_flight: int = 0
    outstanding_bytes: int = 0
    last_assigned: int = 0
    standing: Standing = dataclasses.field(default_factory=Standing)


@dataclasses.dataclass(slots=True, eq=False)
class Assignment:
    """One exchange on one member: what it holds there until it is settled."""

    member: Member
    cost: int
    ticket: int
    settled: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class AskHealth:
    """The member's health is to be asked at once."""

    member: Member


@dataclasses.dataclass(frozen=True, slots=True)
class BackedOff:
    """The member is out of rotation for `length_s` seconds after its `failures`-th failure in a row."""

    member: Member
    length_s: float
    failures: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ejected:
    """The member is out of rotation for `length_s` seconds after `timeouts` timeouts in a row."""

    member: Member
    length_s: float
    timeouts: int


@dataclasses.dataclass(frozen=True, slots=True)
class EjectionWithheld:
    """The member reached its timeouts and stays, because of `reason`."""

    member: Member
    reason: Withheld
    timeouts: int


@dataclasses.dataclass(frozen=True, slots=True)
class Readmitted:
    """The member is back in rotation."""

    member: Member
    by: Return


Consequence = AskHealth | BackedOff | Ejected | EjectionWithheld | Readmitted


class Pool:
    """The members of one deployment and the rules between them."""

    def __init__(self, tickets: Tickets, policy: Policy | None = None, desired: int = 1) -> None:
        self.members: list[Member] = []
        self.policy = policy or Policy()
        self.desired = desired
        self._tickets = tickets
        self._ranked: list[Member] = []
        """The members that `_ranks` is about: those of the last choice."""
        self._ranks: list[int] = []
        self._places: dict[Member, int] = {}
        self._tries = range(0)

    # ------------------------------------------------------------------------------------------------ choosing

    def pick(self, now: float, tried: Collection[Member] = ()) -> Member | Refusal:
        """The member with the fewest outstanding bytes, the least recently assigned among equals.

        Ejected members are chosen by the same rule where no other one can take a request. `tried`: members that
        this request was lost on already.
        """
        if self._ranked != self.members:
            self._rank_all()
        ranks = self._ranks
        for _ in self._tries:
            place = ranks.index(min(ranks))
            member = self._ranked[place]
            standing = member.standing
            if (
                member.in_rotation
                and member.in_flight < MOST_IN_FLIGHT
                and standing.backoff_until <= now
                and (standing.ejected_until is None or standing.ejected_until <= now)
                and (not tried or member not in tried)
            ):
                return member
            ranks = ranks.copy()
            ranks[place] = NO_RANK
        return self._pick_among_all(now, tried)

    def _pick_among_all(self, now: float, tried: Collection[Member]) -> Member | Refusal:
        """The same by looking at every member."""
        chosen: Member | None = None
        fallback: Member | None = None
        ready = False
        for member in self.members:
            if not member.in_rotation or member.standing.backoff_until > now or (tried and member in tried):
                continue
            ready = True
            if member.in_flight >= MOST_IN_FLIGHT:
                continue
            if member.standing.ejected_until is not None and member.standing.ejected_until > now:
                if fallback is None or _lighter(member, fallback):
                    fallback = member
            elif chosen is None or _lighter(member, chosen):
                chosen = member
        picked = chosen or fallback
        if picked is not None:
            return picked
        return Refusal.OVERLOADED if ready else Refusal.UNAVAILABLE

    def why_unavailable(self, now: float) -> str:
        """What stands in the way of members that are in rotation, in words; empty where none is."""
        waits = [
            member.standing.backoff_until - now
            for member in self.members
            if member.in_rotation and member.standing.backoff_until > now
        ]
        if not waits:
            return ""
        who = "1 replica backs off" if len(waits) == 1 else f"{len(waits)} replicas back off"
        return f"{who} after an error; the next request is taken in {max(0.1, min(waits)):.1f} s"

    def assign(self, member: Member, body_bytes: int) -> Assignment:
        """Give a request of that length to a member: it holds one slot and its bytes there."""
        cost = max(1, body_bytes)
        ticket = self._tickets.draw()
        member.last_assigned = ticket
        member.in_flight += 1
        member.outstanding_bytes += cost
        self._rank(member)
        return Assignment(member, cost, ticket)

    def _rank(self, member: Member) -> None:
        """Note what a member's place among the others is now. One that is not among them (any more) has none."""
        place = self._places.get(member)
        if place is not None:
            self._ranks[place] = _rank(member)

    def _rank_all(self) -> None:
        """Members came or went."""
        self._ranked = list(self.members)
        self._ranks = [_rank(member) for member in self._ranked]
        self._places = {member: place for place, member in enumerate(self._ranked)}
        self._tries = range(min(LIGHTEST_TRIED, len(self._ranked)))

    # ------------------------------------------------------------------------------------------------ settling

    def settle(self, assignment: Assignment, outcome: Outcome, now: float) -> list[Consequence]:
        """An exchange ended: give back what it held, once, and draw the consequences for its member."""
        if assignment.settled:
            return []
        assignment.settled = True
        member = assignment.member
        member.in_flight -= 1
        member.outstanding_bytes -= assignment.cost
        self._rank(member)
        if outcome is Outcome.OK:
            if member.standing.answered(self._tickets.draw(), assignment.ticket, now):
                return [Readmitted(member, Return.SUCCESS)]
            return []
        consequences: list[Consequence] = []
        if outcome in TIMEOUTS:
            consequences += self._after_timeout(member, assignment.ticket, now)
        if outcome in FAILURES:
            consequences += self._after_failure(member, now)
        return consequences

    def _after_failure(self, member: Member, now: float) -> list[Consequence]:
        length = member.standing.back_off(now)
        if member not in self.members:
            return []
        return [BackedOff(member, length, member.standing.failures), AskHealth(member)]

    def _after_timeout(self, member: Member, dispatched: int, now: float) -> list[Consequence]:
        standing = member.standing
        standing.timed_out(dispatched, now)
        if self.desired < 2 or member not in self.members or not standing.is_due(self.policy, now):
            return []
        peers = [peer for peer in self.members if peer is not member]
        ready = [peer.standing for peer in peers if peer.in_rotation]
        reason = reason_to_withhold(standing, ready, [peer.standing for peer in peers], self.policy, self.desired, now)
        if reason is not None:
            standing.withheld = reason
            return [EjectionWithheld(member, reason, standing.timeouts)]
        timeouts = standing.timeouts
        length = standing.eject(self.policy, self._tickets.draw(), now)
        return [Ejected(member, length, timeouts), AskHealth(member)]

    # ------------------------------------------------------------------------------------------------ time, by hand

    def cool_down(self, now: float) -> list[Consequence]:
        """Bring back the members whose ejection is over."""
        return [Readmitted(member, Return.COOL_DOWN) for member in self.members if member.standing.cool_down(now)]

    def eject_by_hand(self, member: Member, now: float) -> Ejected:
        """Take a member out for as long as its timeouts would; what it has in flight does not bring it back."""
        length = member.standing.eject(self.policy, self._tickets.draw(), now, by_hand=True)
        return Ejected(member, length, member.standing.timeouts)

    def readmit_by_hand(self, member: Member) -> list[Consequence]:
        """Bring a member back, everything forgiven."""
        return [Readmitted(member, Return.BY_HAND)] if member.standing.readmit() else []


def _rank(member: Member) -> int:
    """Both orders in one number: fewest bytes first, least recently assigned among equals."""
    return member.outstanding_bytes << TICKET_BITS | member.last_assigned


def _lighter(one: Member, other: Member) -> bool:
    if one.outstanding_bytes != other.outstanding_bytes:
        return one.outstanding_bytes < other.outstanding_bytes
    return one.last_assigned < other.last_assigned
