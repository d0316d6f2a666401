"""The fleet as status shows it: rows made from the live objects at the moment of asking (spec 12).

The counts of a deployment come from the very rows that are shown beside them, never from a second look.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

import psutil

from supervisor.control.events import uncertified
from supervisor.control.messages import (
    WITHHELD,
    DeploymentStatus,
    DeviceStatus,
    EjectionStatus,
    Inventory,
    ReplicaDetails,
    ReplicaStatus,
    ResultCacheStatus,
    SupervisorStatus,
    Totals,
)
from supervisor.core.ejection import Outcome, Standing
from supervisor.core.lifecycle import COMING_UP, State
from supervisor.core.traffic import merged, percentile
from supervisor.fleet import Fleet
from supervisor.group import Group
from supervisor.host.device_watch import DeviceWatch
from supervisor.host.devices import Device, list_devices
from supervisor.slots.base import Facts, Slot

FAILURES = (Outcome.FAILED, Outcome.CALLER_TIMEOUT, Outcome.DEPLOYMENT_TIMEOUT)


@dataclasses.dataclass(frozen=True)
class Identity:
    """What status says of the supervisor itself and does not change while it runs."""

    name: str
    version: str
    pid: int
    listen: str
    started: float
    cpu_cores: int
    config: str | None
    log_dir: str | None


class InventoryMaker:
    """Makes inventories of one fleet. `state`: what the supervisor is doing, in a word. look: reads the devices."""

    def __init__(
        self,
        fleet: Fleet,
        identity: Identity,
        devices: Sequence[Device],
        state: Callable[[], str],
        look: Callable[[], Sequence[Device]] = lambda: list_devices().devices,
    ) -> None:
        self._fleet = fleet
        self._identity = identity
        self._devices = DeviceWatch(devices, look)
        self._state = state
        self._process = psutil.Process()
        self._process.cpu_percent()

    def make(self) -> Inventory:
        """The inventory now."""
        now = time.monotonic()
        groups = self._fleet.groups.values()
        deployments = [deployment_status(group, now) for group in groups]
        return Inventory(
            deployments=deployments,
            supervisor=self._supervisor(now),
            devices=[
                DeviceStatus(
                    id=device.id,
                    name=device.name,
                    memory_total_bytes=device.memory_total_bytes,
                    memory_used_bytes=device.memory_used_bytes,
                    utilisation=device.utilisation,
                    simulated=device.simulated,
                )
                for device in self._devices.now(now)
            ],
            warnings=self._fleet.warnings(),
            totals=totals(groups, deployments, now),
        )

    def _supervisor(self, now: float) -> SupervisorStatus:
        memory = psutil.virtual_memory()
        identity = self._identity
        return SupervisorStatus(
            name=identity.name,
            version=identity.version,
            pid=identity.pid,
            listen=identity.listen,
            state=self._state(),
            uptime_s=now - identity.started,
            rss_bytes=self._process.memory_info().rss,
            cpu_percent=self._process.cpu_percent(),
            cpu_budget=identity.cpu_cores,
            cpu_threads_used=self._fleet.threads_in_use(),
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.total - memory.available,
            config=identity.config,
            log_dir=identity.log_dir,
            last_event=self._fleet.events.last_seq,
        )


def totals(groups: Iterable[Group], rows: Sequence[DeploymentStatus], now: float) -> Totals:
    """Everything together: counts of the rows, percentiles of all requests."""
    buckets = merged(_buckets(group, now) for group in groups)
    return Totals(
        requests_per_s=sum(row.requests_per_s for row in rows),
        p50_ms=_ms(percentile(buckets, 0.5)),
        p99_ms=_ms(percentile(buckets, 0.99)),
        in_flight=sum(replica.in_flight for row in rows for replica in row.replicas),
        requests=sum(row.requests for row in rows),
        failures=sum(row.failures for row in rows),
    )


def deployment_status(group: Group, now: float) -> DeploymentStatus:
    """A deployment with its rows. What its result cache answered counts here, and in no row: no replica had it."""
    rows = [replica_status(group.slots[number], now) for number in sorted(group.slots)]
    deployment = group.deployment
    cache = group.lane.cache
    buckets = _buckets(group, now)
    ready = sum(1 for row in rows if row.state == State.READY)
    desired = len(group.placements) if group.wanted or deployment.attached else 0
    card, gone = group.card, group.counts_of_the_gone
    return DeploymentStatus(
        name=deployment.name,
        artifact=deployment.artifact,
        engine=deployment.engine_args.engine,
        task=card.task if card is not None else deployment.engine_args.task,
        state="ready" if ready and ready >= desired else ("degraded" if ready else "unavailable"),
        desired_replicas=desired,
        ready_replicas=ready,
        restarts=sum(row.restarts for row in rows) + group.restarts_of_the_gone,
        requests_per_s=sum(row.requests_per_s for row in rows) + cache.traffic.rate(now),
        p50_ms=_ms(percentile(buckets, 0.5)),
        p99_ms=_ms(percentile(buckets, 0.99)),
        requests=sum(row.requests for row in rows) + cache.hits + gone.total(),
        failures=sum(row.failures for row in rows)
        + sum(group.lane.counts.values())
        + sum(gone[one] for one in FAILURES),
        limits={
            "max_num_seqs": deployment.max_num_seqs,
            "max_num_batched_tokens": deployment.max_num_batched_tokens,
            "timeout_ms": deployment.timeout_ms,
        },
        warnings=_warnings(deployment.name, rows),
        replicas=rows,
        result_cache=ResultCacheStatus(
            active=cache.member is not None,
            entries=len(cache),
            bytes=cache.held_bytes,
            hits=cache.hits,
            misses=cache.misses,
        ),
        retries=deployment.retries,
    )


def _buckets(group: Group, now: float) -> dict[int, int]:
    """Latencies of all requests of a deployment that were answered lately."""
    every = [slot.traffic for slot in group.slots.values()]
    return merged(traffic.buckets(now) for traffic in [*every, group.lane.cache.traffic])


def _warnings(deployment: str, rows: Sequence[ReplicaStatus]) -> list[str]:
    if any(row.thread_table is not None and row.thread_table.certified is False for row in rows):
        return [f"threads_uncertified: it {uncertified(deployment)}"]
    return []


def replica_status(slot: Slot, now: float) -> ReplicaStatus:
    """A replica's row. A ready one that is ejected or backs off says so as its state."""
    target, facts = slot.target, slot.facts(now)
    beat = facts.heartbeat
    state, reason, ejected_s, backoff_s = shown_state(slot, facts, now)
    buckets = slot.traffic.buckets(now)
    return ReplicaStatus(
        name=slot.name,
        deployment=slot.deployment,
        incarnation=slot.incarnation,
        pid=facts.pid,
        device=facts.device,
        state=state,
        reason=reason,
        in_flight=target.member.in_flight if target is not None else 0,
        outstanding_bytes=target.member.outstanding_bytes if target is not None else 0,
        restarts=slot.restarts,
        threads=facts.threads,
        rss_bytes=facts.rss_bytes,
        gpu_bytes=beat.gpu_bytes if beat is not None else 0,
        cpu_percent=facts.cpu_share * 100,
        requests_per_s=slot.traffic.rate(now),
        p50_ms=_ms(percentile(buckets, 0.5)),
        p99_ms=_ms(percentile(buckets, 0.99)),
        requests=sum(slot.counts.values()),
        failures=sum(slot.counts[outcome] for outcome in FAILURES),
        age_s=facts.age_s,
        in_state_s=now - slot.since,
        forward_age_s=beat.forward_age_s if beat is not None else 0.0,
        queued_rows=beat.queued_rows if beat is not None else 0,
        engine_in_flight=beat.in_flight if beat is not None else 0,
        cancelled_rows=beat.cancelled_rows if beat is not None else 0,
        forwards=beat.forwards if beat is not None else 0,
        rows=beat.rows if beat is not None else 0,
        tokens=beat.tokens if beat is not None else 0,
        cached_rows=beat.cached_rows if beat is not None else 0,
        busy_s=beat.busy_s if beat is not None else 0.0,
        backoff_s=backoff_s,
        ejected_s=ejected_s,
        timeouts=target.member.standing.timeouts if target is not None else 0,
        withheld=target.member.standing.withheld if target is not None else None,
        drain_left_s=_left(slot.drain_until, now),
        drain_ceiling_s=slot.drain_until - slot.since if slot.drain_until is not None else 0.0,
        restart_in_s=_left(slot.restart_at, now) if slot.state is State.RESTARTING else 0.0,
        cordoned=slot.is_cordoned,
        managed=slot.managed,
        endpoint=facts.endpoint,
        started_by=slot.started_by,
        ready_after_s=slot.ready_after_s,
        last_exit=slot.last_exit,
        last_lines=slot.last_lines,
        card=slot.card,
        limits=slot.card.limits if slot.card is not None else {},
        cores=list(facts.cores),
        thread_table=facts.thread_table,
    )


