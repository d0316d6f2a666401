"""Which rows share the next forward (spec 10): packed by length under the token budget, fair between requests.

Pure: it knows rows by their length, their request and their place in the line, and holds no tensor, thread or clock.

A forward over rows of unequal length costs `longest * rows` (padding), so rows of like length belong together. Each
forward is built around one row: the oldest of the request whose turn it is. Requests take turns, so a request of one
row waits for at most one forward a request ahead of it, however many rows those have. The rest of the forward is
filled with the waiting rows of any request whose length is nearest, as far as the budget goes.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class Batcher(Generic[Owner]):
    """The rows that wait for a forward, by the request that owns them.

    max_tokens: budget of one forward in padded tokens; a single row over it goes alone.
    max_rows: most rows of one forward.
    """

    def __init__(self, *, max_tokens: int, max_rows: int) -> None:
        if max_tokens < 1 or max_rows < 1:
            raise ValueError("a forward needs room for at least one token and one row")
        self.max_tokens = max_tokens
        self.max_rows = max_rows
        self._turns: dict[Owner, dict[int, tuple[int, int]]] = {}
        self._by_length: list[tuple[int, int, int, Owner]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._by_length)

    def add(self, owner: Owner, lengths: Sequence[int]) -> None:
        """Put a request's rows, given by their lengths in tokens, at the end of the line."""
        if owner in self._turns:
            raise ValueError(f"rows of {owner!r} wait already")
        rows: dict[int, tuple[int, int]] = {}
        for index, tokens in enumerate(lengths):
            self._arrivals += 1
            rows[index] = (tokens, self._arrivals)
            bisect.insort(self._by_length, (tokens, self._arrivals, index, owner))
        if rows:
            self._turns[owner] = rows

    def drop(self, owner: Owner) -> int:
        """Take a request's waiting rows out of the line; how many there were."""
        rows = self._turns.pop(owner, {})
        for tokens, arrival in rows.values():
            del self._by_length[bisect.bisect_left(self._by_length, (tokens, arrival))]
        return len(rows)

    def next_forward(self) -> list[tuple[Owner, int]]:
        """The rows of the next forward as (owner, index), taken out of the line; empty when nothing waits."""
        if not self._turns:
            return []
        owner, rows = next(iter(self._turns.items()))
        low, high = self._window(next(iter(rows.values())))
        chosen = [(row_owner, index) for _, _, index, row_owner in self._by_length[low:high]]
        del self._by_length[low:high]
        for row_owner, index in chosen:
            del self._turns[row_owner][index]
            if not self._turns[row_owner]:
                del self._turns[row_owner]
        if owner in self._turns:
            self._turns[owner] = self._turns.pop(owner)
        return chosen

    def _window(self, around: tuple[int, int]) -> tuple[int, int]:
        """Grow from one row to its nearest neighbours in length; the bounds in the list sorted by length."""
        rows = self._by_length
        low = bisect.bisect_left(rows, around)
        high = low + 1
        length = longest = around[0]
        while high - low < self.max_rows:
            grown = high - low + 1
            below = above = None
            if low > 0 and longest * grown <= self.max_tokens:
                below = length - rows[low - 1][0]
            if high < len(rows) and rows[high][0] * grown <= self.max_tokens:
                above = rows[high][0] - length
            if below is not None and (above is None or below <= above):
                low -= 1
            elif above is not None:
                longest = rows[high][0]
                high += 1
            else:
                break
        return low, high
