"""What each command of the control socket does: one function a verb, over the fleet (spec 13).

Every answer says what was accepted, not that it is done: a slow operation never holds up another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from engine.messages import Faults
from supervisor.config.problems import ConfigError
from supervisor.control.events import Commanded, Warned
from supervisor.control.messages import (
    Accepted,
    Answer,
    AnyCommand,
    CommandRefused,
    DrainReplica,
    Eject,
    GetLogs,
    GetReplica,
    GetStatus,
    Inventory,
    Kill,
    Lines,
    LogLine,
    Readmit,
    Reload,
    Restart,
    Scale,
    SetReplicaFaults,
    Status,
    Stop,
    Trial,
)
from supervisor.core import plurals
from supervisor.core.dispatch import Member
from supervisor.core.lifecycle import ALIVE, State
from supervisor.exchanges import Lane
from supervisor.fleet import Fleet
from supervisor.group import Group
from supervisor.host.logs import ReplicaLog
from supervisor.inventory import replica_details
from supervisor.slots.managed import ManagedSlot

MOST_LOG_LINES = 10_000
TEMPLATE = "/template"
"""After a deployment's name: its template, which has a log from its first line on."""
NOTHING_RESTARTS = "no replica starts or stops"
"""The answer to a reload that changes limits at the most."""


class Reread(NamedTuple):
    """What reading the config again came to: a line each. warnings: of what the file says and is not followed."""

    differences: list[str]
    warnings: list[str]


class Keeper(Protocol):
    """What commands ask of the supervisor itself."""

    def stop(self, why: str, now: bool) -> float:
        """Drain and leave; `now` cuts the drain. The seconds it takes at the worst."""

    async def reload(self) -> Reread:
        """Read the config again and make it the desired state. Raises StokerError."""

    def save_placements(self, deployment: str) -> asyncio.Future[str | None]:
        """Begin to write a deployment's replicas back to the document, within this call, so that no reload comes
        between the action and its edit; why that failed, None where it did not."""

    def attend(self, caller: bytes, on_gone: Callable[[], None]) -> None:
        """Call that when the caller's connection ends."""


