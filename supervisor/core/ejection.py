"""Standing of one physical replica: backoff after failures, ejection after timeouts (spec 6 and 7).

Pure: times are monotonic seconds that are passed in, order is told by tickets of one counter (`core.dispatch`). A new
incarnation starts with a new `Standing`; a reload keeps it.

The streak of timeouts starts at the *dispatch* of its first timed-out exchange. Counted from its end, nobody could have
answered since, and a replica that hangs alone could never be told from a model that is slow everywhere.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

BACKOFF_FIRST_S = 0.1
BACKOFF_DOUBLINGS = 5


class Outcome(enum.StrEnum):
    """How an exchange ended."""

    OK = "ok"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    CALLER_TIMEOUT = "caller_timeout"
    DEPLOYMENT_TIMEOUT = "deployment_timeout"


TIMEOUTS = frozenset({Outcome.CALLER_TIMEOUT, Outcome.DEPLOYMENT_TIMEOUT})
FAILURES = frozenset({Outcome.FAILED, Outcome.DEPLOYMENT_TIMEOUT})
"""Outcomes that take the replica out for a backoff and have its health asked at once."""


class Withheld(enum.StrEnum):
    """Why a replica that reached its timeouts stays."""

    NO_PEER_ANSWERED = "no_peer_answered"
    MAX_EJECTION_PERCENT = "max_ejection_percent"


class Return(enum.StrEnum):
    """How an ejected replica came back."""

    SUCCESS = "success"
    COOL_DOWN = "cool_down"
    BY_HAND = "hand"


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """`outlier_detection` of a deployment, in seconds. consecutive_timeouts 0 turns ejection off."""

    consecutive_timeouts: int = 3
    base_ejection_s: float = 30.0
    max_ejection_s: float = 300.0
    max_ejection_percent: int = 50

    def most_ejected(self, desired: int) -> int:
        """How many of `desired` replicas may be out at once; one always may."""
        return max(1, desired * self.max_ejection_percent // 100)


@dataclasses.dataclass(slots=True, eq=False)
class Standing:
    """What a replica's recent answers say of it."""

    failures: int = 0
    backoff_until: float = 0.0
    timeouts: int = 0
    streak_ticket: int | None = None
    ejected_until: float | None = None
    ejected_ticket: int = -1
    by_hand: bool = False
    next_ejection_s: float = 0.0
    last_answer_ticket: int = -1
    withheld: Withheld | None = None
    """Why its present streak has not ejected it."""

    def is_backing_off(self, now: float) -> bool:
        """Out of rotation for a moment after a failure."""
        return now < self.backoff_until

    def is_ejected(self, now: float) -> bool:
        """Out of rotation until its cool-down ends."""
        return self.ejected_until is not None and now < self.ejected_until

    def back_off(self, now: float) -> float:
        """Count one more failure in a row; the length of its backoff in seconds (0.1 … 3.2)."""
        length = BACKOFF_FIRST_S * float(1 << min(self.failures, BACKOFF_DOUBLINGS))
        self.failures += 1
        self.backoff_until = now + length
        return length

    def answered(self, ticket: int, dispatched: int, now: float) -> bool:
        """A complete answer: everything starts over. True where it was ejected and is back by it.

        One that was taken out by hand is not brought back by what it had in flight then: somebody wants it out.
        """
        was_out = self.is_ejected(now)
        if was_out and self.by_hand and dispatched < self.ejected_ticket:
            self.last_answer_ticket = ticket
            return False
        self.failures = 0
        self.backoff_until = 0.0
        self.last_answer_ticket = ticket
        self._clear_streak()
        self.ejected_until = None
        self.next_ejection_s = 0.0
        return was_out

    def timed_out(self, dispatched: int, now: float) -> None:
        """Count a timeout of an exchange by its dispatch ticket. Late ones of a wave that was punished do not count."""
        if self.is_ejected(now) or dispatched < self.ejected_ticket:
            return
        if self.streak_ticket is None:
            self.streak_ticket = dispatched
        self.streak_ticket = min(self.streak_ticket, dispatched)
        self.timeouts += 1

    def is_due(self, policy: Policy, now: float) -> bool:
        """Whether its timeouts reached what ejects it."""
        if policy.consecutive_timeouts == 0 or self.is_ejected(now):
            return False
        return self.timeouts >= self.needed(policy)

    def eject(self, policy: Policy, ticket: int, now: float, *, by_hand: bool = False) -> float:
        """Take it out: base, then twice the last, up to the longest. The length in seconds."""
        self.by_hand = by_hand
        self.withheld = None
        length = self.next_length(policy)
        self.next_ejection_s = length
        self.ejected_until = now + length
        self.ejected_ticket = ticket
        return length

    def next_length(self, policy: Policy) -> float:
        """How long the next ejection would last, in seconds."""
        length = policy.base_ejection_s if self.next_ejection_s == 0 else self.next_ejection_s * 2
        return min(length, policy.max_ejection_s)

    def needed(self, policy: Policy) -> int:
        """Timeouts in a row that eject it: one is enough for one that came back by cool-down only. 0: never."""
        return 1 if policy.consecutive_timeouts and self.next_ejection_s > 0 else policy.consecutive_timeouts

    def cool_down(self, now: float) -> bool:
        """Bring it back where its time is over: the streak is cleared, the doubling kept. True where it was out."""
        if self.ejected_until is None or now < self.ejected_until:
            return False
        self.ejected_until = None
        self._clear_streak()
        return True

    def readmit(self) -> bool:
        """Bring it back by hand, everything forgiven. True where it was out."""
        was_out = self.ejected_until is not None
        self.ejected_until = None
        self.next_ejection_s = 0.0
        self.failures = 0
        self.backoff_until = 0.0
        self._clear_streak()
        return was_out

    def _clear_streak(self) -> None:
        self.timeouts = 0
        self.streak_ticket = None
        self.withheld = None


def reason_to_withhold(
    standing: Standing,
    ready_peers: Sequence[Standing],
    all_peers: Sequence[Standing],
    policy: Policy,
    desired: int,
    now: float,
) -> Withheld | None:
    """Why a replica that is due stays, None where it may go.

    ready_peers: the other replicas that are in rotation. all_peers: all others of the deployment.
    """
    assert standing.streak_ticket is not None
    if not any(peer.last_answer_ticket > standing.streak_ticket and not peer.is_ejected(now) for peer in ready_peers):
        return Withheld.NO_PEER_ANSWERED
    out = sum(1 for peer in all_peers if peer.is_ejected(now))
    if out + 1 > policy.most_ejected(desired):
        return Withheld.MAX_EJECTION_PERCENT
    return None
