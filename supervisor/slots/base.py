"""A slot: a replica's stable name and its life, whatever stands behind it (spec 1, 5, 8).

It carries out what `core.lifecycle` and the fleet decide, moves along the table of legal moves, and tells the fleet
of each move. It knows nothing of its siblings. What differs between a process of ours and an attached server is in
`managed` and `attached`: how it comes up, and what is left to do when its last exchange is done.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.messages import Card, Heartbeat, LaunchSpec, ThreadTable
from supervisor.control.events import AnyEvent, DrainEnded, DrainStarted, ReplicaReady, ReplicaState, Warned
from supervisor.control.messages import StateChange
from supervisor.core.dispatch import Member
from supervisor.core.ejection import Outcome
from supervisor.core.lifecycle import (
    ALIVE,
    AT_REST,
    IN_ROTATION,
    Record,
    State,
    is_legal,
)
from supervisor.core.plurals import count
from supervisor.core.traffic import Traffic
from supervisor.exchanges import Exchanges, Target
from supervisor.host.launcher import Launcher
from supervisor.host.usage import GroupMeter
from supervisor.links.carrier import Carrier
from supervisor.links.http import HttpLink
from supervisor.links.zeromq import EngineLink

KEPT_CHANGES = 100
"""Moves that a slot remembers."""


class Intent(enum.Enum):
    """What is to become of the slot when what stands behind it is gone."""

    KEEP = enum.auto()
    """It ended by itself: the restart policy decides."""
    AGAIN = enum.auto()
    """It was told to restart: the next incarnation at once."""
    REST = enum.auto()
    """It was drained by hand: stays out until it is restarted."""
    LEAVE = enum.auto()
    """It is not wanted any more: the slot ends with it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Make:
    """What a slot is made from.

    identity: equal for slots that are interchangeable (spec 8). generation: equal for slots that must agree in their
    cards, whatever they run on.
    """

    identity: str
    generation: str
    drain_timeout_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class ManagedMake(Make):
    """A process of ours: its launch specification (without what differs by incarnation) and its environment."""

    spec: LaunchSpec
    env: dict[str, str]
    restart_hung_s: float
    spread: bool = False
    """Whether it gets cores of its own where they are left (`affinity: spread`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttachedMake(Make):
    """Somebody else's server. `model`: its own name for the model, None where it is the deployment's."""

    endpoint: str
    model: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What can be said of the incarnation that stands behind a slot now. Sizes in bytes, times in seconds."""

    device: str
    pid: int | None = None
    endpoint: str | None = None
    threads: int | None = None
    age_s: float = 0.0
    cpu_share: float = 0.0
    rss_bytes: int = 0
    heartbeat: Heartbeat | None = None
    cores: Sequence[int] = ()
    thread_table: ThreadTable | None = None


class Home(Protocol):
    """What a slot needs around it, and who it tells."""

    link: EngineLink
    http_link: HttpLink
    exchanges: Exchanges
    meter: GroupMeter
    stopping: bool
    """Whether the supervisor is leaving."""

    @property
    def launcher(self) -> Launcher:
        """How processes are started."""

    @property
    def awake_since(self) -> float:
        """Since when the supervisor has run without a pause; engines were paused with it, maybe amid a forward."""

    def publish(self, event: AnyEvent) -> None:
        """Tell the event log."""

    def on_registered(self, slot: Slot, card: Card | None) -> list[str]:
        """A slot can serve: join the pool. What keeps it out of traffic, empty where it may serve."""

    def on_unpooled(self, slot: Slot) -> None:
        """A slot's incarnation is out of the pool for good."""

    def on_ready(self, slot: Slot, seconds: float, kind: str) -> None:
        """A slot became ready, so long after its start of that kind."""

    def on_drained(self, slot: Slot, seconds: float) -> None:
        """A slot's drain ended."""

    def free_cores(self, slot: Slot, count: int) -> Sequence[int]:
        """So many logical cores that no other slot is pinned to; none where they do not fit."""

    def on_moved(self, slot: Slot) -> None:
        """A slot changed its state."""


