"""How long whoever ends a supervisor from outside waits for it before it kills (spec 8). Pure.

A service manager that is less patient than the supervisor cuts requests that a drain would have finished. So the
exported units do not guess: their grace follows from the drains of the config, by the one formula here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

LEAST_GRACE_S = 120
"""Never less, however short the drains are: a machine under load is slow to stop."""
BEFORE_DRAIN_S = 15
"""From the manager's word to the beginning of the drain."""
AFTER_DRAIN_S = 50
"""For what the supervisor itself takes after its drain, 10 s and 30 s for the stop of the processes, and some more."""


def stop_grace_s(drain_timeouts_s: Iterable[float]) -> int:
    """Whole seconds from SIGTERM to SIGKILL: max(120, 15 + ceil(longest drain) + 50).

    drain_timeouts_s: `drain_timeout_s` of each deployment. They drain at the same time, so the longest counts.
    """
    longest = max(drain_timeouts_s, default=0.0)
    return max(LEAST_GRACE_S, BEFORE_DRAIN_S + math.ceil(longest) + AFTER_DRAIN_S)
