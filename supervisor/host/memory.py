"""Memory: how much this machine has left, and how this process keeps what it uses again and again."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from engine.cgroups import CGROUP, PROC
from engine.host_memory import available_bytes, rooms
from engine.messages import MAX_BODY_BYTES

SHORT_SHARE = 0.10
"""Memory is short where less than this share of a whole is left."""
BODIES_SHARE = 0.25
"""Of the memory that is available at the start this share may be request bodies."""
LEAST_BODIES = 4
"""So many of the largest bodies may be held together where a quarter is less."""
LEAST_BODIES_SHARE = 0.5
"""They never take more than this share, but for one: else nobody could send it."""
KEPT_BYTES = 64 * 1024 * 1024
"""Freed memory at the end of the heap that is kept for the next request; more goes back to the system."""
LARGEST_ON_HEAP_BYTES = 32 * 1024 * 1024
"""Blocks up to this size come from the heap, the most that glibc allows."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Have the C library reuse memory of large bodies. By itself it gives it back after each request, and the next one
    pays 5 ms of page faults for 8 MB. Where that library is another one, nothing happens."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGEST_ON_HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Give the system what is free in the middle of the heap, too, which the C library by itself never does: one small
    object above it keeps gigabytes. The process stands still for it, 20 to 120 ms a GiB, on a thread too: that has
    the heap's lock, for which whoever wants more than 1 KB waits. So for once, when a peak is long over."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(KEPT_BYTES)


def memory_is_short(proc: Path = PROC, cgroup: Path = CGROUP) -> bool:
    """Whether little memory is left on this machine, or in a control group (a container's, a unit's) that bounds us.

    The folders stand for /proc and /sys/fs/cgroup.
    """
    bounds = rooms(proc, cgroup)
    if not bounds:  # no /proc
        memory = psutil.virtual_memory()
        return memory.available < SHORT_SHARE * memory.total
    return any(room.left < SHORT_SHARE * room.whole for room in bounds)


class BodyBound(NamedTuple):
    """How many bytes of large requests' bodies may be held together. told: how that came about, in words."""

    most: int
    told: str


def body_bound() -> BodyBound:
    """Told from what is available now."""
    available, least = available_bytes(), LEAST_BODIES * MAX_BODY_BYTES
    if available is None:
        return BodyBound(least, "how much memory is available could not be told")
    if (share := int(available * BODIES_SHARE)) >= least:
        return BodyBound(share, "a quarter of the memory that was available at the start")
    if (share := int(available * LEAST_BODIES_SHARE)) >= least:
        return BodyBound(least, "the least, where a quarter of the memory that was available at the start is less")
    if share > MAX_BODY_BYTES:
        return BodyBound(share, "half of the memory that was available at the start, which was little")
    return BodyBound(MAX_BODY_BYTES, "one body of the largest, since hardly any memory was available at the start")
