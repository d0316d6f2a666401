"""How each state looks, and what goes on in it, in words: one table and one function a question. Pure.

The words are those of the control messages. Backoff and ejection are shown over `ready`, as the supervisor means them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

from supervisor.control.events import AnyEvent, Commanded
from supervisor.control.messages import DeploymentStatus, ReplicaStatus
from ui import looks
from ui.dashboard import words
from ui.dashboard.paint import Tone
from ui.looks import shown_state

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


def _in_tones(plain: Mapping[str, looks.Look]) -> dict[str, Look]:
    return {state: Look(look.glyph, Tone(look.mood), look.means) for state, look in plain.items()}


REPLICA_LOOKS = _in_tones(looks.REPLICA_LOOKS)
DEPLOYMENT_LOOKS = _in_tones(looks.DEPLOYMENT_LOOKS)
_UNKNOWN = Look("·", Tone.TEXT, "a state that this dashboard does not know")


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
    told = _TOLD.get(state)
    if told is not None:
        return told(replica)
    if replica.in_flight >= FULL_IN_FLIGHT:
        return f"full: {replica.in_flight} in flight"
    if replica.forward_age_s >= LONG_FORWARD_S:
        return f"a forward runs for {words.duration(replica.forward_age_s)}"
    return replica.reason


def _because(text: str | None) -> str:
    return f": {text}" if text else ""


def _draining(replica: ReplicaStatus) -> str:
    ceiling = replica.drain_ceiling_s or replica.in_state_s + replica.drain_left_s
    progress = f"{replica.in_flight} left, {replica.in_state_s:.0f} s of {ceiling:.0f}"
    return f"draining, {progress}{_because(replica.reason)}"


def _ejected(replica: ReplicaStatus) -> str:
    """The supervisor's own reason may say no more than the countdown."""
    because = "" if replica.reason.startswith("back in") else _because(replica.reason)
    return f"ejected, back in {words.duration(replica.ejected_s)}{because}"


def _backoff(replica: ReplicaStatus) -> str:
    return f"back in {words.duration(replica.backoff_s)}{_because(replica.reason) or ' after a failure'}"


_PHASES = {"starting": "starting", "loading": "loading weights", "warming": "warming up"}


def _coming_up(replica: ReplicaStatus) -> str:
    """One without a process waits for the weights that the replicas of a deployment share: its reason says no more."""
    since = words.duration(replica.in_state_s)
    if replica.state == "loading" and replica.managed and replica.pid is None:
        return f"loading shared weights, {since}"
    since = f"{_PHASES[replica.state]}, {since}"
    if replica.reason and replica.reason == replica.last_exit:
        return f"{since}, last exit: {replica.reason}"
    return f"{since}{_because(replica.reason)}"


def _restarting(replica: ReplicaStatus) -> str:
    when = f" in {words.duration(replica.restart_in_s)}" if replica.restart_in_s > 0 else ""
    return f"restarting{when}{_because(replica.reason or replica.last_exit)}"


def _since(replica: ReplicaStatus) -> str:
    return f"{replica.state} {words.duration(replica.in_state_s)}{_because(replica.reason)}"


def _stopped(replica: ReplicaStatus) -> str:
    return replica.reason or ("out by hand; restart brings it back" if replica.cordoned else "stopped")


_TOLD: dict[str, Callable[[ReplicaStatus], str]] = {
    "draining": _draining,
    "ejected": _ejected,
    "backoff": _backoff,
    "restarting": _restarting,
    "starting": _coming_up,
    "loading": _coming_up,
    "warming": _coming_up,
    "stopping": _since,
    "unresponsive": _since,
    "stopped": _stopped,
    "failed": lambda replica: f"failed{_because(replica.reason or replica.last_exit)}",
    "incompatible": lambda replica: f"incompatible{_because(replica.reason)}",
}


def goes_on_tone(replica: ReplicaStatus) -> Tone:
    """How serious that is. A ready replica is calm, unless it is full or a forward takes long."""
    state = shown_state(replica)
    if state != "ready":
        return replica_look(state).tone
    busy = replica.forward_age_s >= LONG_FORWARD_S or replica.in_flight >= FULL_IN_FLIGHT or replica.timeouts > 0
    return Tone.WARN if busy else Tone.DIM


def goes_on_in(deployment: DeploymentStatus) -> str:
    """What goes on with a deployment: how many serve and what the others do, its first warning. Not yet literal."""
    others = collections.Counter(shown_state(replica) for replica in deployment.replicas)
    others.pop("ready", None)
    counts = f"{deployment.ready_replicas} of {deployment.desired_replicas} ready"
    counts += "".join(f", {count} {state}" for state, count in others.items())
    return f"{counts}: {deployment.warnings[0]}" if deployment.warnings else counts


# ----------------------------------------------------------------------------------------------------- events

_EVENT_GLYPHS = {Tone(mood): glyph for mood, glyph in looks.EVENT_GLYPHS.items()} | {Tone.KEY: "›"}


def event_tone(event: AnyEvent) -> Tone:
    """How serious an event is; what somebody asked for stands out, too."""
    if isinstance(event, Commanded):
        return Tone.KEY
    mood = looks.event_mood(event)
    return Tone.TEXT if mood is looks.Mood.BUSY else Tone(mood)


def event_glyph(event: AnyEvent) -> str:
    """The same without colour."""
    return _EVENT_GLYPHS.get(event_tone(event), "·")
