"""What rows came to, so that a row that was computed before is not computed again (spec 10).

A row is known by the key that its backend gave it (`Row.key`): everything that its output depends on, and nothing else.
So rows meet across requests, batches and fields that only the answer depends on. Rows without a key are never kept.

The cache stands before the batcher. The golden check and the shadow passes of thread learning call the backend itself,
so they always compute.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Hashable
from typing import Any

from engine.backends.base import Row
from engine.lru import Recent

MOST_BYTES = 64 * 1024 * 1024
"""Bound of one replica's rows, keys included. 4096 short rows of 384 numbers are 8 MiB."""


class RowCache:
    """The outputs of the rows used last; `entries` 0: none."""

    def __init__(self, entries: int, most_bytes: int = MOST_BYTES) -> None:
        self._known: Recent[Hashable, Any] = Recent(entries, most_bytes)

    def find(self, row: Row) -> Any:
        """The output of a row like this one, as it was served; None where it has to be computed."""
        return None if row.key is None else self._known.get(row.key)

    def keep(self, row: Row, output: Any) -> None:
        """A row's output was served. A copy is kept: an output may be a view of its whole forward, or be used again."""
        if row.key is not None:
            self._known.put(row.key, copy.deepcopy(output), weigh(row.key) + weigh(output))


def weigh(value: Any) -> int:
    """About how many bytes a key or an output holds: an array, or numbers and texts in lists, tuples and dicts."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return sys.getsizeof(b"") + 100 + size
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(weigh, value.keys())) + sum(map(weigh, value.values()))
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(weigh, value))
    return sys.getsizeof(value)
