"""Memory and CPU time of whole process groups, read from outside: for servers that tell no heartbeat (spec 12).

One scan of /proc a second for all groups together, on a thread of its own: a machine may have thousands of processes,
and the event loop has better things to do. Where there is no /proc nothing is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
"""Kernel ticks a second, in which CPU times are counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a group uses now: resident memory, and the cores that it was busy on since it was looked at before.

    Pages that its processes share count once for each of them, as in `ps`.
    """

    rss_bytes: int
    cpu_share: float


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """A group at one moment. cpu_s: by process (its number, and its start, since numbers come again)."""

    at: float
    rss_bytes: int = 0
    cpu_s: Mapping[tuple[int, int], float] = dataclasses.field(default_factory=dict)


class GroupMeter:
    """Measures the groups that are watched, each time it is told to look."""

    def __init__(self) -> None:
        self._told: dict[int, Callable[[Usage], None]] = {}
        self._before: dict[int, Reading] = {}
        self._looking: asyncio.Task[None] | None = None

    def watch(self, group: int, on_usage: Callable[[Usage], None]) -> None:
        """Tell of that group from now on."""
        self._told[group] = on_usage

    def forget(self, group: int) -> None:
        """Nobody wants to know of it any more."""
        self._told.pop(group, None)
        self._before.pop(group, None)

    def look(self) -> None:
        """Measure all of them now, unless there are none or the last look is not over."""
        if self._told and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        readings = await asyncio.to_thread(read_groups, frozenset(self._told))
        for group, reading in readings.items():
            if group not in self._told:
                continue
            before, self._before[group] = self._before.get(group), reading
            self._told[group](Usage(reading.rss_bytes, 0.0 if before is None else share(before, reading)))


def share(before: Reading, after: Reading) -> float:
    """Cores that a group was busy on between two readings. What a process used that ended in between is not known."""
    used = sum(cpu - before.cpu_s.get(process, 0.0) for process, cpu in after.cpu_s.items())
    return max(0.0, used / (after.at - before.at)) if after.at > before.at else 0.0


def read_groups(groups: Collection[int]) -> dict[int, Reading]:
    """A reading of each group that has a process."""
    at = time.monotonic()
    memory: dict[int, int] = {}
    cpu: dict[int, dict[tuple[int, int], float]] = {}
    for pid, fields in _stats():
        group = int(fields[2])
        if group in groups:
            memory[group] = memory.get(group, 0) + int(fields[21]) * PAGE_BYTES
            cpu.setdefault(group, {})[pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / TICKS
    return {group: Reading(at, memory[group], cpu[group]) for group in memory}


def _stats() -> Iterator[tuple[int, list[bytes]]]:
    """Each process with its fields of /proc/PID/stat from the third on (proc_pid_stat(5)); none elsewhere."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError), open(f"/proc/{entry.name}/stat", "rb") as stat:
                    yield int(entry.name), stat.read().rpartition(b")")[2].split()
