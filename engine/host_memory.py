"""How much main memory this process may still take: what the kernel calls available, within its cgroups' limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can be had without swapping; None where nothing says. The folders stand for /proc, /sys/fs/cgroup.

    A cgroup's page cache counts as free, because the kernel gives it up before it refuses memory.
    """
    rooms = [*_of_machine(proc), *_of_cgroups(proc, cgroup)]
    return max(0, min(rooms)) if rooms else _of_sysconf()


def _of_machine(proc: Path) -> Iterator[int]:
    for line in _read(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _of_cgroups(proc: Path, cgroup: Path) -> Iterator[int]:
    """What is left in the process's own group and in each one above it (cgroup v2, then v1)."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        if not controllers:
            for folder in _with_ancestors(cgroup, path):
                yield from _left(folder, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            for folder in _with_ancestors(cgroup / "memory", path):
                yield from _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _with_ancestors(mount: Path, group: str) -> Iterator[Path]:
    """A group's folder and those above it; those that this process does not see are not there, and say nothing."""
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _left(folder: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    most, used = _read(folder / limit).strip(), _read(folder / usage).strip()
    if not (most.isdecimal() and used.isdecimal()):  # "max", or no such file
        return
    stat = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    yield int(most) - int(used) + int(stat.get(cache, "0"))


def _of_sysconf() -> int | None:
    """Where there is no /proc: half of what is built in, for want of a better word."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