def shown_state(slot: Slot, facts: Facts, now: float) -> tuple[str, str, float, float]:
    """State, reason, and the seconds that ejection and backoff still last."""
    target = slot.target
    if slot.state is not State.READY or target is None:
        return slot.state.value, slot.reason or _waiting(slot), 0.0, 0.0
    standing = target.member.standing
    if standing.is_ejected(now):
        left = _left(standing.ejected_until, now)
        return "ejected", "taken out by hand" if standing.by_hand else "kept timing out", left, 0.0
    if standing.is_backing_off(now):
        left = standing.backoff_until - now
        return "backoff", f"failure {standing.failures} in a row", 0.0, left
    if facts.heartbeat is not None and facts.heartbeat.forward_age_s >= 1.0:
        return slot.state.value, f"a forward runs for {facts.heartbeat.forward_age_s:.0f} s", 0.0, 0.0
    return slot.state.value, _streak(standing) or slot.reason, 0.0, 0.0


def _streak(standing: Standing) -> str:
    """Timeouts in a row, and why they have not taken it out."""
    if standing.timeouts < 1:
        return ""
    count = "a timeout" if standing.timeouts == 1 else f"{standing.timeouts} timeouts in a row"
    return count if standing.withheld is None else f"{count}, not ejected: {WITHHELD[standing.withheld]}"


def replica_details(group: Group, slot: Slot, now: float) -> ReplicaDetails:
    """A replica with what its row has no room for (`GetReplica`)."""
    return ReplicaDetails(
        replica=replica_status(slot, now),
        history=list(slot.history),
        ejection=_ejection(group, slot, now),
    )


def _ejection(group: Group, slot: Slot, now: float) -> EjectionStatus | None:
    if slot.target is None:
        return None
    standing, policy = slot.target.member.standing, group.lane.pool.policy
    return EjectionStatus(
        timeouts=standing.timeouts,
        needed=standing.needed(policy),
        ejected_s=_left(standing.ejected_until, now),
        by_hand=standing.is_ejected(now) and standing.by_hand,
        next_s=standing.next_length(policy),
        withheld=standing.withheld,
        ejections=group.ejections.get(slot.name, 0),
        readmissions=group.readmissions.get(slot.name, 0),
    )


def _waiting(slot: Slot) -> str:
    return slot.last_exit or "" if slot.state in COMING_UP else ""


def _left(until: float | None, now: float) -> float:
    return max(0.0, until - now) if until is not None else 0.0


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
