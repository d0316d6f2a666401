"""`--wait`: watches the inventory until what was asked for is done, cannot be done, or takes too long.

What an inventory means for a wait is judged by pure functions; one loop asks again after each event, at least
twice a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from engine.errors import StokerError
from supervisor.control.client import ControlClient
from supervisor.control.messages import DeploymentStatus, Inventory, ReplicaStatus, Subscribe, Subscribed
from supervisor.host.runtime import RuntimeDir
from ui.cli.picture import drain_left
from ui.cli.reach import ask, inventory_of
from ui.cli.say import progress, say
from ui.cli.units import count, duration

LOOK_S = 0.5
"""Longest pause between two looks at the inventory."""
GONE_LOOK_S = 0.05
"""Between two looks whether a stopping supervisor still holds its lock."""
GONE_ANSWER_S = 0.2
"""How long a supervisor that is leaving may take to say how far it is."""

CANNOT_COME_UP = frozenset({"failed", "incompatible"})
"""States that no replica leaves by itself for `ready`."""
NO_PROCESS = frozenset({"stopped", "failed", "restarting"})


class WaitFailed(StokerError):
    """What was waited for cannot happen any more, or did not in time."""


class Done(NamedTuple):
    words: str


class Wait(NamedTuple):
    """share: what is done, 0 to 1; None where that is not known."""

    words: str
    share: float | None = None


class Failed(NamedTuple):
    words: str


Verdict = Done | Wait | Failed
Judge = Callable[[Inventory], Verdict]


def scaled(deployment: str, wanted: int) -> Judge:
    """Done when so many replicas are ready and no other remains."""

    def judge(inventory: Inventory) -> Verdict:
        found = _deployment(inventory, deployment)
        if found is None:
            return Failed(f"{deployment} is not served any more")
        if found.desired_replicas != wanted:
            return Failed(f"{deployment} was asked for {count(found.desired_replicas, 'replica')} meanwhile")
        for replica in found.replicas:
            if (obstacle := _obstacle(replica)) is not None:
                return Failed(obstacle)
        surplus = len(found.replicas) - wanted
        if found.ready_replicas == wanted and surplus == 0:
            return Done(f"{deployment}: {found.ready_replicas} of {wanted} ready")
        share = min(found.ready_replicas, wanted) / max(wanted, len(found.replicas))
        return Wait(f"{deployment}: {found.ready_replicas} of {wanted} ready{_who_is_not(found)}", share)

    return judge


def served(inventory: Inventory) -> Verdict:
    """Done when every replica that is asked for is ready."""
    rows = inventory.deployments
    obstacles = [why for each in rows for row in each.replicas if (why := _obstacle(row)) is not None]
    if obstacles:
        return Failed("\n".join(obstacles))
    ready, wanted = sum(each.ready_replicas for each in rows), sum(each.desired_replicas for each in rows)
    late = [each for each in rows if each.ready_replicas < each.desired_replicas]
    words = [f"{each.name}: {each.ready_replicas} of {each.desired_replicas} ready" for each in late or rows]
    if not late:
        return Done(", ".join(words))
    return Wait(f"{', '.join(words)}{_who_is_not(late[0])}", ready / wanted)


def drained(replica: str, incarnation: int) -> Judge:
    """Done when that incarnation has no process any more."""

    def judge(inventory: Inventory) -> Verdict:
        row = _rows(inventory).get(replica)
        if row is None or row.incarnation != incarnation or row.state in NO_PROCESS:
            return Done(f"{replica}#{incarnation} is gone")
        if row.state == "draining":
            ceiling_s = row.in_state_s + row.drain_left_s
            return Wait(f"{replica} draining, {drain_left(row)}", row.in_state_s / ceiling_s if ceiling_s else None)
        return Wait(f"{replica} {row.state}")

    return judge


def restarted(before: Mapping[str, int]) -> Judge:
    """Done when each of these replicas (name to incarnation) is ready again in a later incarnation."""

    def judge(inventory: Inventory) -> Verdict:
        rows = _rows(inventory)
        left = []
        for name, incarnation in before.items():
            row = rows.get(name)
            if row is None:
                return Failed(f"{name} is gone")
            later = row.incarnation > incarnation
            if later and (obstacle := _obstacle(row)) is not None:
                return Failed(obstacle)
            if not (later and row.state == "ready"):
                left.append(row)
        done = len(before) - len(left)
        if not left:
            return Done(f"{count(done, 'replica')} restarted")
        doing = next((row for row in left if row.state != "ready"), left[0])
        return Wait(f"{done} of {len(before)} restarted, {doing.name} {doing.state}", done / len(before))

    return judge


def wait_until(client: ControlClient, judge: Judge, timeout_s: float) -> str:
    """Look until it is done; the words of its end. Raises WaitFailed, NotRunning, NoAnswer."""
    ask(client, Subscribe(), Subscribed)
    deadline = time.monotonic() + timeout_s
    notices = client.notices(LOOK_S)
    with _goes_on(), progress() as line:
        while True:
            verdict = judge(inventory_of(client))
            if isinstance(verdict, Done):
                return verdict.words
            if isinstance(verdict, Failed):
                raise WaitFailed(verdict.words)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WaitFailed(
                    f"not done after {duration(timeout_s)}: {verdict.words}; it goes on, see `stoker status`"
                )
            line.show(verdict.words, verdict.share)
            next(notices)


def wait_until_gone(runtime: RuntimeDir, timeout_s: float) -> None:
    """Look until no supervisor holds that name's lock. Raises WaitFailed."""
    deadline = time.monotonic() + timeout_s
    with _goes_on(), progress() as line:
        while runtime.running() is not None:
            if time.monotonic() > deadline:
                raise WaitFailed(f"{runtime.name!r} is not gone after {duration(timeout_s)}; it goes on leaving")
            line.show(_how_far(runtime))
            time.sleep(GONE_LOOK_S)


