"""The threads of this process that compute together: one team, and every forward states how many it wants (spec 9).

torch keeps the number for each thread that asks, and a change may wake or park OpenMP's workers, so the number is set
only where it differs from the last one. One team a process, used on the device thread alone.
"""

from __future__ import annotations

import torch


class Team:
    """torch's intra-op threads, as seen from the device thread."""

    def __init__(self) -> None:
        self._count = 0

    def use(self, count: int) -> None:
        """What is computed next runs on so many threads."""
        if count != self._count:
            torch.set_num_threads(count)
            self._count = count

    @property
    def size(self) -> int:
        """What torch itself says."""
        return torch.get_num_threads()
