"""How each state looks, and what goes on in it, in words: one table and one function a question. Pure.

The words are those of the control messages. Backoff and ejection are shown over `ready`, as the supervisor
means them.
"""

from __future__ import annotations

import dataclasses

from supervisor.control.events import (
    AnyEvent,
    BadFrames,
    Commanded,
    DrainEnded,
    EjectionWithheld,
    LogProblem,
    ReplicaBackoff,
    ReplicaEjected,
    ReplicaExited,
    ReplicaFailed,
    ReplicaReadmitted,
    ReplicaReady,
    ReplicaState,
    SupervisorStarted,
    SupervisorStopping,
    Warned,
)
from supervisor.control.messages import DeploymentStatus, ReplicaStatus
from ui.dashboard import words
from ui.dashboard.paint import Tone

LONG_FORWARD_S = 10.0
"""A forward older than this is worth a word, seconds."""
FULL_IN_FLIGHT = 32
"""Exchanges in flight at which a replica is given no more (spec 6)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """How a state is drawn, and a sentence for the help screen."""

    glyph: str
    tone: Tone
    means: str


REPLICA_LOOKS: dict[str, Look] = {
    "ready": Look("●", Tone.GOOD, "serves requests"),
    "starting": Look("◌", Tone.BUSY, "its process has been started"),
    "loading": Look("◌", Tone.BUSY, "reads its weights"),
    "warming": Look("◍", Tone.BUSY, "golden check and first forwards"),
    "backoff": Look("◔", Tone.WARN, "rests for a moment after a failure"),
    "ejected": Look("⊘", Tone.OUT, "kept timing out: out of rotation for a while"),
    "unresponsive": Look("?", Tone.BAD, "sends no heartbeat"),
    "incompatible": Look("≠", Tone.BAD, "differs from its siblings: gets no traffic"),
    "draining": Look("◐", Tone.WARN, "finishes what it has, then leaves"),
    "stopping": Look("◒", Tone.WARN, "its process is being ended"),
    "restarting": Look("↻", Tone.WARN, "waits for its next incarnation"),
    "stopped": Look("○", Tone.DIM, "has no process"),
    "failed": Look("✗", Tone.BAD, "given up until somebody restarts it"),
}
DEPLOYMENT_LOOKS: dict[str, Look] = {
    "ready": Look("●", Tone.GOOD, "all its replicas are ready"),
    "degraded": Look("▲", Tone.WARN, "serves with fewer replicas than asked"),
    "unavailable": Look("✗", Tone.BAD, "no replica is ready"),
}
_UNKNOWN = Look("·", Tone.TEXT, "a state that this dashboard does not know")

COMING_UP = frozenset({"starting", "loading", "warming"})


def shown_state(replica: ReplicaStatus) -> str:
    """The state with backoff and ejection laid over it."""
    if replica.state == "ready" and replica.ejected_s > 0:
        return "ejected"
    if replica.state == "ready" and replica.backoff_s > 0:
        return "backoff"
    return replica.state


def is_ejected(replica: ReplicaStatus) -> bool:
    """Whether readmitting is what `x` means for it."""
    return replica.ejected_s > 0 or replica.state == "ejected"


def replica_look(state: str) -> Look:
    """Glyph and tone of a replica's state."""
    return REPLICA_LOOKS.get(state, _UNKNOWN)


def deployment_look(state: str) -> Look:
    """Glyph and tone of a deployment's state."""
    return DEPLOYMENT_LOOKS.get(state, _UNKNOWN)


def goes_on(replica: ReplicaStatus) -> str:
    """What goes on with a replica: who waits for what, and for how long. Not yet made literal."""
    state = shown_state(replica)
    since = words.duration(replica.in_state_s)
    because = f": {replica.reason}" if replica.reason else ""
    if state == "draining":
        ceiling = replica.in_state_s + replica.drain_left_s
        left = replica.in_flight
        return f"draining, {left} left, {replica.in_state_s:.0f} s of {ceiling:.0f}{because}"
    if state == "ejected":
        return f"ejected, back in {words.duration(replica.ejected_s)}{because}"
    if state == "backoff":
        return f"back in {words.duration(replica.backoff_s)}{because or ' after a failure'}"
    if state == "restarting":
        why = replica.reason or replica.last_exit or ""
        when = f" in {words.duration(replica.restart_in_s)}" if replica.restart_in_s > 0 else ""
        return f"restarting{when}: {why}" if why else f"restarting{when}"
    if state in COMING_UP or state == "stopping":
        return f"{state} {since}{because}"
    if state == "unresponsive":
        return f"{replica.reason or 'no heartbeat'}, {since} ago"
    if state == "failed":
        return f"failed{because or (f': {replica.last_exit}' if replica.last_exit else '')}"
    if state == "stopped":
        return replica.reason or ("out by hand; restart brings it back" if replica.cordoned else "stopped")
    if state == "incompatible":
        return f"incompatible{because}"
    if replica.forward_age_s >= LONG_FORWARD_S:
        return f"one forward has run for {words.duration(replica.forward_age_s)}"
    if replica.in_flight >= FULL_IN_FLIGHT:
        return f"full: {replica.in_flight} in flight"
    return replica.reason


def goes_on_tone(replica: ReplicaStatus) -> Tone:
    """How serious that is. A ready replica is calm, unless it is full or a forward takes long."""
    state = shown_state(replica)
    if state != "ready":
        return replica_look(state).tone
    busy = replica.forward_age_s >= LONG_FORWARD_S or replica.in_flight >= FULL_IN_FLIGHT
    return Tone.WARN if busy else Tone.DIM


def goes_on_in(deployment: DeploymentStatus) -> str:
    """What goes on with a deployment: its counts, then its first warning. Not yet made literal."""
    counts = f"{deployment.ready_replicas} of {deployment.desired_replicas} ready"
    return f"{counts}: {deployment.warnings[0]}" if deployment.warnings else counts


# ----------------------------------------------------------------------------------------------------- events

_EVENT_TONES: dict[type, Tone] = {
    ReplicaFailed: Tone.BAD,
    ReplicaExited: Tone.BAD,
    ReplicaEjected: Tone.OUT,
    EjectionWithheld: Tone.WARN,
    ReplicaBackoff: Tone.WARN,
    Warned: Tone.WARN,
    BadFrames: Tone.WARN,
    LogProblem: Tone.WARN,
    SupervisorStopping: Tone.WARN,
    ReplicaReady: Tone.GOOD,
    ReplicaReadmitted: Tone.GOOD,
    SupervisorStarted: Tone.GOOD,
    ReplicaState: Tone.DIM,
    Commanded: Tone.KEY,
}
_EVENT_GLYPHS = {Tone.BAD: "✗", Tone.OUT: "⊘", Tone.WARN: "▲", Tone.GOOD: "●", Tone.DIM: "·", Tone.KEY: "›"}


def event_tone(event: AnyEvent) -> Tone:
    """How serious an event is."""
    if isinstance(event, DrainEnded) and event.cut:
        return Tone.WARN
    return _EVENT_TONES.get(type(event), Tone.TEXT)


def event_glyph(event: AnyEvent) -> str:
    """The same without colour."""
    return _EVENT_GLYPHS.get(event_tone(event), "·")
