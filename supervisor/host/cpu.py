"""Reads what CPU this process may really use: its affinity and every cgroup quota above it (spec 9).

A container rarely owns the machine it runs on, so the host's core count is never the answer where less is
allowed. Quotas nest: a pod's limit binds its containers, so each ancestor of the process's cgroup up to the
mount point counts and the tightest one wins. Both cgroup versions are read, since hybrid hosts mount both.
What cannot be read or parsed is taken as "no limit stated here": no file makes this module raise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from supervisor.core.budget import Quota, effective_budget

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
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


class _Mount(NamedTuple):
    """A mounted hierarchy that can limit CPU: the group at its root, where it is seen, its version."""

    root: str
    point: Path
    version: int


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
    for line in _read(proc / "cpuinfo").splitlines():
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
    groups = _groups(_read(proc / "self" / "cgroup"))
    for mount in _mounts(_read(proc / "self" / "mountinfo"), sys) or _usual_mounts(sys):
        for folder in _with_ancestors(mount, groups.get(mount.version, "/")):
            limit = _limit_of_v2(folder) if mount.version == 2 else _limit_of_v1(folder)
            if limit is not None:
                yield limit


def _groups(text: str) -> dict[int, str]:
    """This process's group by cgroup version; the lines of `/proc/self/cgroup` are `id:controllers:path`."""
    groups: dict[int, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if "cpu" in controllers.split(","):
            groups[1] = path
        elif number == "0" and not controllers:
            groups[2] = path
    return groups


def _mounts(text: str, sys: Path) -> list[_Mount]:
    """The hierarchies in `/proc/self/mountinfo` that can limit CPU; columns as in proc_pid_mountinfo(5)."""
    mounts = []
    for line in text.splitlines():
        place, _, kind = line.partition(" - ")
        columns, kinds = place.split(" "), kind.split(" ")
        if len(columns) < 5 or len(kinds) < 3:
            continue
        version = _version(kinds[0], kinds[2])
        if version:
            mounts.append(_Mount(columns[3], _below(sys, columns[4]), version))
    return mounts


def _version(fstype: str, options: str) -> int:
    if fstype == "cgroup2":
        return 2
    return 1 if fstype == "cgroup" and "cpu" in options.split(",") else 0


def _below(sys: Path, point: str) -> Path:
    """A mount point as seen from `sys`, the folder that stands for /sys/fs/cgroup."""
    place = PurePosixPath(point)
    return sys / place.relative_to(CGROUP) if place.is_relative_to(CGROUP) else Path(place)


def _usual_mounts(sys: Path) -> list[_Mount]:
    """Where hierarchies usually are, for a /proc without a readable mountinfo."""
    return [_Mount("/", sys, 2), *(_Mount("/", sys / name, 1) for name in ("cpu,cpuacct", "cpu"))]


def _with_ancestors(mount: _Mount, group: str) -> Iterator[Path]:
    """The folder of `group` in this mount and each one above it up to the mount point.

    Without a cgroup namespace a container reads a path outside its mount: then the mount point is its group.
    """
    inside = PurePosixPath(group)
    root = PurePosixPath(mount.root)
    visible = inside.is_relative_to(root) and ".." not in inside.parts
    parts = inside.relative_to(root).parts if visible else ()
    for depth in range(len(parts), -1, -1):
        yield mount.point.joinpath(*parts[:depth])


def _limit_of_v2(folder: Path) -> _Limit | None:
    """`cpu.max`: `<quota or max> <period>`."""
    file = folder / "cpu.max"
    words = _read(file).split()
    return _limit(words[0], words[1], file) if len(words) == 2 else None


def _limit_of_v1(folder: Path) -> _Limit | None:
    """`cpu.cfs_quota_us` (-1: none) and `cpu.cfs_period_us`."""
    file = folder / "cpu.cfs_quota_us"
    return _limit(_read(file).strip(), _read(folder / "cpu.cfs_period_us").strip(), file)


def _limit(quota: str, period: str, file: Path) -> _Limit | None:
    limit = Quota(_number(quota), _number(period))
    return _Limit(limit, file) if min(limit) > 0 else None


def _number(word: str) -> int:
    """A positive number of microseconds; 0 for "max", -1 and whatever else states no limit."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
