"""The life of a replica: one enum, one table of legal moves, and when a dead one is started again (spec 5).

    starting -> loading -> warming -> ready -> draining -> stopped
                                      |  ^
                              unresponsive            restarting: waits for its next incarnation
                                                      failed: given up until somebody restarts it
                                                      incompatible: alive, but gets no traffic

Backoff and ejection are not states of a life: a replica that is ready has them for a time (`core.ejection`), and status
shows them over `ready`.
"""

from __future__ import annotations

import dataclasses
import enum


class State(enum.StrEnum):
    """Where a slot's incarnation stands."""

    STARTING = "starting"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    INCOMPATIBLE = "incompatible"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RESTARTING = "restarting"
    FAILED = "failed"


_S = State
_ENDS = {_S.DRAINING, _S.STOPPING, _S.STOPPED, _S.RESTARTING, _S.FAILED}

MOVES: dict[State, frozenset[State]] = {
    _S.STARTING: frozenset({_S.LOADING, _S.WARMING, _S.READY, _S.INCOMPATIBLE, _S.UNRESPONSIVE} | _ENDS),
    _S.LOADING: frozenset({_S.WARMING, _S.READY, _S.INCOMPATIBLE, _S.UNRESPONSIVE} | _ENDS),
    _S.WARMING: frozenset({_S.READY, _S.INCOMPATIBLE, _S.UNRESPONSIVE} | _ENDS),
    _S.READY: frozenset({_S.UNRESPONSIVE, _S.INCOMPATIBLE} | _ENDS),
    _S.UNRESPONSIVE: frozenset({_S.READY} | _ENDS),
    _S.INCOMPATIBLE: frozenset({_S.READY, _S.UNRESPONSIVE} | _ENDS),
    _S.DRAINING: frozenset({_S.STOPPING, _S.STOPPED}),
    _S.STOPPING: frozenset({_S.STOPPED, _S.RESTARTING, _S.FAILED}),
    _S.STOPPED: frozenset({_S.STARTING}),
    _S.RESTARTING: frozenset({_S.STARTING, _S.STOPPED}),
    _S.FAILED: frozenset({_S.STARTING, _S.STOPPED}),
}
"""Every legal move. Anything else is a mistake of ours: an error in tests, a logged refusal in production."""

IN_ROTATION = frozenset({_S.READY})
"""May be given requests, where neither backoff nor ejection keeps it out."""
COMING_UP = frozenset({_S.STARTING, _S.LOADING, _S.WARMING})
"""Has a process that cannot serve yet."""
ALIVE = frozenset(COMING_UP | {_S.READY, _S.UNRESPONSIVE, _S.INCOMPATIBLE, _S.DRAINING, _S.STOPPING})
"""Has a process."""
AT_REST = frozenset({_S.STOPPED, _S.FAILED})
"""Has no process and gets none by itself."""


def is_legal(before: State, after: State) -> bool:
    """Whether the table allows this move."""
    return after in MOVES[before]


# ------------------------------------------------------------------------------------------------- restart policy

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
CALM_S = 120.0
"""An incarnation that ran this long clears what came before it."""
QUICK_EXIT_S = 30.0
"""An exit sooner than this, never having been ready, is a quick one."""
QUICK_EXITS = 3
FAILED_LOADS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What a slot's incarnations did so far, as far as the next restart depends on it."""

    next_delay_s: float = FIRST_DELAY_S
    quick_exits: int = 0
    failed_loads: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How an incarnation ended. `ran_s` in seconds since it was started."""

    ran_s: float
    was_ready: bool
    load_failed: bool = False
    final: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Restart:
    """Start the next incarnation after `delay_s` seconds."""

    delay_s: float
    record: Record


@dataclasses.dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave this slot alone until somebody restarts it."""

    why: str


def after_exit(record: Record, ending: Ending) -> Restart | GiveUp:
    """What follows an unexpected end: 1 s doubling to 60 s, reset after 2 min; given up after three bad starts."""
    if ending.final:
        return GiveUp("this artifact cannot be served, so it is not tried again")
    if ending.ran_s > CALM_S:
        record = Record()
    quick = record.quick_exits + 1 if ending.ran_s < QUICK_EXIT_S and not ending.was_ready else 0
    loads = record.failed_loads + 1 if ending.load_failed else (0 if ending.was_ready else record.failed_loads)
    if loads >= FAILED_LOADS:
        return GiveUp(f"failed to load {loads} times")
    if quick >= QUICK_EXITS:
        return GiveUp(f"exited {quick} times within {QUICK_EXIT_S:.0f} s of its start without becoming ready")
    delay = record.next_delay_s
    following = Record(min(delay * 2, LONGEST_DELAY_S), quick, loads)
    return Restart(delay, following)
