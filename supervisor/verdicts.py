"""What dispatch decided about a replica by its answers, told and carried out (spec 6, 7); and the same by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from supervisor.control.events import (
    AnyEvent,
    EjectionWithheld,
    EventLog,
    ReplicaBackoff,
    ReplicaEjected,
    ReplicaReadmitted,
)
from supervisor.core.dispatch import AskHealth, BackedOff, Consequence, Ejected, Member, Readmitted
from supervisor.core.dispatch import EjectionWithheld as Withheld
from supervisor.exchanges import Lane
from supervisor.group import Group

MARGIN_S = 0.001
"""After the end of an ejection, so that a timer that is a little early finds it over."""


class Verdicts:
    """Of all deployments."""

    def __init__(self, groups: Mapping[str, Group], events: EventLog) -> None:
        self._groups = groups
        self._events = events
        self._loop = asyncio.get_running_loop()

    def take(self, lane: Lane, consequences: list[Consequence], reason: str) -> None:
        """Tell what dispatch decided, and do what it asks for. reason: why, for people."""
        group = self._groups[lane.name]
        for consequence in consequences:
            member = consequence.member
            match consequence:
                case AskHealth():
                    if member in lane.targets:
                        lane.targets[member].carrier.ask()
                case BackedOff():
                    seconds, failures = consequence.length_s, consequence.failures
                    self._tell(ReplicaBackoff, member, seconds=seconds, failures=failures, reason=reason)
                case Ejected():
                    group.ejections[member.name] += 1
                    by = "hand" if member.standing.by_hand else "timeouts"
                    seconds, timeouts = consequence.length_s, consequence.timeouts
                    self._tell(ReplicaEjected, member, seconds=seconds, timeouts=timeouts, by=by)
                    self._loop.call_later(consequence.length_s + MARGIN_S, self._cool_down, lane)
                case Withheld():
                    group.withheld[consequence.reason.value] += 1
                    self._tell(EjectionWithheld, member, reason=consequence.reason.value, timeouts=consequence.timeouts)
                case Readmitted():
                    group.readmissions[member.name] += 1
                    self._tell(ReplicaReadmitted, member, by=consequence.by.value)

    def eject(self, lane: Lane, member: Member) -> None:
        """Take a ready replica out of rotation as if its timeouts had."""
        self.take(lane, [lane.pool.eject_by_hand(member, time.monotonic())], "by hand")

    def readmit(self, lane: Lane, member: Member) -> bool:
        """Bring a ready replica back into rotation, everything forgiven. False where it was not out."""
        consequences = lane.pool.readmit_by_hand(member)
        self.take(lane, consequences, "by hand")
        return bool(consequences)

    def _cool_down(self, lane: Lane) -> None:
        group = self._groups.get(lane.name)
        if group is not None and group.lane is lane:  # not removed meanwhile
            self.take(lane, lane.pool.cool_down(time.monotonic()), "")

    def _tell(self, kind: Callable[..., AnyEvent], member: Member, **fields: object) -> None:
        self._events.publish(kind(replica=member.name, incarnation=member.incarnation, **fields))
