"""The kernel's word that a process has ended, as a descriptor: readable from then on (spec 5).

A pidfd on Linux, a kqueue on macOS. Neither reaps: the number still belongs to that process. Light.
"""

from __future__ import annotations

import os
import sys

if sys.platform == "linux":

    def exit_descriptor(pid: int) -> int:
        """A descriptor that becomes readable when the process ends, the caller's to close. Raises OSError."""
        return os.pidfd_open(pid)

else:
    import select

    def exit_descriptor(pid: int) -> int:
        """A descriptor that becomes readable when the process ends, the caller's to close. Raises OSError."""
        ends = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT)
        with select.kqueue() as queue:
            queue.control([ends], 0)
            return os.dup(queue.fileno())
