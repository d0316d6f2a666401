"""Whether whoever judges others by their silence was there to hear them (spec 5). Pure.

A supervisor that did not run itself (stopped, its container paused, its machine without a turn for it) finds everybody
silent when it runs again: what they said waits unread, or they were paused with it. It listens before it judges; else
it would kill every replica at once.
"""

from __future__ import annotations

LATE_S = 2.0
"""Between two beats of a clockwork beyond their distance; more than that is no load, but a pause."""
LISTEN_S = 3.0
"""After a pause nobody is judged for this long; heartbeats come each second."""


class Pulse:
    """Of a clockwork that is started `now` and beats each `every_s` seconds."""

    def __init__(self, every_s: float, now: float) -> None:
        self._longest = every_s + LATE_S
        self._last = now
        self._listen_until = float("-inf")
        self.awake_since = now
        """When it began to run without a pause. What others did before that may have stood still, too: whatever is
        told of them counts from here at the most."""

    def beat(self, now: float) -> bool:
        """Whether others may be judged at this beat."""
        if now - self._last > self._longest:
            self._listen_until = now + LISTEN_S
            self.awake_since = now
        self._last = now
        return now >= self._listen_until
