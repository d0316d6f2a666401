"""Durations counted into fixed bounds, as Prometheus wants them: cumulative since the start."""

from __future__ import annotations

import bisect

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds; one more bucket holds what is longer."""


class Durations:
    """A histogram of seconds."""

    __slots__ = ("_buckets", "_sum")

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self._buckets[bisect.bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def prometheus(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets by upper bound, and the sum."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._buckets, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets, self._sum
