"""One slot: a replica's stable name and, one after another, the processes that stand behind it (spec 1, 5).

It carries out what `core.lifecycle` and the fleet decide, turns what the process does (output, messages, exit) into moves
of its state, and tells the fleet of each move. It knows nothing of its siblings.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import secrets
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from engine.errors import StokerError
from engine.messages import (
    EXIT_REASONS,
    PROTOCOL,
    Answer,
    Card,
    Chunk,
    End,
    ExitCode,
    Faults,
    Heartbeat,
    LaunchSpec,
    LoadFailed,
    Phase,
    Progress,
    Register,
    ToSupervisor,
)
from supervisor.control.events import (
    AnyEvent,
    DrainEnded,
    DrainStarted,
    ReplicaExited,
    ReplicaFailed,
    ReplicaReady,
    ReplicaStarted,
    ReplicaState,
    Warned,
)
from supervisor.core.dispatch import Member
from supervisor.core.ejection import Outcome
from supervisor.core.lifecycle import (
    ALIVE,
    AT_REST,
    COMING_UP,
    IN_ROTATION,
    Ending,
    GiveUp,
    Record,
    State,
    after_exit,
    is_legal,
)
from supervisor.core.traffic import Traffic
from supervisor.exchanges import Exchanges, Target
from supervisor.host.launcher import Launcher
from supervisor.host.logs import ReplicaLog
from supervisor.host.processes import STOP_S, Child, Exit
from supervisor.links.zeromq import EngineCarrier, EngineLink

SILENT_S = 5.0
"""Without a heartbeat for this long a replica is `unresponsive` and out of rotation (spec 5)."""
DEAD_S = 30.0
"""Without a heartbeat for this long it is killed and restarted."""
LAST_LINES = 20
"""Log lines that are shown with an exit."""


class Intent(enum.Enum):
    """What is to become of the slot when its process is gone."""

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
    """What every incarnation of a slot is made from; `identity` is equal for interchangeable slots."""

    spec: LaunchSpec
    env: dict[str, str]
    identity: str
    drain_timeout_s: float
    restart_hung_s: float


class Home(Protocol):
    """What a slot needs around it, and who it tells."""

    link: EngineLink
    exchanges: Exchanges
    launcher: Launcher

    def publish(self, event: AnyEvent) -> None:
        """Tell the event log."""

    def on_registered(self, slot: Slot, card: Card) -> list[str]:
        """A slot's process can serve: join the pool. What keeps it out of traffic, empty where it may serve."""

    def on_unpooled(self, slot: Slot) -> None:
        """A slot's process is out of the pool for good."""

    def on_ready(self, slot: Slot, seconds: float, kind: str) -> None:
        """A slot's process became ready, so long after its start of that kind."""

    def on_drained(self, slot: Slot, seconds: float) -> None:
        """A slot's drain ended."""

    def on_moved(self, slot: Slot) -> None:
        """A slot changed its state."""


