"""How states of replicas and deployments, and events, look on the command line and in the dashboard: a glyph, a mood.

A mood is a meaning, never a colour: the command line has one for each in the terminal's own, the dashboard in its
theme's. Light: every command imports this.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from supervisor.control import events
from supervisor.control.messages import ReplicaStatus


class Mood(enum.StrEnum):
    """How it stands with somebody who is in that state."""

    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    OUT = "out"
    BAD = "bad"
    DIM = "dim"


class Look(NamedTuple):
    """How a state is drawn, and what it means in half a sentence."""

    glyph: str
    mood: Mood
    means: str


REPLICA_LOOKS = {
    "ready": Look("●", Mood.GOOD, "serves requests"),
    "starting": Look("◌", Mood.BUSY, "its process has been started"),
    "loading": Look("◌", Mood.BUSY, "reads its weights"),
    "warming": Look("◍", Mood.BUSY, "golden check and first forwards"),
    "backoff": Look("◔", Mood.WARN, "rests for a moment after a failure"),
    "ejected": Look("⊘", Mood.OUT, "kept timing out: out of rotation for a while"),
    "unresponsive": Look("?", Mood.BAD, "sends no heartbeat"),
    "incompatible": Look("≠", Mood.BAD, "differs from its siblings: gets no traffic"),
    "draining": Look("◐", Mood.WARN, "finishes what it has, then leaves"),
    "stopping": Look("◒", Mood.WARN, "its process is being ended"),
    "restarting": Look("↻", Mood.WARN, "waits for its next incarnation"),
    "stopped": Look("○", Mood.DIM, "has no process"),
    "failed": Look("✗", Mood.BAD, "given up until somebody restarts it"),
}
DEPLOYMENT_LOOKS = {
    "ready": Look("●", Mood.GOOD, "all its replicas are ready"),
    "degraded": Look("▲", Mood.WARN, "serves with fewer replicas than asked"),
    "unavailable": Look("✗", Mood.BAD, "no replica is ready"),
}


def shown_state(replica: ReplicaStatus) -> str:
    """The state with backoff and ejection, which a ready replica has for a time, laid over it."""
    if replica.state == "ready" and replica.ejected_s > 0:
        return "ejected"
    return "backoff" if replica.state == "ready" and replica.backoff_s > 0 else replica.state


_EVENT_MOODS: dict[type[events.Event], Mood] = {
    events.ReplicaFailed: Mood.BAD,
    events.ReplicaExited: Mood.BAD,
    events.ReloadFailed: Mood.BAD,
    events.ReplicaEjected: Mood.OUT,
    events.EjectionWithheld: Mood.WARN,
    events.ReplicaBackoff: Mood.WARN,
    events.RollStopped: Mood.WARN,
    events.ThreadsRetired: Mood.WARN,
    events.ThreadsUncertified: Mood.WARN,
    events.Warned: Mood.WARN,
    events.BadFrames: Mood.WARN,
    events.SupervisorStopping: Mood.WARN,
    events.SupervisorStarted: Mood.GOOD,
    events.ReplicaReady: Mood.GOOD,
    events.ReplicaReadmitted: Mood.GOOD,
    events.ReplicaState: Mood.DIM,
}
TROUBLE = frozenset({Mood.BAD, Mood.OUT, Mood.WARN})
"""What somebody should look at."""
EVENT_GLYPHS = {Mood.BAD: "✗", Mood.OUT: "⊘", Mood.WARN: "▲", Mood.GOOD: "●"}


def event_mood(event: events.AnyEvent) -> Mood:
    """How serious an event is; of most that pass by, not at all."""
    if isinstance(event, events.DrainEnded) and event.cut:
        return Mood.WARN
    return _EVENT_MOODS.get(type(event), Mood.BUSY)
