"""The devices as they were read last, for a status that is asked twice a second (spec 4, 12).

Reading them may take a driver or a tool of its own its time, so a thread does it, when somebody asks: a supervisor that
nobody watches reads nothing, and nobody ever waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from engine.errors import StokerError
from supervisor.host.devices import Device

LOOK_EACH_S = 2.0
"""Devices are read anew when somebody asks and the last look is older, seconds."""
STALE_S = 30.0
"""How old a look may be and still be told; an older one is no answer to how much memory is used now, seconds."""


class DeviceWatch:
    """Answers at once, with what is known. look: reads the devices."""

    def __init__(self, devices: Sequence[Device], look: Callable[[], Sequence[Device]]) -> None:
        self._devices = devices
        self._look = look
        self._looked = self._tried = time.monotonic()
        self._looking = False
        self._changes = any(device.kind != "cpu" and not device.simulated for device in devices)

    def now(self, now: float) -> Sequence[Device]:
        """What was read last; where that is too old, without what changes. Has it read again if it is time."""
        if not self._changes:
            return self._devices
        if not self._looking and now - self._tried > LOOK_EACH_S:
            self._looking, self._tried = True, now
            threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()
        if now - self._looked <= STALE_S:
            return self._devices
        return [dataclasses.replace(device, memory_used_bytes=None, utilisation=None) for device in self._devices]

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        found: Sequence[Device] = ()  # told as unknown when the last look is too old
        try:
            with contextlib.suppress(StokerError, OSError):
                found = self._look()
        finally:
            with contextlib.suppress(RuntimeError):  # the supervisor is gone
                loop.call_soon_threadsafe(self._take, found)

    def _take(self, found: Sequence[Device]) -> None:
        """Placement counted the devices at the start; those are told on, with what was read of them now."""
        self._looking = False
        read = {device.id: device for device in found}
        if all(device.id in read for device in self._devices):
            self._devices = [read[device.id] for device in self._devices]
            self._looked = time.monotonic()
