"""Ending children: one that does not run is woken to hear of it; dead ones of nobody are taken in."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
import uvloop

from supervisor.host.processes import Exit, spawn


class Watching:
    """Implements `processes.Observer`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Exit] = loop.create_future()
        self.gone = asyncio.Event()

    def on_output(self, data: bytes) -> None: ...

    def on_exit(self, ending: Exit) -> None:
        self.ended.set_result(ending)

    def on_group_gone(self) -> None:
        self.gone.set()


def test_a_stopped_process_ends_when_it_is_told_to_and_not_when_its_grace_is_over() -> None:
    async def scene() -> None:
        watching = Watching()
        reader, lifeline = os.pipe()
        child = spawn(["sleep", "1000"], reader, lifeline, os.environ, watching)
        os.close(reader)
        os.kill(child.pid, signal.SIGSTOP)
        child.terminate(grace_s=3600)
        assert (await watching.ended).describe() == "SIGTERM"
        await watching.gone.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scene(), 60))


ORPHAN_SCRIPT = """
import os, sys, time
from supervisor.host.processes import LOOKS_AT_AN_ORPHAN, Orphans, adopt_orphans, children
adopt_orphans()
if not os.fork():          # its child outlives it, in a group that nobody watches
    if not os.fork():
        os.setsid()
        time.sleep(0.1)
    os._exit(0)
os.wait()
(orphan,) = children()
while open(f"/proc/{orphan}/stat").read().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
orphans = Orphans()
for _ in range(LOOKS_AT_AN_ORPHAN - 1):
    orphans.take_in()
assert children() == [orphan], "it may still be somebody's"
orphans.take_in()
assert children() == []
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nobody else adopts orphans")
def test_dead_orphans_that_nobody_waits_for_are_taken_in_after_some_looks() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN_SCRIPT], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
