"""How much main memory this process may still take: what the kernel calls available, within its cgroups' limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from engine.cgroups import CGROUP, PROC, groups, read


class Room(NamedTuple):
    """What bounds this process's memory: the machine, or a control group. Bytes; `left` may be below zero."""

    left: int
    whole: int


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can be had without swapping; None where nothing says. The folders stand for /proc, /sys/fs/cgroup."""
    lefts = [room.left for room in rooms(proc, cgroup)]
    return max(0, min(lefts)) if lefts else _of_sysconf()


def rooms(proc: Path = PROC, cgroup: Path = CGROUP) -> list[Room]:
    """Everything that bounds this process's memory; empty where nothing says.

    A cgroup's page cache counts as free, because the kernel gives it up before it refuses memory.
    """
    return [*_of_machine(proc), *_of_cgroups(proc, cgroup)]


def _of_machine(proc: Path) -> Iterator[Room]:
    rows = (line.partition(":") for line in read(proc / "meminfo").splitlines())
    sizes = {name: int(value.split()[0]) * 1024 for name, _, value in rows if name in ("MemTotal", "MemAvailable")}
    if "MemAvailable" in sizes:
        yield Room(sizes["MemAvailable"], sizes.get("MemTotal", sizes["MemAvailable"]))


def _of_cgroups(proc: Path, cgroup: Path) -> Iterator[Room]:
    """What is left in the process's own group and in each one above it."""
    for folder, version in groups("memory", proc, cgroup):
        if version == 2:
            yield from _left(folder, "memory.max", "memory.current", "inactive_file")
        else:
            yield from _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(folder: Path, limit: str, usage: str, cache: str) -> Iterator[Room]:
    most, used = read(folder / limit).strip(), read(folder / usage).strip()
    if not (most.isdecimal() and used.isdecimal()):  # "max", or no such file
        return
    stat = dict(line.split(" ", 1) for line in read(folder / "memory.stat").splitlines() if " " in line)
    yield Room(int(most) - int(used) + int(stat.get(cache, "0")), int(most))


def _of_sysconf() -> int | None:
    """Where there is no /proc: half of what is built in, for want of a better word."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return None