class Commands:
    """Carries out commands."""

    def __init__(self, fleet: Fleet, inventory: Callable[[], Inventory], keeper: Keeper) -> None:
        self._fleet = fleet
        self._inventory = inventory
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()

    def handle(self, command: AnyCommand, caller: bytes) -> Answer | asyncio.Future[Answer]:
        """The answer to a command. caller: the connection that it came by. Raises CommandRefused."""
        match command:
            case GetStatus():
                return Status(inventory=self._inventory())
            case GetReplica():
                slot = self._fleet.slot(command.replica)
                return replica_details(self._fleet.group(slot.deployment), slot, time.monotonic())
            case GetLogs():
                return self._logs(command)
            case Scale():
                return self._scale(command)
            case Trial():
                return self._trial(command, caller)
            case DrainReplica():
                return self._drain(command)
            case Restart():
                return self._restart(command)
            case Kill():
                slot = self._fleet.slot(command.replica, command.incarnation)
                if slot.state not in ALIVE:
                    raise CommandRefused(f"{slot.name} is {slot.state}: it has no process to kill")
                self._told("kill", slot.name)
                retries = self._fleet.group(slot.deployment).deployment.retries
                loses = _what_a_kill_loses(slot.target.member.in_flight if slot.target is not None else 0, retries)
                slot.kill("killed by hand")
                return self._accepted(f"killing {slot.name}#{slot.incarnation}: {loses}")
            case Eject():
                return self._eject(command)
            case Readmit():
                return self._readmit(command)
            case SetReplicaFaults():
                managed = self._managed(command.replica)
                managed.set_faults(command.faults)
                self._told("faults", managed.name)
                cleared = command.faults == Faults()
                return self._accepted(f"{managed.name} has {'no faults any more' if cleared else 'new faults'}")
            case Reload():
                return self._loop.create_task(self._reload())
            case Stop():
                worst = self._keeper.stop("`stoker stop`", command.now)
                return self._accepted(f"stopping; gone in {worst:.0f} s at the latest")
            case other:
                raise CommandRefused(f"nothing is done for {type(other).__name__} here")

    async def _reload(self) -> Answer:
        try:
            differences, warnings = await self._keeper.reload()
        except ConfigError as error:
            raise CommandRefused(str(error), "config") from error
        told = [f"warning: {warning}" for warning in warnings]
        return self._accepted("\n".join([*(differences or [NOTHING_RESTARTS]), *told]))

    def _trial(self, command: Trial, caller: bytes) -> Accepted:
        name = command.deployment
        group = self._fleet.trial(name, command.replicas, caller)
        self._keeper.attend(caller, partial(self._fleet.abandon_trials, caller))
        what = " for a trial" if command.replicas is not None else ", no trial"
        return self._counted(f"{name}: {plurals.count(len(group.placements), 'replica')}{what}", group)

    def _scale(self, command: Scale) -> asyncio.Future[Answer]:
        group = self._fleet.group(command.deployment)
        if (command.replicas is None) == (command.delta is None):
            raise CommandRefused("scale takes a number of replicas or a difference, one of the two", "invalid")
        count = command.replicas if command.replicas is not None else len(group.lasting) + (command.delta or 0)
        self._fleet.scale(command.deployment, count, "command")
        answer = self._counted(f"{command.deployment}: {plurals.count(count, 'replica')} asked for", group)
        saving = self._keeper.save_placements(command.deployment)
        return self._loop.create_task(self._saved(command.deployment, answer, saving))

    async def _saved(self, deployment: str, answer: Accepted, saving: asyncio.Future[str | None]) -> Answer:
        """The answer to an action that is in force already, with whether the document says so, too."""
        problem = await saving
        if problem is None:
            return msgspec.structs.replace(answer, saved=True)
        self._fleet.publish(Warned(message=f"{deployment}: in force, but not saved to the config: {problem}"))
        return msgspec.structs.replace(answer, saved=False, text=f"{answer.text}; not saved: {problem}")

    def _drain(self, command: DrainReplica) -> Accepted:
        slot = self._fleet.slot(command.replica, command.incarnation)
        self._told("drain", slot.name)
        if slot.state is State.STOPPED:
            return self._accepted(f"{slot.name} is stopped already; `stoker restart {slot.name}` brings it back")
        in_flight = slot.target.member.in_flight if slot.target is not None else 0
        self._fleet.drain(slot)
        return self._accepted(f"draining {slot.name}#{slot.incarnation}, {in_flight} in flight")

    def _restart(self, command: Restart) -> Accepted:
        if command.target in self._fleet.groups:
            group = self._fleet.group(command.target)
            self._told("restart", command.target)
            self._fleet.restart_rolling(group)
            return self._counted(f"restarting {command.target}, one replica at a time", group)
        slot = self._fleet.slot(command.target, command.incarnation)
        self._told("restart", slot.name)
        self._fleet.restart(slot)
        return self._accepted(f"restarting {slot.name}")

    def _eject(self, command: Eject) -> Accepted:
        lane, member = self._in_rotation(command.replica, command.incarnation)
        self._told("eject", member.name)
        self._fleet.verdicts.eject(lane, member)
        return self._accepted(f"ejected {member.name}")

    def _readmit(self, command: Readmit) -> Accepted:
        lane, member = self._in_rotation(command.replica, command.incarnation)
        self._told("readmit", member.name)
        was_out = self._fleet.verdicts.readmit(lane, member)
        return self._accepted(f"readmitted {member.name}" if was_out else f"{member.name} was not ejected")

    def _in_rotation(self, name: str, incarnation: int | None) -> tuple[Lane, Member]:
        """A ready replica, as dispatch sees it, ejected or not. Raises CommandRefused."""
        slot = self._fleet.slot(name, incarnation)
        if slot.state is not State.READY or slot.target is None:
            raise CommandRefused(f"{name} is {slot.state}; only a ready replica is ejected or readmitted")
        return self._fleet.groups[slot.deployment].lane, slot.target.member

    def _managed(self, name: str) -> ManagedSlot:
        slot = self._fleet.slot(name)
        if not isinstance(slot, ManagedSlot):
            raise CommandRefused(f"{name} is attached: Stoker does not run it")
        return slot

    def _logs(self, command: GetLogs) -> Lines:
        logs = self._logs_of(command.replica, command.deployment)
        count = max(0, min(command.lines, MOST_LOG_LINES))
        lines = [line for log in logs for line in log.tail(count)]
        lines.sort(key=lambda line: line.time)
        rows = [
            LogLine(time=line.time, replica=line.replica, incarnation=line.incarnation, text=line.text)
            for line in lines[-count:]
        ]
        return Lines(lines=rows if count else [])

    def _logs_of(self, name: str | None, deployment: str | None) -> list[ReplicaLog]:
        """The log of a replica or template (`minilm/template`), a deployment's, or all. Raises CommandRefused."""
        templates = self._fleet.template_logs
        if name is not None and name.endswith(TEMPLATE) and name.removesuffix(TEMPLATE) in self._fleet.groups:
            return [templates[name]] if name in templates else []
        if name is not None:
            return [self._managed(name).log]
        if deployment is not None:
            self._fleet.group(deployment)
        managed = {slot.name: slot.log for slot in self._fleet.slots() if isinstance(slot, ManagedSlot)}
        every = {**managed, **templates}
        return [log for name, log in every.items() if deployment in (None, name.rpartition("/")[0])]

    def _told(self, command: str, target: str) -> None:
        self._fleet.publish(Commanded(command=command, target=target))

    def _accepted(self, text: str) -> Accepted:
        return Accepted(text=text, event=self._fleet.events.last_seq)

    def _counted(self, text: str, group: Group) -> Accepted:
        return Accepted(
            text=text,
            asked=len(group.placements),
            existing=len(group.slots),
            ready=group.ready,
            event=self._fleet.events.last_seq,
        )


def _what_a_kill_loses(in_flight: int, retries: int) -> str:
    """Of the exchanges of a replica that dies (spec 6)."""
    if in_flight == 0:
        return "nothing is in flight there"
    fate = "tried on another ready replica unless the answer has begun" if retries else "lost (retries: 0)"
    return f"{plurals.count(in_flight, 'exchange')} in flight there, {fate}"
