"""The control groups of this process: where the files lie that limit what it may use (cgroups(7)).

Limits nest: a pod's limit binds its containers, so each ancestor of the process's group up to the mount point counts.
Both versions are read, since hybrid hosts mount both. What cannot be read or parsed is taken as "nothing stated here":
no file makes this module raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

_USUAL_V1 = {"cpu": ("cpu,cpuacct", "cpu"), "memory": ("memory",)}
"""Folders in which a controller's hierarchy usually is mounted."""


class Group(NamedTuple):
    """A group that binds this process. version: 1 or 2, which name their files differently."""

    folder: Path
    version: int


class _Mount(NamedTuple):
    """A mounted hierarchy: the group at its root, where it is seen, its version."""

    root: str
    point: Path
    version: int


def groups(controller: str, proc: Path = PROC, sys: Path = CGROUP) -> Iterator[Group]:
    """The groups that bind this process by a controller (`cpu`, `memory`), each before those above it.

    `proc` and `sys` stand for /proc and /sys/fs/cgroup.
    """
    own = _own(read(proc / "self" / "cgroup"), controller)
    mounts = _mounts(read(proc / "self" / "mountinfo"), controller, sys)
    for mount in mounts or _usual_mounts(controller, sys):
        for folder in _with_ancestors(mount, own.get(mount.version, "/")):
            yield Group(folder, mount.version)


def read(file: Path) -> str:
    """A file's text; none where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def _own(text: str, controller: str) -> dict[int, str]:
    """This process's group by cgroup version; the lines of `/proc/self/cgroup` are `id:controllers:path`."""
    own: dict[int, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if controller in controllers.split(","):
            own[1] = path
        elif number == "0" and not controllers:
            own[2] = path
    return own


def _mounts(text: str, controller: str, sys: Path) -> list[_Mount]:
    """The hierarchies in `/proc/self/mountinfo` that have the controller; columns as in proc_pid_mountinfo(5)."""
    mounts = []
    for line in text.splitlines():
        place, _, kind = line.partition(" - ")
        columns, kinds = place.split(" "), kind.split(" ")
        if len(columns) < 5 or len(kinds) < 3:
            continue
        version = _version(kinds[0], kinds[2], controller)
        if version:
            mounts.append(_Mount(columns[3], _below(sys, columns[4]), version))
    return mounts


def _version(fstype: str, options: str, controller: str) -> int:
    if fstype == "cgroup2":
        return 2
    return 1 if fstype == "cgroup" and controller in options.split(",") else 0


def _below(sys: Path, point: str) -> Path:
    """A mount point as seen from `sys`, the folder that stands for /sys/fs/cgroup."""
    place = PurePosixPath(point)
    return sys / place.relative_to(CGROUP) if place.is_relative_to(CGROUP) else Path(place)


def _usual_mounts(controller: str, sys: Path) -> list[_Mount]:
    """Where hierarchies usually are, for a /proc without a readable mountinfo."""
    return [_Mount("/", sys, 2), *(_Mount("/", sys / name, 1) for name in _USUAL_V1[controller])]


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
