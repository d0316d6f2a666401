"""What a replica's requests looked like lately: rate and latency percentiles, over a sliding window (spec 12, 14).

Latencies go into buckets that grow by a fixed ratio, so a percentile is right to within 5 % and recording one costs a
search among their bounds. The window is a ring of one-second slices.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable

WINDOW_S = 10
"""Seconds that rates and percentiles look back."""

_GROWTH = math.log(1.05)
_SMALLEST_S = 20e-6
_BUCKETS = 320
_BOUNDS = [_SMALLEST_S * math.exp(bucket * _GROWTH) for bucket in range(_BUCKETS)]
"""Upper bound of each bucket but the last, in seconds."""


class Traffic:
    """Counts by one-second slices. `now` is monotonic seconds, latencies are seconds."""

    __slots__ = ("_counts", "_since", "_slices", "_stamps")

    def __init__(self, now: float) -> None:
        self._since = now
        self._slices: list[dict[int, int]] = [{} for _ in range(WINDOW_S + 1)]
        self._counts = [0] * (WINDOW_S + 1)
        self._stamps = [-1] * (WINDOW_S + 1)

    def record(self, now: float, seconds: float) -> None:
        """One request ended `seconds` after it was taken."""
        second = int(now)
        slot = second % (WINDOW_S + 1)
        if self._stamps[slot] != second:
            self._stamps[slot] = second
            self._slices[slot] = {}
            self._counts[slot] = 0
        bucket = bisect.bisect_left(_BOUNDS, seconds)
        slice_ = self._slices[slot]
        slice_[bucket] = slice_.get(bucket, 0) + 1
        self._counts[slot] += 1

    def rate(self, now: float) -> float:
        """Requests a second over the whole seconds of the window."""
        second = int(now)
        past = range(max(second - WINDOW_S, int(self._since)), second)
        total = sum(self._counts[s % (WINDOW_S + 1)] for s in past if self._stamps[s % (WINDOW_S + 1)] == s)
        return total / max(1, len(past))

    def buckets(self, now: float) -> dict[int, int]:
        """Latency buckets of the window, for `percentile`."""
        oldest = int(now) - WINDOW_S
        return merged(slice_ for slice_, stamp in zip(self._slices, self._stamps, strict=True) if stamp >= oldest)


def merged(histograms: Iterable[dict[int, int]]) -> dict[int, int]:
    """Several histograms as one, to take percentiles over replicas or deployments."""
    total: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def percentile(buckets: dict[int, int], share: float) -> float | None:
    """The latency in seconds that `share` of the requests stayed below; None without requests."""
    total = sum(buckets.values())
    if not total:
        return None
    wanted = share * total
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            break
    return _SMALLEST_S * math.exp(bucket * _GROWTH)