class Slot:
    """A replica of a deployment. Implements `processes.Observer` and `links.zeromq.Peer` for its incarnations."""

    def __init__(self, home: Home, deployment: str, number: int, born: int, make: Make, log: ReplicaLog) -> None:
        self.name = f"{deployment}/{number}"
        self.deployment = deployment
        self.number = number
        self.born = born
        self.make = make
        self.log = log
        self.state = State.STOPPED
        self.reason = ""
        self.since = time.monotonic()
        self.incarnation = 0
        self.restarts = 0
        self.intent = Intent.KEEP
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.traffic = Traffic(self.since)
        self.record = Record()
        self.child: Child | None = None
        self.carrier: EngineCarrier | None = None
        self.target: Target | None = None
        self.card: Card | None = None
        self.heartbeat: Heartbeat | None = None
        self.cpu_share = 0.0
        self.restart_at: float | None = None
        self.drain_until: float | None = None
        self.ready_after_s: float | None = None
        self.started_by: str | None = None
        self.last_exit: str | None = None
        self.last_lines: list[str] = []
        self._home = home
        self._identity = b""
        self._heard = 0.0
        self._was_ready = False
        self._load_failure: LoadFailed | None = None
        self._why_killed = ""
        self._drain_started = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def is_cordoned(self) -> bool:
        """Whether it was taken out by hand and stays out."""
        return self.intent is Intent.REST

    # --------------------------------------------------------------------------------------------- told by the fleet

    def start(self) -> None:
        """Bring the next incarnation up."""
        self._cancel_timers()
        self.incarnation += 1
        self.intent = Intent.KEEP
        self.restart_at = self.drain_until = self.ready_after_s = None
        self.card = self.heartbeat = None
        self._load_failure = None
        self._why_killed = ""
        self._was_ready = False
        self._identity = secrets.token_bytes(16)
        if self._identity[0] == 0:
            self._identity = b"\1" + self._identity[1:]
        self._heard = time.monotonic()
        self.log.begin(self.incarnation)
        self._move(State.STARTING)
        spec = msgspec.structs.replace(
            self.make.spec, identity=self._identity, replica=self.name, incarnation=self.incarnation
        )
        self.carrier = self._home.link.admit(self._identity, self)
        try:
            self.child = self._home.launcher.start(spec, self.make.env, self)
        except (OSError, StokerError) as error:
            self._home.link.forget(self._identity)
            self.child = None
            self._ended(f"could not be started: {error}", Ending(0.0, False, load_failed=True))
            self._rest_or_wait()
            return
        self.started_by = self._home.launcher.kind
        self._publish(ReplicaStarted, pid=self.child.pid, device=self.make.spec.device, how=self._home.launcher.kind)

    def drain(self, intent: Intent, why: str, ceiling_s: float | None = None) -> None:
        """Out of rotation now; the process leaves when its exchanges are done, or when the ceiling is reached."""
        self.intent = intent
        if self.state in (State.DRAINING, State.STOPPING):
            return
        if self.state not in ALIVE:
            self._cancel_timers()
            if self.child is None:
                self._gone()
            return
        ceiling = self.make.drain_timeout_s if ceiling_s is None else ceiling_s
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
        message = f"the drain of {self.name} was cut with {cut} exchanges in flight"
        self._home.publish(Warned(message=message))
        self._stop(cut=cut)

    def kill(self, why: str) -> None:
        """SIGKILL to the process group; the restart policy decides what follows."""
        self._why_killed = why
        if self.child is not None:
            self.child.kill()

    def set_faults(self, faults: Faults) -> None:
        """New faults for a stub engine."""
        if self.carrier is not None:
            self.carrier.set_faults(faults)

    def forgive(self) -> None:
        """Clear what the restart policy remembers, and start where nothing runs."""
        self.record = Record()
        if self.state not in AT_REST and self.state is not State.RESTARTING:
            return
        self._cancel_timers()
        self.intent = Intent.AGAIN
        if self.child is None:
            self._gone()

    def tick(self, now: float) -> None:
        """Once a second: is it still heard of, and does its forward take too long (spec 5)."""
        if self.child is None or not self.child.alive or self.state in (State.DRAINING, State.STOPPING):
            return
        silent = now - self._heard
        if silent > DEAD_S and self.state not in COMING_UP:
            self.kill(f"no heartbeat for {silent:.0f} s")
        elif silent > SILENT_S and self.state is State.READY:
            self._move(State.UNRESPONSIVE, f"no heartbeat for {silent:.0f} s")
        limit = self.make.restart_hung_s
        if limit and self.heartbeat is not None and self.heartbeat.forward_age_s > limit:
            self.kill(f"a forward ran for {self.heartbeat.forward_age_s:.0f} s")

    # --------------------------------------------------------------------------------------------- told by the process

    def on_output(self, data: bytes) -> None:
        self.log.feed(data, time.time(), time.monotonic())

    def on_exit(self, ending: Exit) -> None:
        """The process is gone: what it had in flight is lost, and the policy says what follows."""
        assert self.child is not None
        self._home.link.look()
        self.log.begin(self.incarnation)
        self.last_exit = self._describe(ending)
        if self.state is State.DRAINING:
            self._end_drain(cut=len(self.target.open) if self.target is not None else 0)
            self._move(State.STOPPING)
        self._unpool(self.last_exit)
        if self.state is State.STOPPING:
            return
        self._ended(
            self.last_exit,
            Ending(
                ran_s=time.monotonic() - self.child.started,
                was_ready=self._was_ready,
                load_failed=ending.code in (ExitCode.LOAD_FAILED, ExitCode.LOAD_FINAL),
                final=ending.code == ExitCode.LOAD_FINAL,
            ),
        )

    def on_group_gone(self) -> None:
        """Nothing of it is left: now it may be stopped, restarted or forgotten."""
        self.child = None
        self._home.link.forget(self._identity)
        self._rest_or_wait()

    def on_message(self, message: ToSupervisor, body: bytes | None) -> None:
        """What the engine says. An exchange that is not open here any more is a late answer, never an error."""
        match message:
            case Answer() if self.target is not None and body is not None:
                self._home.exchanges.on_answer(self.target, message.exchange, message.status, body)
            case Chunk() if self.target is not None and body is not None:
                self._home.exchanges.on_chunk(self.target, message.exchange, body)
            case End() if self.target is not None:
                self._home.exchanges.on_end(self.target, message.exchange)
            case Heartbeat():
                self._on_heartbeat(message)
            case Progress():
                self._on_progress(message)
            case Register():
                self._on_register(message)
            case LoadFailed():
                self._load_failure = message
            case _:
                pass

    def _on_heartbeat(self, message: Heartbeat) -> None:
        now = time.monotonic()
        if self.heartbeat is not None and now > self._heard:
            self.cpu_share = max(0.0, (message.cpu_s - self.heartbeat.cpu_s) / (now - self._heard))
        self.heartbeat = message
        self._heard = now
        if self.state is State.UNRESPONSIVE:
            self._move(State.READY, "heartbeats are back")

    def _on_progress(self, message: Progress) -> None:
        if message.protocol != PROTOCOL:
            self.kill(f"speaks protocol {message.protocol}, expected {PROTOCOL}")
        elif self.state in COMING_UP:
            self._move(State.LOADING if message.phase is Phase.LOADING else State.WARMING)

    def _on_register(self, message: Register) -> None:
        if message.protocol != PROTOCOL:
            self.kill(f"speaks protocol {message.protocol}, expected {PROTOCOL}")
            return
        if self.state not in COMING_UP or self.child is None or self.carrier is None:
            return
        self._heard = time.monotonic()
        self.card = message.card
        self.ready_after_s = self._heard - self.child.started
        self._was_ready = True
        self.target = Target(Member(self.name, self.incarnation), self.carrier, self.counts, self.traffic)
        obstacles = self._home.on_registered(self, message.card)
        if obstacles:
            self._move(State.INCOMPATIBLE, "; ".join(obstacles))
            return
        self._move(State.READY)
        self._home.on_ready(self, self.ready_after_s, self._home.launcher.kind)
        self._publish(ReplicaReady, seconds=self.ready_after_s, how=self._home.launcher.kind)

    # --------------------------------------------------------------------------------------------- inside

    def _stop(self, cut: int) -> None:
        """The last exchange is done, or what still runs is cut: the process has to go."""
        if self.state is not State.DRAINING:
            return
        self._end_drain(cut)
        self._move(State.STOPPING)
        if self.child is not None:
            self.child.terminate(STOP_S)
        if cut:
            self._unpool("its drain was cut")

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
            self._home.exchanges.on_lost(self.target, why)
            self._home.on_unpooled(self)
            self.target = None

    def _ended(self, why: str, ending: Ending) -> None:
        """It ended unasked: restart after a delay, or give up."""
        self.last_lines = [line.text for line in self.log.tail(LAST_LINES)]
        pid = self.child.pid if self.child is not None else 0
        verdict = after_exit(self.record, ending)
        if isinstance(verdict, GiveUp):
            self._publish(ReplicaExited, pid=pid, reason=why, last_lines=self.last_lines)
            self._move(State.FAILED, f"{why}; {verdict.why}")
            self._publish(ReplicaFailed, reason=f"{why}; {verdict.why}")
            return
        self.record = verdict.record
        self.restart_at = time.monotonic() + verdict.delay_s
        self._publish(
            ReplicaExited, pid=pid, reason=why, restart_in_s=verdict.delay_s, last_lines=self.last_lines
        )
        self._move(State.RESTARTING, why)

    def _rest_or_wait(self) -> None:
        """The process is gone to the last of its group: what the intent asks for now."""
        if self.state is State.RESTARTING and self.intent is Intent.KEEP:
            delay = max(0.0, (self.restart_at or 0.0) - time.monotonic())
            self._after(delay, self._start_again)
        else:
            self._gone()

    def _start_again(self) -> None:
        if self.state is State.RESTARTING:
            self.restarts += 1
            self.start()

    def _gone(self) -> None:
        """No process and none on its way by itself."""
        self._unpool("stopped")
        if self.intent is Intent.AGAIN:
            if self.state is not State.STOPPED:
                self._move(State.STOPPED)
            self.restarts += 1
            self.start()
        elif self.state not in AT_REST or self.intent is not Intent.KEEP:
            reason = "drained by hand; `stoker restart` brings it back" if self.intent is Intent.REST else ""
            self._move(State.STOPPED, reason)

    def _describe(self, ending: Exit) -> str:
        words = ending.describe()
        if self._load_failure is not None:
            return f"{self._load_failure.reason} ({words})"
        if ending.code in list(ExitCode) and ending.code:
            words = f"{EXIT_REASONS[ExitCode(ending.code)]} ({words})"
        return f"{self._why_killed} ({words})" if self._why_killed else words

    def _move(self, after: State, reason: str = "") -> None:
        before = self.state
        if before is after:
            return
        if not is_legal(before, after):
            self._home.publish(Warned(message=f"refused an illegal move of {self.name}: {before} -> {after}"))
            return
        self.state = after
        self.reason = reason
        self.since = time.monotonic()
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

