"""Memory and CPU of process groups as they are read from outside."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from supervisor.host.usage import GroupMeter, Reading, Usage, read_groups, share

BUSY = """
import os, sys
held = bytearray(b"x") * 40_000_000
if os.fork():
    print(flush=True)
while True:
    pass
"""


def test_busy_cores_are_what_was_used_since_the_reading_before() -> None:
    before = Reading(10.0, cpu_s={(1, 5): 100.0, (2, 5): 3.0, (3, 5): 7.0})
    after = Reading(12.0, cpu_s={(1, 5): 101.0, (2, 9): 2.0, (4, 5): 1.0})
    assert share(before, after) == 2.0, "one went on, one number came again, one is new, one ended"
    assert share(before, Reading(12.0)) == 0.0
    assert share(before, Reading(10.0, cpu_s=after.cpu_s)) == 0.0


def test_all_processes_of_a_group_count_and_those_of_others_do_not() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, process_group=0) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        told: list[Usage] = []

        async def two_looks() -> None:
            meter = GroupMeter()
            meter.look()
            meter.watch(leader.pid, told.append)
            while len(told) < 2 or not told[-1].cpu_share:
                meter.look()
                await asyncio.sleep(0.01)
            meter.forget(leader.pid)
            meter.look()

        try:
            asyncio.run(asyncio.wait_for(two_looks(), 30))
            nobody = 10**7
            reading = read_groups({leader.pid, nobody})
        finally:
            os.killpg(leader.pid, 9)
    assert list(reading) == [leader.pid] and len(reading[leader.pid].cpu_s) == 2
    assert told[0].cpu_share == 0.0, "nothing to compare with yet"
    assert told[-1].rss_bytes == pytest.approx(reading[leader.pid].rss_bytes, rel=0.1) and told[-1].rss_bytes > 80e6
