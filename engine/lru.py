"""The values used last, bounded in number and in bytes: what both result caches are made of (spec 10). Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

ENTRY_BYTES = 300
"""What an entry costs beside its key and value, as measured with CPython 3.11: its place in the table, two tuples."""


class Recent(Generic[Key, Value]):
    """At most `entries` values of at most `most_bytes` in all; the one that was not used for longest goes first."""

    def __init__(self, entries: int, most_bytes: int) -> None:
        self.held_bytes = 0
        self._entries = entries
        self._most_bytes = most_bytes
        self._known: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key) -> Value | None:
        """The value under a key, which counts as a use; None where there is none."""
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value; size: bytes of key and value. What would not fit alone is not kept, and drives nothing out."""
        self._drop(key)
        size += ENTRY_BYTES
        if self._entries < 1 or size > self._most_bytes:
            return
        self._known[key] = (value, size)
        self.held_bytes += size
        while len(self._known) > self._entries or self.held_bytes > self._most_bytes:
            self._drop(next(iter(self._known)))

    def _drop(self, key: Key) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.held_bytes -= known[1]
