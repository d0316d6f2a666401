"""Prometheus text from the live counters at the moment of a scrape (spec 12); the hot path only adds integers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from supervisor.core.lifecycle import State
from supervisor.fleet import Fleet
from supervisor.group import Group
from supervisor.slots.base import Slot

REPLICA = ("deployment", "replica")


class FleetCollector(Collector):
    """Reads a fleet and says what it found in Prometheus's terms. `bad_frames`: dropped frames by socket."""

    def __init__(self, fleet: Fleet, bad_frames: Callable[[], dict[str, int]]) -> None:
        self._fleet = fleet
        self._bad_frames = bad_frames

    def collect(self) -> Iterator[Metric]:
        """All families, each row from the slots that exist now."""
        yield self._requests()
        yield from self._durations()
        yield from self._gauges()
        yield from self._counters()
        yield from self._result_caches()
        frames = CounterMetricFamily("stoker_bad_frames", "Frames that were dropped, by socket.", labels=("socket",))
        for socket, count in self._bad_frames().items():
            frames.add_metric((socket,), count)
        yield frames

    def _slots(self) -> Iterator[tuple[Group, Slot]]:
        for group in self._fleet.groups.values():
            for slot in group.slots.values():
                yield group, slot

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "stoker_requests", "Exchanges that ended, by outcome.", labels=(*REPLICA, "outcome")
        )
        for group, slot in self._slots():
            for outcome, count in slot.counts.items():
                family.add_metric((group.deployment.name, slot.name, outcome.value), count)
        for group in self._fleet.groups.values():
            family.add_metric((group.deployment.name, "", "cached"), group.lane.cache.hits)
            for refusal, count in group.lane.counts.items():
                family.add_metric((group.deployment.name, "", refusal), count)
        return family

    def _durations(self) -> Iterator[Metric]:
        requests = HistogramMetricFamily(
            "stoker_request_duration_seconds", "From taking a request to its last byte.", labels=("deployment",)
        )
        drains = HistogramMetricFamily(
            "stoker_drain_seconds", "From a drain's beginning to its process told to go.", labels=("deployment",)
        )
        starts = HistogramMetricFamily(
            "stoker_start_seconds", "From a process's start to ready.", labels=("deployment", "kind")
        )
        for group in self._fleet.groups.values():
            name = group.deployment.name
            requests.add_metric((name,), *group.lane.durations.prometheus())
            drains.add_metric((name,), *group.drains.prometheus())
            for kind, durations in group.starts.items():
                starts.add_metric((name, kind), *durations.prometheus())
        yield requests
        yield drains
        yield starts

    def _gauges(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily("stoker_in_flight", "Exchanges open.", labels=REPLICA)
        outstanding = GaugeMetricFamily("stoker_outstanding_bytes", "Bytes of open requests.", labels=REPLICA)
        ready = GaugeMetricFamily("stoker_replica_ready", "1 while in rotation.", labels=REPLICA)
        memory = GaugeMetricFamily("stoker_replica_resident_bytes", "Resident memory.", labels=REPLICA)
        forward = GaugeMetricFamily("stoker_forward_age_seconds", "Age of the running forward.", labels=REPLICA)
        learned = GaugeMetricFamily(
            "stoker_threads_learned", "Fastest thread count by padded tokens.", labels=(*REPLICA, "range")
        )
        now = time.monotonic()
        for group, slot in self._slots():
            labels = (group.deployment.name, slot.name)
            target, facts = slot.target, slot.facts(now)
            beat, table = facts.heartbeat, facts.thread_table
            for row in table.ranges if table is not None else ():
                if row.learned is not None:
                    learned.add_metric((*labels, row.label), row.learned)
            in_flight.add_metric(labels, target.member.in_flight if target else 0)
            outstanding.add_metric(labels, target.member.outstanding_bytes if target else 0)
            serving = slot.state is State.READY and target is not None and not target.member.standing.is_ejected(now)
            ready.add_metric(labels, int(serving))
            memory.add_metric(labels, facts.rss_bytes)
            forward.add_metric(labels, beat.forward_age_s if beat else 0)
        yield from (in_flight, outstanding, ready, memory, forward, learned)

    def _counters(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily("stoker_restarts", "Restarts of a slot.", labels=REPLICA)
        ejections = CounterMetricFamily("stoker_ejections", "Ejections.", labels=REPLICA)
        readmissions = CounterMetricFamily("stoker_readmissions", "Returns from ejection.", labels=REPLICA)
        withheld = CounterMetricFamily(
            "stoker_ejections_withheld", "Ejections held back, by reason.", labels=("deployment", "reason")
        )
        forwards = CounterMetricFamily("stoker_forwards", "Forwards.", labels=REPLICA)
        busy = CounterMetricFamily("stoker_forward_seconds", "Seconds spent in forwards.", labels=REPLICA)
        rows = CounterMetricFamily("stoker_batch_rows", "Rows computed.", labels=REPLICA)
        tokens = CounterMetricFamily("stoker_batch_tokens", "Padded tokens computed.", labels=REPLICA)
        cached = CounterMetricFamily("stoker_cached_rows", "Rows known from before, not computed.", labels=REPLICA)
        nan = CounterMetricFamily("stoker_nan_outputs", "Answers with NaN or infinity, sent as 500.", labels=REPLICA)
        now = time.monotonic()
        for group, slot in self._slots():
            labels = (group.deployment.name, slot.name)
            restarts.add_metric(labels, slot.restarts)
            ejections.add_metric(labels, group.ejections.get(slot.name, 0))
            readmissions.add_metric(labels, group.readmissions.get(slot.name, 0))
            beat = slot.facts(now).heartbeat
            forwards.add_metric(labels, beat.forwards if beat else 0)
            busy.add_metric(labels, beat.busy_s if beat else 0)
            rows.add_metric(labels, beat.rows if beat else 0)
            tokens.add_metric(labels, beat.tokens if beat else 0)
            cached.add_metric(labels, beat.cached_rows if beat else 0)
            nan.add_metric(labels, beat.nan_outputs if beat else 0)
        for group in self._fleet.groups.values():
            for reason, count in group.withheld.items():
                withheld.add_metric((group.deployment.name, reason), count)
        yield from (restarts, ejections, readmissions, withheld, forwards, busy, rows, tokens, cached, nan)

    def _result_caches(self) -> Iterator[Metric]:
        labels = ("deployment",)
        hits = CounterMetricFamily("stoker_result_cache_hits", "Requests answered from the cache.", labels=labels)
        misses = CounterMetricFamily("stoker_result_cache_misses", "Requests that were not in it.", labels=labels)
        held = GaugeMetricFamily("stoker_result_cache_bytes", "Answers in it and their requests.", labels=labels)
        for group in self._fleet.groups.values():
            cache, name = group.lane.cache, (group.deployment.name,)
            hits.add_metric(name, cache.hits)
            misses.add_metric(name, cache.misses)
            held.add_metric(name, cache.held_bytes)
        yield from (hits, misses, held)


def exposition(fleet: Fleet, bad_frames: Callable[[], dict[str, int]]) -> Callable[[], bytes]:
    """A function that renders the metrics of a fleet as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(fleet, bad_frames))
    return lambda: generate_latest(registry)