@contextlib.contextmanager
def _goes_on() -> Iterator[None]:
    """Ctrl-C ends the wait, and not what is waited for."""
    try:
        yield
    except KeyboardInterrupt:
        say("not waited for any longer; it goes on, see `stoker status`")
        raise


def _how_far(runtime: RuntimeDir) -> str:
    try:
        with ControlClient(str(runtime.control)) as client:
            rows = _rows(inventory_of(client, GONE_ANSWER_S)).values()
    except StokerError:
        return "stopping"
    left = [row for row in rows if row.state not in NO_PROCESS]
    in_flight = sum(row.in_flight for row in left)
    return f"stopping: {count(len(left), 'replica')} and {in_flight} in flight left"


def _rows(inventory: Inventory) -> dict[str, ReplicaStatus]:
    return {replica.name: replica for deployment in inventory.deployments for replica in deployment.replicas}


def _deployment(inventory: Inventory, name: str) -> DeploymentStatus | None:
    return next((each for each in inventory.deployments if each.name == name), None)


def _obstacle(replica: ReplicaStatus) -> str | None:
    """Why a replica does not become ready by itself, if it does not."""
    if replica.state in CANNOT_COME_UP:
        return f"{replica.name} {replica.state}: {replica.reason or replica.last_exit or 'no reason known'}"
    if replica.state == "stopped" and replica.cordoned:
        return f"{replica.name} was taken out by hand; `stoker restart {replica.name}` brings it back"
    return None


def _who_is_not(deployment: DeploymentStatus) -> str:
    """The replicas that are not ready, the first of them by name: `, primary/3 loading and 1 more`."""
    others = [replica for replica in deployment.replicas if replica.state != "ready"]
    if not others:
        return ""
    first = others[0]
    doing = f"draining, {drain_left(first)}" if first.state == "draining" else first.state
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f", {first.name} {doing}{more}"
