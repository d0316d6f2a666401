"""Devices are read while somebody asks, by a thread, and an old reading is not told as if it were new."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time

import pytest

from engine.errors import StokerError
from supervisor.host.device_watch import LOOK_EACH_S, STALE_S, DeviceWatch
from supervisor.host.devices import Device

CPU = Device("cpu", "cpu", 0, "CPU")
CARD = Device("cuda:0", "cuda", 0, "L4", memory_total_bytes=24, memory_used_bytes=1, utilisation=0.1)


def test_a_reading_is_renewed_for_whoever_asks_again() -> None:
    async def play() -> None:
        looked = threading.Event()

        def look() -> list[Device]:
            looked.set()
            return [CPU, dataclasses.replace(CARD, memory_used_bytes=7, utilisation=0.9)]

        watch = DeviceWatch([CPU, CARD], look)
        now = time.monotonic()
        assert list(watch.now(now)) == [CPU, CARD] and not looked.is_set(), "it is young enough"
        assert list(watch.now(now + LOOK_EACH_S + 1)) == [CPU, CARD], "nobody waits for it"
        while watch.now(now)[1].memory_used_bytes != 7:
            await asyncio.sleep(0.005)
        assert looked.is_set() and watch.now(now)[1].utilisation == 0.9

    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_reading_that_fails_is_told_until_it_is_stale() -> None:
    async def play() -> None:
        looks = 0

        def look() -> list[Device]:
            nonlocal looks
            looks += 1
            raise StokerError("the driver does not answer")

        watch = DeviceWatch([CPU, CARD], look)
        now = time.monotonic()
        assert watch.now(now + LOOK_EACH_S + 1)[1].memory_used_bytes == 1
        while not looks:
            await asyncio.sleep(0.005)
        stale = watch.now(now + STALE_S + 1)[1]
        assert stale.memory_used_bytes is None and stale.utilisation is None and stale.memory_total_bytes == 24

    asyncio.run(asyncio.wait_for(play(), 20))


def test_simulated_cards_and_a_cpu_are_never_read_again() -> None:
    def look() -> list[Device]:
        raise AssertionError("there is nothing to read")

    watch = DeviceWatch([CPU, dataclasses.replace(CARD, simulated=True)], look)
    assert watch.now(time.monotonic() + 1000)[1].simulated


def test_a_reading_that_fails_in_an_unforeseen_way_does_not_end_all_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    async def play() -> None:
        looks = []

        def look() -> list[Device]:
            looks.append(len(looks))
            if len(looks) == 1:
                raise ValueError("a driver says nonsense")
            return [CPU, dataclasses.replace(CARD, memory_used_bytes=7)]

        watch = DeviceWatch([CPU, CARD], look)
        now = time.monotonic()
        while watch.now(now)[1].memory_used_bytes != 7:
            now += LOOK_EACH_S + 1 if len(looks) < 2 else 0
            await asyncio.sleep(0.005)
        assert looks == [0, 1]

    asyncio.run(asyncio.wait_for(play(), 20))
