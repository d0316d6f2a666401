"""All replicas of all deployments: what is wanted, what exists, and one reconcile between them (spec 8).

Every change ends here: a scale, a drain by hand, a restart, a crash, a reload and a shutdown each alter what is
wanted or what exists, and `_reconcile` asks `core.reconcile.plan` what is left to do. It is asked again whenever a
slot moves.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.messages import Card
from supervisor import names
from supervisor.config.schema import Config, Deployment, Placement
from supervisor.control.events import (
    AnyEvent,
    EventLog,
    RollStopped,
    Scaled,
    TemplateEvent,
    Warned,
)
from supervisor.control.messages import CommandRefused
from supervisor.core import budget, placement, reconcile
from supervisor.core.compatibility import SetLimits, differences
from supervisor.core.dispatch import Pool
from supervisor.core.durations import Durations
from supervisor.core.ejection import Policy
from supervisor.core.lifecycle import AT_REST, IN_ROTATION, State
from supervisor.core.pulse import Pulse
from supervisor.exchanges import Exchanges, Lane
from supervisor.group import Group
from supervisor.host.logs import LogLine, LogThread, ReplicaLog, RotatingLog, log_file
from supervisor.host.memory import memory_is_short
from supervisor.host.processes import Orphans
from supervisor.host.template import TemplateLauncher
from supervisor.host.usage import GroupMeter
from supervisor.links.http import HttpLink
from supervisor.links.zeromq import EngineLink
from supervisor.slots.attached import AttachedSlot
from supervisor.slots.base import AttachedMake, Intent, Make, ManagedMake, Slot
from supervisor.slots.command import CommandSlot
from supervisor.slots.making import Machine, make
from supervisor.slots.managed import ManagedSlot
from supervisor.verdicts import Verdicts

TICK_S = 1.0


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What the fleet is given: the sockets, folders and facts of this machine."""

    link: EngineLink
    http_link: HttpLink
    machine: Machine
    logs: Path
    log_thread: LogThread
    on_log: Callable[[list[LogLine]], None]


