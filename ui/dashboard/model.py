"""What the dashboard knows: the newest inventory, the events, how the connection stands, and a little history.

Plain data without a widget. Handlers of the app change it; screens read it.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable

import msgspec

from supervisor.control.events import AnyEvent, SupervisorStopping
from supervisor.control.messages import DeploymentStatus, Inventory, LogLine, ReplicaDetails, ReplicaStatus

KEPT_EVENTS = 1000
KEPT_S = 600
"""How far back a series goes: ten minutes, one sample a second."""


class Link(enum.Enum):
    """How the connection to the supervisor stands."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "disconnected, retrying"
    ENDED = "ended"
    """It said that it stops, and nobody listens there any more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """So many log lines were left out at this place, because they came too fast."""

    count: int


Written = LogLine | Skipped
"""What a log brings, in its order."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """What an incarnation has computed so far: counters that only grow, and seconds in forwards."""

    incarnation: int
    forwards: int
    rows: int
    tokens: int
    busy_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Batches:
    """Forwards of a stretch of time: how many rows and tokens one had on average, and the share of time they took."""

    over_s: float
    forwards: int
    rows: float
    tokens: float
    busy: float


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One second of a replica, a deployment or the whole (`""`). second: the supervisor's uptime then.

    There are tens of thousands of these, and nothing in them that the garbage collector would have to look at.
    """

    second: int
    requests_per_s: float
    in_flight: int
    p50_ms: float | None
    p99_ms: float | None
    work: Work | None = None


class History:
    """Series by name, bounded; a series ends with its replica. Sparklines and charts draw from it.

    Time is the supervisor's own uptime, which comes with each inventory: a second in which none came is a gap, and a
    supervisor that is younger than the last one's samples begins anew.
    """

    def __init__(self, kept_s: int = KEPT_S) -> None:
        self._kept = kept_s
        self._second = -1
        self._series: dict[str, collections.deque[Sample]] = {}

    @property
    def second(self) -> int:
        """The newest second there is."""
        return self._second

    @property
    def span_s(self) -> int:
        """How far back the samples of the whole go."""
        whole = self._series.get("")
        return whole[-1].second - whole[0].second if whole else 0

    def add(self, inventory: Inventory) -> None:
        """Take a sample of everything in an inventory: a later one of the same second takes its place."""
        second = int(inventory.supervisor.uptime_s)
        if second < self._second:
            self._series.clear()
        again, self._second = second == self._second, second
        seen = _samples(inventory, second)
        for gone in self._series.keys() - seen.keys():
            del self._series[gone]
        for name, sample in seen.items():
            series = self._series.setdefault(name, collections.deque(maxlen=self._kept))
            if again and series:
                series.pop()
            series.append(sample)

    def batches(self, name: str, over_s: int = 60) -> Batches | None:
        """What a replica's forwards were like lately, within its incarnation; None where none ran."""
        worked = [(sample.second, sample.work) for sample in self.of(name)[-over_s - 1 :] if sample.work is not None]
        if not worked:
            return None
        newest, last = worked[-1]
        oldest, first = next(pair for pair in worked if pair[1].incarnation == last.incarnation)
        forwards = last.forwards - first.forwards
        if forwards < 1 or newest <= oldest:
            return None
        return Batches(
            over_s=newest - oldest,
            forwards=forwards,
            rows=(last.rows - first.rows) / forwards,
            tokens=(last.tokens - first.tokens) / forwards,
            busy=min((last.busy_s - first.busy_s) / (newest - oldest), 1.0),
        )

    def of(self, name: str) -> list[Sample]:
        """The samples of a replica or deployment, or of the whole (`""`), oldest first."""
        return list(self._series.get(name, ()))

    def newest(self, name: str) -> Sample | None:
        """The last sample."""
        series = self._series.get(name)
        return series[-1] if series else None

    def rates(self, name: str, count: int) -> list[float]:
        """Its last `count` request rates, oldest first."""
        return [sample.requests_per_s for sample in self.of(name)[-count:]]


