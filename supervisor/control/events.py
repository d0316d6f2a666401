"""What happened, as typed events in a numbered, bounded history (spec 12): the one story of a fleet.

Dashboard, CLI, log and tests read the same stream. Numbers start at 1 and have no gap; a reader that was too slow is
told how many it missed. `sentence` is the one place where an event becomes words.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator

import msgspec

from supervisor.control.texts import all_readable
from supervisor.core.plurals import count

HISTORY = 4096
"""Events that are kept for those who come later."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base. `seq` numbers the events of one supervisor from 1; `time` is wall-clock seconds."""

    seq: int = 0
    time: float = 0.0

    def sentence(self) -> str:
        """The event in words, for a log line."""
        raise NotImplementedError


class ReplicaEvent(Event, frozen=True, kw_only=True):
    """An event of one incarnation of a slot."""

    replica: str
    incarnation: int


class SupervisorStarted(Event, frozen=True, kw_only=True, tag="supervisor_started"):
    name: str
    pid: int
    listen: str

    def sentence(self) -> str:
        return f"supervisor {self.name} started, pid {self.pid}, listening on {self.listen}"


class SupervisorStopping(Event, frozen=True, kw_only=True, tag="supervisor_stopping"):
    why: str
    worst_case_s: float

    def sentence(self) -> str:
        return f"stopping: {self.why}; gone in {self.worst_case_s:.0f} s at the latest"


class Warned(Event, frozen=True, kw_only=True, tag="warning"):
    message: str

    def sentence(self) -> str:
        return f"warning: {self.message}"


class ReplicaState(ReplicaEvent, frozen=True, kw_only=True, tag="replica_state"):
    before: str
    after: str
    reason: str = ""

    def sentence(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        return f"{self.replica}#{self.incarnation} {self.before} -> {self.after}{because}"


class ReplicaStarted(ReplicaEvent, frozen=True, kw_only=True, tag="replica_started"):
    pid: int
    device: str
    how: str

    def sentence(self) -> str:
        return f"{self.replica}#{self.incarnation} started on {self.device}, pid {self.pid} ({self.how})"


class ReplicaReady(ReplicaEvent, frozen=True, kw_only=True, tag="replica_ready"):
    seconds: float
    how: str

    def sentence(self) -> str:
        return f"{self.replica}#{self.incarnation} ready after {self.seconds:.3f} s ({self.how})"


class ReplicaExited(ReplicaEvent, frozen=True, kw_only=True, tag="replica_exited"):
    pid: int
    reason: str
    restart_in_s: float | None = None
    last_lines: list[str] = []

    def sentence(self) -> str:
        then = "" if self.restart_in_s is None else f"; restarting in {self.restart_in_s:g} s"
        return f"{self.replica}#{self.incarnation} exited: {self.reason}{then}"


class ReplicaFailed(ReplicaEvent, frozen=True, kw_only=True, tag="replica_failed"):
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.replica} given up: {self.reason}; when that is mended, `stoker restart {self.replica}` tries again"
        )


class ReplicaBackoff(ReplicaEvent, frozen=True, kw_only=True, tag="replica_backoff"):
    seconds: float
    failures: int
    reason: str

    def sentence(self) -> str:
        nth = f"failure {self.failures} in a row"
        return f"{self.replica}#{self.incarnation} backs off {self.seconds:g} s, {nth}: {self.reason}"


class ReplicaEjected(ReplicaEvent, frozen=True, kw_only=True, tag="replica_ejected"):
    seconds: float
    timeouts: int
    by: str = "timeouts"

    def sentence(self) -> str:
        why = "by hand" if self.by == "hand" else f"after {count(self.timeouts, 'timeout')} in a row"
        return f"{self.replica}#{self.incarnation} ejected for {self.seconds:g} s {why}"


class ReplicaReadmitted(ReplicaEvent, frozen=True, kw_only=True, tag="replica_readmitted"):
    by: str

    def sentence(self) -> str:
        return f"{self.replica}#{self.incarnation} readmitted by {self.by.replace('_', ' ')}"


class EjectionWithheld(ReplicaEvent, frozen=True, kw_only=True, tag="replica_ejection_withheld"):
    reason: str
    timeouts: int

    def sentence(self) -> str:
        why = self.reason.replace("_", " ")
        return f"{self.replica}#{self.incarnation} not ejected after {count(self.timeouts, 'timeout')}: {why}"


class ThreadsLearned(ReplicaEvent, frozen=True, kw_only=True, tag="threads_learned"):
    """The fastest thread count of a range of padded tokens is known (spec 9). gain: share of time that it saves."""

    range: str
    count: int
    gain: float

    def sentence(self) -> str:
        saves = f", {self.gain:.0%} faster than the configured count" if self.gain > 0 else ""
        return f"{self.replica}#{self.incarnation} learned {count(self.count, 'thread')} for {self.range} tokens{saves}"


class ThreadsAdopted(ReplicaEvent, frozen=True, kw_only=True, tag="threads_adopted"):
    range: str
    count: int
    gain: float

    def sentence(self) -> str:
        threads = count(self.count, "thread")
        return f"{self.replica}#{self.incarnation} serves {self.range} tokens with {threads} from now on"


class ThreadsRelearning(ReplicaEvent, frozen=True, kw_only=True, tag="threads_relearning"):
    range: str

    def sentence(self) -> str:
        return f"{self.replica}#{self.incarnation} learns {self.range} tokens again: their pace has changed"


