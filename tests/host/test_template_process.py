"""A template that stands still: whoever waits for it is told or served later, and nothing of it is left (spec 5)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import LaunchSpec
from engine.template import change_environment
from supervisor.host.launcher import engine_environment
from supervisor.host.processes import Child, Exit, adopt_orphans
from supervisor.host.template import FORK_S, TemplateLauncher, difference

LONG_S = 60.0
SPEC = LaunchSpec(
    endpoint="ipc:///nowhere",
    identity=b"one",
    supervisor_pid=os.getpid(),
    replica="stub/0",
    incarnation=1,
    artifact="stub",
    device="cpu",
    threads=1,
    engine="stub",
)


class Waiting:
    """A slot that waits for its process (`launcher.Starting`)."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_started(self, child: Child, kind: str) -> None:
        raise AssertionError("a template that is stopped forked")

    def on_waiting(self, why: str) -> None:
        """It loads."""

    def on_start_failed(self, reason: str, exit_code: int | None) -> None:
        self.failed.set_result(reason)

    def on_output(self, data: bytes) -> None: ...

    def on_exit(self, ending: Exit) -> None: ...

    def on_group_gone(self) -> None: ...


class Starting(Waiting):
    """One that expects its process."""

    def __init__(self) -> None:
        super().__init__()
        self.started: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.kind = ""

    def on_started(self, child: Child, kind: str) -> None:
        self.kind = kind
        self.started.set_result(child)

    def on_group_gone(self) -> None:
        self.gone.set()


def run(scene: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scene(), LONG_S))


def test_a_template_that_owes_a_fork_for_too_long_is_ended_and_who_waited_is_told() -> None:
    async def scene() -> None:
        said: asyncio.Queue[str] = asyncio.Queue()
        launcher = TemplateLauncher(lambda name, data: None, lambda artifact, what: said.put_nowait(what))
        env = engine_environment(1, {}, None)
        assert launcher.start(SPEC, env, Waiting()).cancel(), "it only loads so far"
        assert (await said.get()).startswith("loaded in")
        before = len(os.listdir("/proc/self/fd"))
        (pid,) = launcher.pids.values()
        os.kill(pid, signal.SIGSTOP)
        waiting = Waiting()
        launcher.start(SPEC, env, waiting)
        launcher.tick(time.monotonic() + FORK_S / 2, False)
        assert launcher.pids and not waiting.failed.done()
        launcher.tick(time.monotonic() + FORK_S + 1, False)
        assert await waiting.failed == "the template was killed: no fork in 30 s"
        assert await said.get() == "ended: SIGKILL"
        assert not launcher.pids
        assert len(os.listdir("/proc/self/fd")) < before

    run(scene)


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process as the parent of what templates fork, as a supervisor is."""
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.mark.usefixtures("adopting")
def test_a_template_whose_socket_is_full_is_asked_for_the_rest_when_it_takes_more() -> None:
    async def scene() -> None:
        ready = asyncio.Event()
        launcher = TemplateLauncher(lambda name, data: None, lambda artifact, what: ready.set())
        env = engine_environment(1, {}, None)
        launcher.start(SPEC, env, Waiting()).cancel()
        await ready.wait()
        (template,) = launcher._templates.values()
        template._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least: room for one or two
        os.kill(template.pid, signal.SIGSTOP)
        starting = [Starting() for _ in range(12)]
        for one in starting:
            launcher.start(SPEC, env, one)
        assert template._waiting, "not all of it fits"
        os.kill(template.pid, signal.SIGCONT)
        for one in starting:
            (await one.started).kill()
            await one.gone.wait()
        assert not any(one.failed.done() for one in starting)
        launcher.retain([])
        while launcher.pids:
            await asyncio.sleep(0.01)  # its own group's end is told to the launcher alone

    run(scene)


@pytest.mark.usefixtures("adopting")
def test_however_large_the_environment_is_a_replica_is_forked_and_what_no_message_holds_is_spawned() -> None:
    async def scene() -> None:
        said: asyncio.Queue[str] = asyncio.Queue()
        launcher = TemplateLauncher(lambda name, data: None, lambda artifact, what: said.put_nowait(what))
        services = {f"SERVICE_{number}_PORT_8080_TCP_ADDR": f"tcp://10.0.0.{number}:8080" for number in range(6000)}
        env = {**engine_environment(1, {}, None), **services}
        kinds = []
        for more in ({"CUDA_VISIBLE_DEVICES": "1"}, {"MUCH": "x" * 100_000, "MORE": "x" * 120_000}):
            starting = Starting()
            launcher.start(SPEC, {**env, **more}, starting)
            if not kinds:
                (template,) = launcher._templates.values()
                template._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
                assert (await said.get()).startswith("loaded in")
            (await starting.started).kill()
            await starting.gone.wait()
            kinds.append(starting.kind)
        assert kinds == ["fork", "spawn"]
        assert said.get_nowait() == "was not asked for stub/0 (that is too large for one message); it is spawned"
        launcher.retain([])
        while launcher.pids:
            await asyncio.sleep(0.01)  # its own group's end is told to the launcher alone

    run(scene)


ENVIRONMENTS = st.dictionaries(st.sampled_from("ABCDE"), st.sampled_from(["", "1", "2"]))


@given(ENVIRONMENTS, ENVIRONMENTS)
def test_a_replica_gets_its_own_environment_from_what_differs_from_its_templates(
    before: dict[str, str], after: dict[str, str]
) -> None:
    with mock.patch.dict(os.environ, before, clear=True):
        change_environment(difference(before, after))
        assert dict(os.environ) == after


def wait_for_a_zombie(pid: int) -> None:
    """Not in the loop, which would be told of its end."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)


@pytest.mark.usefixtures("adopting")
def test_a_replica_asked_of_a_template_that_just_died_comes_from_the_next_one() -> None:
    async def scene() -> None:
        said: asyncio.Queue[str] = asyncio.Queue()
        launcher = TemplateLauncher(lambda name, data: None, lambda artifact, what: said.put_nowait(what))
        env = engine_environment(1, {}, None)
        launcher.start(SPEC, env, Waiting()).cancel()
        assert (await said.get()).startswith("loaded in")
        (pid,) = launcher.pids.values()
        os.kill(pid, signal.SIGKILL)
        wait_for_a_zombie(pid)
        starting = Starting()
        launcher.start(SPEC, env, starting)
        (await starting.started).kill()
        await starting.gone.wait()
        assert not starting.failed.done()
        launcher.retain([])
        while launcher.pids:
            await asyncio.sleep(0.01)

    run(scene)
