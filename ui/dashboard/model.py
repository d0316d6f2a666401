"""What the dashboard knows: the newest inventory, the events, how the connection stands, and a little history.

Plain data without a widget. Handlers of the app change it; screens read it.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable

from supervisor.control.events import AnyEvent
from supervisor.control.messages import DeploymentStatus, Inventory, ReplicaStatus

KEPT_EVENTS = 1000
KEPT_SAMPLES = 600
"""Samples a series keeps: five minutes at two a second."""


class Link(enum.Enum):
    """How the connection to the supervisor stands."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "disconnected, retrying"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One moment of a replica, a deployment or the whole (`""`)."""

    requests_per_s: float
    in_flight: int
    p50_ms: float | None
    p99_ms: float | None


class History:
    """Series by name, bounded; a series ends with its replica. Sparklines draw from it, and charts will."""

    def __init__(self, samples: int = KEPT_SAMPLES) -> None:
        self._samples = samples
        self._series: dict[str, collections.deque[Sample]] = {}

    def add(self, inventory: Inventory) -> None:
        """Take one sample of everything in an inventory."""
        seen = {"": _total(inventory)}
        for deployment in inventory.deployments:
            seen[deployment.name] = _sample(deployment)
            for replica in deployment.replicas:
                seen[replica.name] = Sample(replica.requests_per_s, replica.in_flight, replica.p50_ms, replica.p99_ms)
        for gone in self._series.keys() - seen.keys():
            del self._series[gone]
        for name, sample in seen.items():
            self._series.setdefault(name, collections.deque(maxlen=self._samples)).append(sample)

    def of(self, name: str) -> list[Sample]:
        """The samples of a replica or deployment, or of the whole (`""`), oldest first."""
        return list(self._series.get(name, ()))

    def rates(self, name: str, count: int) -> list[float]:
        """Its last `count` request rates, oldest first."""
        return [sample.requests_per_s for sample in self.of(name)[-count:]]


def _sample(deployment: DeploymentStatus) -> Sample:
    return Sample(
        deployment.requests_per_s,
        sum(replica.in_flight for replica in deployment.replicas),
        deployment.p50_ms,
        deployment.p99_ms,
    )


def _total(inventory: Inventory) -> Sample:
    of_each = [_sample(deployment) for deployment in inventory.deployments]
    return Sample(
        sum(sample.requests_per_s for sample in of_each),
        sum(sample.in_flight for sample in of_each),
        max((sample.p50_ms for sample in of_each if sample.p50_ms is not None), default=None),
        max((sample.p99_ms for sample in of_each if sample.p99_ms is not None), default=None),
    )


class Model:
    """Everything that is shown, in one place. `newest` runs ahead of `inventory` only while the picture is paused."""

    def __init__(self) -> None:
        self.link = Link.CONNECTING
        self.why = ""
        self.lost_at: float | None = None
        self.newest: Inventory | None = None
        self.inventory: Inventory | None = None
        self.paused = False
        self.stopping = False
        self.history = History()
        self._events: collections.deque[AnyEvent] = collections.deque(maxlen=KEPT_EVENTS)

    # ------------------------------------------------------------------------------------------------ changes

    def take_inventory(self, inventory: Inventory) -> None:
        """A new inventory came."""
        self.link, self.why, self.lost_at = Link.LIVE, "", None
        self.newest = inventory
        self.history.add(inventory)
        if not self.paused:
            self.inventory = inventory

    def take_events(self, events: Iterable[AnyEvent]) -> None:
        """New events came."""
        self._events.extend(events)

    def forget_events(self) -> None:
        """Another supervisor answers there now: its story begins anew."""
        self._events.clear()

    def lose(self, why: str, now: float) -> None:
        """The supervisor is gone or does not answer."""
        if self.link is not Link.LOST:
            self.lost_at = now
        self.link, self.why = Link.LOST, why

    def pause(self, on: bool) -> None:
        """Hold the picture, or let it catch up."""
        self.paused = on
        if not on:
            self.inventory = self.newest

    # ---------------------------------------------------------------------------------------------- questions

    @property
    def events(self) -> list[AnyEvent]:
        """The kept events, oldest first."""
        return list(self._events)

    def events_of(self, replica: str) -> list[AnyEvent]:
        """The kept events of one replica's slot, oldest first."""
        return [event for event in self._events if getattr(event, "replica", None) == replica]

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