def _samples(inventory: Inventory, second: int) -> dict[str, Sample]:
    """One of everything in an inventory, by name."""
    totals = inventory.totals
    seen = {"": Sample(second, totals.requests_per_s, totals.in_flight, totals.p50_ms, totals.p99_ms)}
    for one in inventory.deployments:
        in_flight = sum(replica.in_flight for replica in one.replicas)
        seen[one.name] = Sample(second, one.requests_per_s, in_flight, one.p50_ms, one.p99_ms)
        for each in one.replicas:
            work = Work(each.incarnation, each.forwards, each.rows, each.tokens, each.busy_s)
            seen[each.name] = Sample(second, each.requests_per_s, each.in_flight, each.p50_ms, each.p99_ms, work)
    return seen


class Model:
    """Everything that is shown, in one place. `newest` runs ahead of `inventory` only while the picture is paused."""

    def __init__(self) -> None:
        self.link = Link.CONNECTING
        self.why = ""
        self.lost_at: float | None = None
        self.ended_at: float | None = None
        """Wall-clock seconds."""
        self.newest: Inventory | None = None
        self.inventory: Inventory | None = None
        self.paused = False
        self.stopping = False
        """Whether this very dashboard has asked for the stop."""
        self.farewell: SupervisorStopping | None = None
        self.history = History()
        self.refreshes = 0
        self.details: ReplicaDetails | None = None
        self._events: collections.deque[AnyEvent] = collections.deque(maxlen=KEPT_EVENTS)

    # ------------------------------------------------------------------------------------------------ changes

    def take_inventory(self, inventory: Inventory) -> None:
        """A new inventory came."""
        self.link, self.why, self.lost_at, self.ended_at = Link.LIVE, "", None, None
        self.newest = inventory
        self.refreshes += 1
        self.history.add(inventory)
        if not self.paused:
            self.inventory = inventory

    def take_details(self, details: ReplicaDetails) -> None:
        """Everything about the replica that somebody looks at came."""
        if not self.paused:
            self.details = details

    def take_events(self, events: Iterable[AnyEvent]) -> None:
        """New events came."""
        for event in events:
            self._events.append(event)
            if isinstance(event, SupervisorStopping):
                self.farewell = event

    def forget_events(self) -> None:
        """Another supervisor answers there now: its story begins anew."""
        self._events.clear()
        self.farewell = None

    def lose(self, why: str, now: float) -> None:
        """The supervisor does not answer, or is gone without a word."""
        if self.link is Link.ENDED:
            return
        if self.link is not Link.LOST:
            self.lost_at = now
        self.link, self.why = Link.LOST, why

    def end(self, wall: float) -> None:
        """The supervisor is gone, as it had said."""
        if self.link is not Link.ENDED:
            self.link, self.lost_at, self.ended_at = Link.ENDED, None, wall

    def pause(self, on: bool) -> None:
        """Hold the picture, or let it catch up."""
        self.paused = on
        if not on:
            self.inventory = self.newest

    # ---------------------------------------------------------------------------------------------- questions

    @property
    def is_stale(self) -> bool:
        """Whether what is shown is a picture of the past."""
        return self.link in (Link.LOST, Link.ENDED)

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor stops, whoever asked for it."""
        said = self.newest is not None and self.newest.supervisor.state == "stopping"
        return self.stopping or said or self.farewell is not None

    def stops_in_s(self, wall: float) -> float | None:
        """How long its stop may last at most from now on, seconds; None where that is not known."""
        if self.farewell is None:
            return None
        return max(self.farewell.time + self.farewell.worst_case_s - wall, 0.0)

    @property
    def events(self) -> list[AnyEvent]:
        """The kept events, oldest first."""
        return list(self._events)

    def details_of(self, replica: str) -> ReplicaDetails | None:
        """What is known of a replica beyond its row; None where nobody looks at it."""
        return self.details if self.details is not None and self.details.replica.name == replica else None

    def replica(self, name: str) -> ReplicaStatus | None:
        """A replica as it is shown now."""
        return find_replica(self.inventory, name)

    def deployment(self, name: str) -> DeploymentStatus | None:
        """A deployment as it is shown now."""
        return find_deployment(self.inventory, name)


def find_replica(inventory: Inventory | None, name: str) -> ReplicaStatus | None:
    """The replica of that name in an inventory."""
    for deployment in inventory.deployments if inventory is not None else ():
        for replica in deployment.replicas:
            if replica.name == name:
                return replica
    return None


def find_deployment(inventory: Inventory | None, name: str) -> DeploymentStatus | None:
    """The deployment of that name in an inventory."""
    for deployment in inventory.deployments if inventory is not None else ():
        if deployment.name == name:
            return deployment
    return None