class Slot(ABC):
    """A replica of a deployment."""

    managed: bool

    def __init__(self, home: Home, deployment: str, number: int, born: int, make: Make) -> None:
        self.name = f"{deployment}/{number}"
        self.deployment = deployment
        self.number = number
        self.born = born
        self.identity = make.identity
        self.generation = make.generation
        self.drain_timeout_s = make.drain_timeout_s
        self.state = State.STOPPED
        self.reason = ""
        self.since = time.monotonic()
        self.incarnation = 0
        self.restarts = 0
        self.intent = Intent.KEEP
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.traffic = Traffic(self.since)
        self.record = Record()
        self.target: Target | None = None
        self.card: Card | None = None
        self.restart_at: float | None = None
        self.drain_until: float | None = None
        self.ready_after_s: float | None = None
        self.started_by: str | None = None
        self.history: collections.deque[StateChange] = collections.deque(maxlen=KEPT_CHANGES)
        """Its last moves, oldest first, over all incarnations."""
        self.last_exit: str | None = None
        self.last_lines: list[str] = []
        self._home = home
        self._began = 0.0
        self._drain_started = 0.0
        self._exit: str | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def is_cordoned(self) -> bool:
        """Whether it was taken out by hand and stays out."""
        return self.intent is Intent.REST

    def remake(self, make: Make) -> None:
        """Take over what may change without a restart: everything that is not in the identity."""
        self.drain_timeout_s = make.drain_timeout_s

    # ------------------------------------------------------------------------------------- what differs

    @abstractmethod
    def start(self) -> None:
        """Bring the next incarnation up."""

    @abstractmethod
    def facts(self, now: float) -> Facts:
        """What can be said of the incarnation now."""

    @abstractmethod
    def kill(self, why: str) -> None:
        """End what stands behind it at once; the restart policy decides what follows."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Once a second."""

    @abstractmethod
    def close(self) -> None:
        """The slot is forgotten: give back what it holds."""

    @abstractmethod
    def _has_process(self) -> bool:
        """Whether something of the last incarnation still has to end."""

    @abstractmethod
    def _end(self) -> None:
        """Its exchanges are done: end what stands behind it, and call `_gone` when it has."""

    # ------------------------------------------------------------------------------------- told by the fleet

    def drain(self, intent: Intent, why: str, ceiling_s: float | None = None) -> None:
        """Out of rotation now; it ends when its exchanges are done, or when the ceiling is reached."""
        self.intent = intent
        if self.state in (State.DRAINING, State.STOPPING):
            return
        if self.state not in ALIVE:
            self._cancel_timers()
            if not self._has_process():
                self._gone()
            return
        ceiling = self.drain_timeout_s if ceiling_s is None else ceiling_s
        open_now = len(self.target.open) if self.target is not None else 0
        self._drain_started = time.monotonic()
        self._move(State.DRAINING, why)
        if not open_now:
            self._stop(cut=0)
            return
        assert self.target is not None
        self._publish(DrainStarted, in_flight=open_now, ceiling_s=ceiling, why=why)
        self.drain_until = self._drain_started + ceiling
        self.target.on_idle = lambda: self._stop(cut=0)
        self._after(ceiling, self.cut_drain)

    def cut_drain(self) -> None:
        """The ceiling is reached, or somebody is in a hurry: end a drain that goes on."""
        if self.state is not State.DRAINING:
            return
        cut = len(self.target.open) if self.target is not None else 0
        message = f"the drain of {self.name} was cut with {count(cut, 'exchange')} in flight"
        self._home.publish(Warned(message=message))
        self._stop(cut=cut)

    def forgive(self) -> None:
        """Clear what the restart policy remembers, and start where nothing runs."""
        self.record = Record()
        if self.state not in AT_REST and self.state is not State.RESTARTING:
            return
        self._cancel_timers()
        self.intent = Intent.AGAIN
        if not self._has_process():
            self._gone()

    # ------------------------------------------------------------------------------------- for both kinds

    def _begin(self) -> None:
        """The next incarnation: forget what was the last one's."""
        self._cancel_timers()
        self.incarnation += 1
        self._began = time.monotonic()
        self.intent = Intent.KEEP
        self.restart_at = self.drain_until = self.ready_after_s = None
        self.card = None
        self._exit = None

    def _enter_pool(self, carrier: Carrier, card: Card | None) -> None:
        """It can serve: into the pool, and into rotation where nothing speaks against it."""
        assert self.started_by is not None
        self.card = card
        self.ready_after_s = time.monotonic() - self._began
        self.target = Target(Member(self.name, self.incarnation), carrier, self.counts, self.traffic)
        obstacles = self._home.on_registered(self, card)
        if obstacles:
            self._move(State.INCOMPATIBLE, "; ".join(obstacles))
            return
        self._move(State.READY)
        self._home.on_ready(self, self.ready_after_s, self.started_by)
        self._publish(ReplicaReady, seconds=self.ready_after_s, how=self.started_by)

    @property
    def _was_ready(self) -> bool:
        """Whether its incarnation has come so far as to be able to serve."""
        return self.ready_after_s is not None

    def _exited(self, how: str) -> None:
        """The incarnation's process ended, or never was; the moves that follow say so."""
        self.last_exit = self._exit = how

    def _stop(self, cut: int) -> None:
        """The last exchange is done, or what still runs is cut."""
        if self.state is not State.DRAINING:
            return
        self._end_drain(cut)
        self._move(State.STOPPING)
        if cut:
            self._unpool("its drain was cut")
        self._end()

    def _end_drain(self, cut: int) -> None:
        self.drain_until = None
        if self.target is not None:
            self.target.on_idle = None
        seconds = time.monotonic() - self._drain_started
        self._home.on_drained(self, seconds)
        self._publish(DrainEnded, seconds=seconds, cut=cut)

    def _unpool(self, why: str) -> None:
        """Out of the pool for good; what is still in flight is lost."""
        if self.target is not None:
            self._home.on_unpooled(self)  # first: one that is gone has no backoff to tell of, and no health to ask for
            self._home.exchanges.on_lost(self.target, why)
            self.target = None

    def _gone(self) -> None:
        """Nothing stands behind it, and nothing comes by itself: what the intent asks for now."""
        self._unpool("stopped")
        if self.intent is Intent.AGAIN:
            if self.state is not State.STOPPED:
                self._move(State.STOPPED)
            self.restarts += 1
            self.start()
        elif self.state not in AT_REST or self.intent is not Intent.KEEP:
            reason = "drained by hand; `stoker restart` brings it back" if self.intent is Intent.REST else ""
            self._move(State.STOPPED, reason)

    def _move(self, after: State, reason: str = "") -> None:
        before = self.state
        if before is after:
            self.reason = reason or self.reason
            if self.intent is Intent.LEAVE and after is State.STOPPED:
                self._home.on_moved(self)
            return
        if not is_legal(before, after):
            self._home.publish(Warned(message=f"refused an illegal move of {self.name}: {before} -> {after}"))
            return
        self.state = after
        self.reason = reason
        self.since = time.monotonic()
        self.history.append(
            StateChange(
                time=time.time(), incarnation=self.incarnation, state=after.value, reason=reason, exit=self._exit
            )
        )
        if self.target is not None:
            self.target.member.in_rotation = after in IN_ROTATION
        self._publish(ReplicaState, before=before.value, after=after.value, reason=reason)
        self._home.on_moved(self)

    def _publish(self, kind: Callable[..., AnyEvent], **fields: object) -> None:
        self._home.publish(kind(replica=self.name, incarnation=self.incarnation, **fields))

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