class ThreadsRetired(ReplicaEvent, frozen=True, kw_only=True, tag="threads_retired"):
    """An answer had other bits at another count: nothing is learned any more. lengths: tokens of each row of it."""

    range: str
    count: int
    shape: str
    lengths: list[int] = []

    def sentence(self) -> str:
        return (
            f"{self.replica}#{self.incarnation} learns no thread counts any more: "
            f"{self.shape} have other bits with {count(self.count, 'thread')}"
        )


class ThreadsUncertified(ReplicaEvent, frozen=True, kw_only=True, tag="threads_uncertified"):
    def sentence(self) -> str:
        return f"{self.replica}#{self.incarnation} {uncertified(self.replica.partition('/')[0])}"


def uncertified(deployment: str) -> str:
    """What to do about learned counts that serve without a certificate."""
    return (
        "may serve learned thread counts, and no clean record covers this host and model: "
        f"`stoker threads certify {deployment}` makes one"
    )


class DrainStarted(ReplicaEvent, frozen=True, kw_only=True, tag="drain_started"):
    in_flight: int
    ceiling_s: float
    why: str

    def sentence(self) -> str:
        what = f"{self.in_flight} in flight, {self.ceiling_s:g} s at most"
        return f"{self.replica}#{self.incarnation} drains {what}: {self.why}"


class DrainEnded(ReplicaEvent, frozen=True, kw_only=True, tag="drain_ended"):
    seconds: float
    cut: int

    def sentence(self) -> str:
        were = "was" if self.cut == 1 else "were"
        how = f"{count(self.cut, 'exchange')} {were} cut" if self.cut else "nothing was cut"
        return f"{self.replica}#{self.incarnation} drained in {self.seconds:.3f} s, {how}"


class TemplateEvent(Event, frozen=True, kw_only=True, tag="template"):
    artifact: str
    what: str

    def sentence(self) -> str:
        return f"template of {self.artifact} {self.what}"


class Scaled(Event, frozen=True, kw_only=True, tag="scaled"):
    deployment: str
    before: int
    after: int
    by: str

    def sentence(self) -> str:
        return f"{self.deployment} scaled from {self.before} to {self.after} by {self.by}"


class Reloaded(Event, frozen=True, kw_only=True, tag="reloaded"):
    """The config was read again. differences: one line a deployment that changed."""

    differences: list[str]

    def sentence(self) -> str:
        return f"reloaded: {'; '.join(self.differences) or 'no replica starts or stops'}"


class ReloadFailed(Event, frozen=True, kw_only=True, tag="reload_failed"):
    problem: str

    def sentence(self) -> str:
        return f"the reload failed, everything serves on as before: {self.problem}"


class RollStopped(Event, frozen=True, kw_only=True, tag="roll_stopped"):
    deployment: str
    replica: str

    def sentence(self) -> str:
        return f"the rolling restart of {self.deployment} stopped: {self.replica} did not come back"


class Commanded(Event, frozen=True, kw_only=True, tag="commanded"):
    command: str
    target: str

    def sentence(self) -> str:
        return f"asked: {self.command} {self.target}"


class BadFrames(Event, frozen=True, kw_only=True, tag="bad_frames"):
    where: str
    count: int
    example: str

    def sentence(self) -> str:
        return f"dropped {count(self.count, 'bad frame')} on {self.where}, for example: {self.example}"


AnyEvent = (
    SupervisorStarted
    | SupervisorStopping
    | Warned
    | ReplicaState
    | ReplicaStarted
    | ReplicaReady
    | ReplicaExited
    | ReplicaFailed
    | ReplicaBackoff
    | ReplicaEjected
    | ReplicaReadmitted
    | EjectionWithheld
    | ThreadsLearned
    | ThreadsAdopted
    | ThreadsRelearning
    | ThreadsRetired
    | ThreadsUncertified
    | DrainStarted
    | DrainEnded
    | TemplateEvent
    | Scaled
    | Reloaded
    | ReloadFailed
    | RollStopped
    | Commanded
    | BadFrames
)

Listener = Callable[[AnyEvent], None]


_encoder = msgspec.json.Encoder()


class EventLog:
    """The numbered history and those who listen to it. `wall` is the clock that events are stamped with."""

    def __init__(self, wall: Callable[[], float] = time.time, history: int = HISTORY) -> None:
        self._wall = wall
        self._events: collections.deque[AnyEvent] = collections.deque(maxlen=history)
        self._listeners: list[Listener] = []
        self.last_seq = 0

    def publish(self, event: AnyEvent) -> None:
        """Number and stamp an event, keep it, tell it to everyone who listens."""
        self.last_seq += 1
        stamped = _readable(msgspec.structs.replace(event, seq=self.last_seq, time=self._wall()))
        self._events.append(stamped)
        for listener in self._listeners:
            listener(stamped)

    def listen(self, listener: Listener) -> None:
        """Hear every event from now on, within the call that publishes it."""
        self._listeners.append(listener)

    def since(self, seq: int) -> tuple[list[AnyEvent], int]:
        """The kept events after `seq`, and how many after it are kept no more."""
        kept = [event for event in self._events if event.seq > seq]
        expected = self.last_seq - max(seq, 0)
        return kept, max(0, expected - len(kept))

    def __iter__(self) -> Iterator[AnyEvent]:
        return iter(self._events)


def _readable(event: AnyEvent) -> AnyEvent:
    """The event, such that every listener can write it: a path or an argument in it may be no UTF-8."""
    try:
        _encoder.encode(event)
    except UnicodeEncodeError:
        return msgspec.convert(all_readable(msgspec.to_builtins(event)), type(event))
    return event
