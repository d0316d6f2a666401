"""Memory of a device as calibration needs it: what is free, and what a forward needs for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from engine.host_memory import available_bytes


class Meter(Protocol):
    """The memory that keys, values and intermediate numbers of a forward live in."""

    def free_bytes(self) -> int | None:
        """What this process could still have; None where nothing says."""

    def peak_bytes(self, run: Callable[[], None]) -> int | None:
        """What `run` needed beside what was there before; None where it did not fit."""


class HostMeter:
    """Main memory. A forward on a CPU is bounded by time, so none is measured here."""

    def free_bytes(self) -> int | None:
        """See Meter."""
        return available_bytes()

    def peak_bytes(self, run: Callable[[], None]) -> int | None:
        """See Meter: nothing that counts."""
        return 0


class CudaMeter:
    """A GPU's memory, by torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_bytes(self) -> int | None:
        """See Meter: what no process has, and what our allocator has and does not use."""
        free, _ = torch.cuda.mem_get_info(self._device)
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free + unused)

    def peak_bytes(self, run: Callable[[], None]) -> int | None:
        """See Meter."""
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        try:
            run()
            torch.cuda.synchronize(self._device)
        except torch.OutOfMemoryError:
            return None
        finally:
            peak = torch.cuda.max_memory_allocated(self._device)
            torch.cuda.empty_cache()
        return int(peak - before)


def meter_of(device: torch.device) -> Meter:
    """The meter of a device."""
    return CudaMeter(device) if device.type == "cuda" else HostMeter()