class Fleet:
    """The deployments. Implements `slots.base.Home`."""

    def __init__(self, events: EventLog, around: Surroundings) -> None:
        self.groups: dict[str, Group] = {}
        self.events = events
        self.link = around.link
        self.http_link = around.http_link
        self.launcher = TemplateLauncher(self._on_template_output, self._on_template)
        self.launcher.on_empty = self._check_empty
        self.template_logs: dict[str, ReplicaLog] = {}
        self.verdicts = Verdicts(self.groups, events)
        self.exchanges = Exchanges(self.verdicts.take)
        self.meter = GroupMeter()
        self.stopping = False
        self.on_empty: Callable[[], None] = lambda: None
        self._around = around
        self._born = 0
        self._orphans = Orphans()
        self._loop = asyncio.get_running_loop()
        self._pulse = Pulse(TICK_S, time.monotonic())
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    # --------------------------------------------------------------------------------------------- what is wanted

    def apply(self, config: Config) -> list[str]:
        """Make the document the desired state; a line for each deployment that changes. Raises StokerError."""
        machine = self._around.machine
        wanted = {
            name: [make(deployment, place, machine, deployment.replicas) for place in deployment.replicas]
            for name, deployment in config.deployments.items()
        }
        before = {name: [item.identity for item in group.wanted] for name, group in self.groups.items()}
        for name, deployment in config.deployments.items():
            self._adopt(deployment, wanted[name])
        for name in list(self.groups):
            if name not in config.deployments:
                self._remove(self.groups[name])
        after = {name: [item.identity for item in items] for name, items in wanted.items()}
        return reconcile.differences(before, after)

    def scale(self, name: str, count: int, by: str) -> Group:
        """Ask for `count` replicas; the last asked number wins. Raises CommandRefused."""
        group = self.check_scale(name, count)
        if group.before_trial is not None:
            self._place(group, placement.resize(group.before_trial, count), by)
        elif count < len(group.wanted):
            self._place(group, self._without_victims(group, len(group.wanted) - count), by)
        else:
            self._place(group, placement.resize(group.placements, count), by)
        group.before_trial = None
        return group

    def trial(self, name: str, count: int | None, caller: bytes) -> Group:
        """`count` replicas for a measurement, at the places of the real ones; None: the real ones again.

        A scale or a reload ends the trial. Raises CommandRefused, also where somebody else's trial is under way: two
        would measure each other's numbers.
        """
        group = self.check_scale(name, len(self.group(name).placements) if count is None else count)
        if group.before_trial is not None and group.trial_of != caller:
            raise CommandRefused(
                f"somebody else tries numbers of replicas of {name} right now; wait until that is over, or end it with "
                f"`stoker scale {name} {len(group.lasting)}`"
            )
        real = group.lasting
        if count is not None:
            group.before_trial, group.trial_of = real, caller
            self._place(group, placement.resize(real, count), "trial")
        elif group.before_trial is not None:
            group.before_trial = None
            self._place(group, real, "the end of a trial")
        return group

    def abandon_trials(self, caller: bytes) -> None:
        """Whoever measured is gone: the real replicas again, unless those trials ended before."""
        for group in list(self.groups.values()):
            if group.before_trial is not None and group.trial_of == caller and not self.stopping:
                real, group.before_trial = group.before_trial, None
                self._place(group, real, "the end of a trial: whoever measured is gone")

    def check_scale(self, name: str, count: int) -> Group:
        """The deployment, if it may have that many replicas. Raises CommandRefused."""
        group = self.group(name)
        if self.stopping:
            raise CommandRefused("the supervisor is stopping", "stopping")
        if group.is_removed:
            raise CommandRefused(f"{name} was removed by a reload: its last replicas drain", "not_found")
        if group.deployment.attached:
            raise CommandRefused(f"{name} is attached to servers that Stoker does not start; it cannot be scaled")
        try:
            placement.check_count(count)
        except placement.PlacementError as error:
            raise CommandRefused(str(error), "invalid") from error
        return group

    def drain(self, slot: Slot) -> None:
        """Take a replica out by hand; it stays out until it is restarted."""
        slot.drain(Intent.REST, "drained by hand")

    def restart(self, slot: Slot) -> None:
        """Drain a replica and bring its next incarnation up; at once where it does not run."""
        group = self.groups[slot.deployment]
        if not group.wants(slot):
            raise CommandRefused(f"{slot.name} is being replaced: it serves until its successor is ready", "replaced")
        if slot.state in AT_REST or slot.state is State.RESTARTING:
            slot.forgive()
        else:
            slot.record = type(slot.record)()
            slot.drain(Intent.AGAIN, "restart was asked for")

    def restart_rolling(self, group: Group) -> None:
        """Restart the replicas of a deployment one at a time, each ready before the next leaves."""
        group.rolling = [
            number
            for number, slot in sorted(group.slots.items())
            if slot.intent not in (Intent.LEAVE, Intent.REST) and group.wants(slot)
        ]
        group.rolled = None
        self._roll(group)

    def stop(self, why: str) -> None:
        """Drain everything; `on_empty` is called when the last process is gone."""
        self.stopping = True
        for group in self.groups.values():
            group.wanted = []
            group.rolling = []
            self._reconcile(group)
        self._check_empty()

    def cut_drains(self) -> None:
        """End every drain now."""
        for slot in self.slots():
            slot.cut_drain()

    def close(self) -> None:
        """Stop the clockwork; every process is gone."""
        self._ticker.cancel()

    # --------------------------------------------------------------------------------------------- finding

    @property
    def awake_since(self) -> float:
        """Since when this process has run without a pause."""
        return self._pulse.awake_since

    @property
    def served(self) -> dict[str, Group]:
        """The deployments of the document. One that a reload removed is none of them, though it still drains."""
        return {name: group for name, group in self.groups.items() if self.stopping or not group.is_removed}

    def group(self, name: str) -> Group:
        """A deployment by name. Raises CommandRefused."""
        if name not in self.groups:
            raise CommandRefused(names.no_deployment(name, self._names()), "not_found")
        return self.groups[name]

    def slot(self, name: str, incarnation: int | None = None) -> Slot:
        """A replica by name, and by incarnation where one is given. Raises CommandRefused."""
        for slot in self.slots():
            if slot.name == name:
                if incarnation is not None and slot.incarnation != incarnation:
                    raise CommandRefused(
                        f"{name}#{incarnation} is gone; {name} is at incarnation {slot.incarnation} now", "gone"
                    )
                return slot
        raise CommandRefused(names.no_replica(name, self._names()), "not_found")

    def _names(self) -> names.Fleet:
        return {name: [group.slots[at].name for at in sorted(group.slots)] for name, group in self.groups.items()}

    def slots(self) -> list[Slot]:
        """Every slot, by deployment and number."""
        return [group.slots[number] for group in self.groups.values() for number in sorted(group.slots)]

    def threads_in_use(self) -> int:
        """Intra-op threads of all managed CPU replicas that are wanted and not at rest."""
        return sum(self._cpu_threads())

    def warnings(self) -> list[str]:
        """What an operator should know of the whole."""
        sentence = budget.oversubscription(self._cpu_threads(), self._around.machine.cpu_cores)
        return [sentence] if sentence else []

    def _cpu_threads(self) -> list[int]:
        resting = collections.Counter(slot.identity for slot in self.slots() if slot.state in AT_REST)
        wanted = collections.Counter(item.identity for group in self.groups.values() for item in group.wanted)
        makes = {item.identity: item for group in self.groups.values() for item in group.wanted}
        return [
            item.spec.threads
            for identity in (wanted - resting).elements()
            if isinstance(item := makes[identity], ManagedMake) and item.spec.device == "cpu"
        ]

    # --------------------------------------------------------------------------------------------- slots.base.Home

    def publish(self, event: AnyEvent) -> None:
        self.events.publish(event)

    def on_registered(self, slot: Slot, card: Card | None) -> list[str]:
        group = self.groups[slot.deployment]
        limits = SetLimits(group.deployment.max_num_seqs, group.deployment.max_num_batched_tokens)
        generation = slot.generation
        baseline = group.baselines.get(generation) if group.has_siblings(slot) else None
        obstacles = differences(baseline, card, limits) if card is not None else []
        assert slot.target is not None
        group.lane.targets[slot.target.member] = slot.target
        group.lane.pool.members.append(slot.target.member)
        group.lane.pool.members.sort(key=lambda member: int(member.name.rpartition("/")[2]))
        if not obstacles and card is not None and baseline is None:
            group.baselines[generation] = card
        group.choose_cached()
        return obstacles

    def on_unpooled(self, slot: Slot) -> None:
        group = self.groups[slot.deployment]
        lane = group.lane
        if slot.target is not None and slot.target.member in lane.pool.members:
            lane.pool.members.remove(slot.target.member)
            del lane.targets[slot.target.member]
            group.choose_cached()

    def on_ready(self, slot: Slot, seconds: float, kind: str) -> None:
        group = self.groups[slot.deployment]
        group.starts.setdefault(kind, Durations()).record(seconds)

    def on_drained(self, slot: Slot, seconds: float) -> None:
        self.groups[slot.deployment].drains.record(seconds)

    def free_cores(self, slot: Slot, count: int) -> Sequence[int]:
        taken = {
            core
            for other in self.slots()
            if isinstance(other, ManagedSlot) and other is not slot
            for core in other.cores
        }
        free = [core for core in self._around.machine.cores if core not in taken]
        (cores,) = budget.spread(free, [count])
        return cores or ()

    def on_moved(self, slot: Slot) -> None:
        group = self.groups[slot.deployment]
        if slot.state is State.STOPPED and slot.intent is Intent.LEAVE:
            self._forget(group, slot)
        self._reconcile_soon(group)

    # --------------------------------------------------------------------------------------------- inside

    def _adopt(self, deployment: Deployment, wanted: list[Make]) -> None:
        group = self.groups.get(deployment.name)
        if group is None:
            lane = Lane(deployment.name, Pool(self.exchanges.tickets), 0.0, 0)
            group = self.groups[deployment.name] = Group(deployment, lane)
        group.deployment = deployment
        group.placements = list(deployment.replicas)
        group.before_trial = None
        detection = deployment.outlier_detection
        group.lane.pool.policy = Policy(
            detection.consecutive_timeouts,
            detection.base_ejection_ms / 1000,
            detection.longest_ejection_ms / 1000,
            detection.max_ejection_percent,
        )
        group.lane.timeout_s = deployment.timeout_ms / 1000
        group.lane.retries = deployment.retries
        self._want(group, wanted)
        self._reconcile(group)

    def _remove(self, group: Group) -> None:
        """The document has it no more: what it has drains, and nothing of it comes back."""
        group.wanted, group.placements, group.before_trial, group.rolling = [], [], None, []
        self._reconcile(group)

    def _place(self, group: Group, places: list[Placement], by: str) -> None:
        """Replicas at these places, and no others."""
        before = len(group.wanted)
        group.placements = places
        self._want(group, [self._make(group, place, places) for place in places])
        if len(places) != before:
            self.publish(Scaled(deployment=group.deployment.name, before=before, after=len(places), by=by))
        self._reconcile(group)

    def _want(self, group: Group, wanted: list[Make]) -> None:
        """These are the replicas that should be. Slots that stay take over what may change without a restart."""
        group.wanted = wanted
        group.lane.pool.desired = len(wanted)
        by_identity = {item.identity: item for item in wanted}
        for slot in group.slots.values():
            if slot.identity in by_identity:
                slot.remake(by_identity[slot.identity])
        group.choose_cached()

    def _make(self, group: Group, place: Placement, beside: Sequence[Placement]) -> Make:
        return make(group.deployment, place, self._around.machine, beside)

    def _without_victims(self, group: Group, count: int) -> list[Placement]:
        """The placements that are left when the `count` slots that cost least to lose go."""
        gone = [slot.identity for slot in reconcile.victims(group.have(), count)]
        left = list(group.placements)
        for identity in gone:
            for index in reversed(range(len(left))):
                if self._make(group, left[index], left).identity == identity:
                    del left[index]
                    break
        return left[: len(group.placements) - count]

    def _reconcile_soon(self, group: Group) -> None:
        """After the move that is being told has been finished."""
        self._loop.call_soon(self._reconcile, group)

    def _reconcile(self, group: Group) -> None:
        wanted = [item.identity for item in group.wanted]
        for action in reconcile.plan(wanted, group.have()):
            match action:
                case reconcile.Start():
                    self._start(group, action.number, group.wanted[action.wanted])
                case reconcile.Drain() | reconcile.Forget():
                    why = "the supervisor stops" if self.stopping else "not wanted any more"
                    group.slots[action.number].drain(Intent.LEAVE, why)
        self._roll(group)
        self.launcher.retain(
            [item.spec for one in self.groups.values() for item in one.wanted if isinstance(item, ManagedMake)]
        )
        name = group.deployment.name
        if not group.slots and not group.wanted and not self.stopping and self.groups.get(name) is group:
            del self.groups[name]
            if (log := self.template_logs.pop(f"{name}/template", None)) is not None:
                log.close()

    def _start(self, group: Group, number: int, item: Make) -> None:
        self._born += 1
        slot = group.slots[number] = self._slot(group.deployment.name, number, item)
        slot.start()

    def _slot(self, deployment: str, number: int, item: Make) -> Slot:
        if isinstance(item, AttachedMake):
            return AttachedSlot(self, deployment, number, self._born, item)
        assert isinstance(item, ManagedMake)
        name = f"{deployment}/{number}"
        file = RotatingLog(log_file(self._around.logs, name), self._on_log_problem)
        log = ReplicaLog(name, self._around.log_thread.sink(file), self._around.on_log)
        kind = CommandSlot if item.spec.engine == "command" else ManagedSlot
        return kind(self, deployment, number, self._born, item, log)

    def _on_log_problem(self, message: str) -> None:
        """Called on the log thread."""
        self._loop.call_soon_threadsafe(self.publish, Warned(message=message))

    def _forget(self, group: Group, slot: Slot) -> None:
        if group.slots.get(slot.number) is slot:
            del group.slots[slot.number]
            group.restarts_of_the_gone += slot.restarts
            group.counts_of_the_gone.update(slot.counts)
            slot.close()
            living = {other.generation for other in group.slots.values()}
            group.baselines = {key: card for key, card in group.baselines.items() if key in living}
        self._check_empty()

    def _check_empty(self) -> None:
        """When stopping: the last slot lets the templates go, the last template ends it."""
        if not self.stopping or any(group.slots for group in self.groups.values()):
            return
        self.launcher.retain([])
        if not self.launcher.pids:
            self._loop.call_soon(self.on_empty)

    def _on_template(self, artifact: str, what: str) -> None:
        self.publish(TemplateEvent(artifact=artifact, what=what))

    def _on_template_output(self, name: str, data: bytes) -> None:
        log = self.template_logs.get(name)
        if log is None:
            file = RotatingLog(log_file(self._around.logs, name), self._on_log_problem)
            log = ReplicaLog(name, self._around.log_thread.sink(file), self._around.on_log)
            self.template_logs[name] = log
        log.feed(data, time.time(), time.monotonic())

    def _roll(self, group: Group) -> None:
        """The next step of a rolling restart: the last one is back and ready before the next one leaves."""
        while group.rolling:
            current = group.slots.get(group.rolled) if group.rolled is not None else None
            if current is not None and current.intent is not Intent.LEAVE:
                if current.state is State.FAILED or current.state is State.INCOMPATIBLE:
                    group.rolling.clear()
                    self.publish(RollStopped(deployment=group.deployment.name, replica=current.name))
                    return
                if current.state not in IN_ROTATION | AT_REST or current.intent is Intent.AGAIN:
                    return
            group.rolled = group.rolling.pop(0)
            slot = group.slots.get(group.rolled)
            if slot is not None and slot.intent is not Intent.LEAVE and group.wants(slot):
                self.restart(slot)

    def _tick(self) -> None:
        now = time.monotonic()
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        if self._pulse.beat(now):
            for slot in self.slots():
                slot.tick(now)
            self.launcher.tick(now, memory_is_short())
        self._orphans.take_in()
        self.meter.look()
