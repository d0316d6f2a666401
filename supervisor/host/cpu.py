"""Reads what CPU this process may really use: its affinity and every cgroup quota above it (spec 9).

A container rarely owns the machine it runs on, so the host's core count is never the answer where less is
allowed. Of nested quotas the tightest one wins (`engine.cgroups`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.cgroups import CGROUP, PROC, groups, read
from supervisor.core.budget import Quota, effective_budget

AFFINITY = "affinity"


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """What this process may use.

    `cores`: the budget; `affinity`: cores allowed; `quota`: the tightest limit in cores, not rounded, None
    where there is none; `source`: "affinity", or the file of the quota that sets the budget.
    """

    cores: int
    affinity: int
    quota: float | None
    source: str


class _Limit(NamedTuple):
    quota: Quota
    file: Path


def affinity_cores() -> tuple[int, ...]:
    """Logical cores this process may run on, ascending; all where the platform knows no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_flags(proc: Path = PROC) -> frozenset[str]:
    """Flags of the first CPU in /proc/cpuinfo; empty where there are none (Arm, macOS)."""
    for line in read(proc / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def cpu_budget(proc: Path = PROC, sys: Path = CGROUP, affinity: Sequence[int] | None = None) -> CpuBudget:
    """The CPU budget of this process.

    `proc` and `sys` stand for /proc and /sys/fs/cgroup; `affinity`: the allowed cores, unset: ask the kernel.
    """
    allowed = len(affinity_cores() if affinity is None else affinity)
    limits = list(_limits(proc, sys))
    cores = effective_budget(allowed, [limit.quota for limit in limits])
    tightest = min(limits, key=lambda limit: limit.quota.cores, default=None)
    if tightest is None:
        return CpuBudget(cores, allowed, None, AFFINITY)
    source = str(tightest.file) if cores < allowed else AFFINITY
    return CpuBudget(cores, allowed, tightest.quota.cores, source)


def _limits(proc: Path, sys: Path) -> Iterator[_Limit]:
    for folder, version in groups("cpu", proc, sys):
        limit = _limit_of_v2(folder) if version == 2 else _limit_of_v1(folder)
        if limit is not None:
            yield limit


def _limit_of_v2(folder: Path) -> _Limit | None:
    """`cpu.max`: `<quota or max> <period>`."""
    file = folder / "cpu.max"
    words = read(file).split()
    return _limit(words[0], words[1], file) if len(words) == 2 else None


def _limit_of_v1(folder: Path) -> _Limit | None:
    """`cpu.cfs_quota_us` (-1: none) and `cpu.cfs_period_us`."""
    file = folder / "cpu.cfs_quota_us"
    return _limit(read(file).strip(), read(folder / "cpu.cfs_period_us").strip(), file)


def _limit(quota: str, period: str, file: Path) -> _Limit | None:
    limit = Quota(_number(quota), _number(period))
    return _Limit(limit, file) if min(limit) > 0 else None


def _number(word: str) -> int:
    """A positive number of microseconds; 0 for "max", -1 and whatever else states no limit."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else 0
