"""Memory: how much this machine has left, and how this process keeps what it uses again and again."""

from __future__ import annotations

import contextlib
import ctypes
import sys

import psutil

SHORT_SHARE = 0.10
"""Memory is short below this share of the whole."""
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


def memory_is_short() -> bool:
    """Whether little memory is available."""
    memory = psutil.virtual_memory()
    return memory.available < SHORT_SHARE * memory.total
