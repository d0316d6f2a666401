"""Child processes: in a group of their own, seen by the kernel's word, stopped to the last one (spec 5, 8).

A `Child` is told three things by its owner (`terminate`, `kill`, and that its output is wanted) and tells three
things back through `Observer`: bytes of output, the exit of the leader, and that nobody of its group is left. The
leader's exit is the kernel's word (`engine.exits`), so neither a poll nor a pipe that a grandchild holds open delays
it.

Signals go to a group only while its leader is not reaped (the number cannot be reused then); stragglers that outlive
their leader are signalled one by one through pidfds.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from engine.exits import exit_descriptor

READ_BYTES = 64 * 1024
"""Most output taken from one child in one turn of the loop, so that a flood cannot hold up the others."""

GATHER_S = 0.005
"""After a read that emptied the pipe the next one waits this long, so that a chatty child wakes us 200 times a second
and not once a line."""

STOP_S = 30.0
"""From SIGTERM to SIGKILL (spec 8)."""

STRAGGLER_CHECK_S = 0.05
"""How often a group whose leader is gone is looked at. Its members are not our children, so nothing tells."""

LOOKS_AT_AN_ORPHAN = 5
"""Looks, a second apart, at which it was dead before it is taken in."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: its code, or the signal that ended it."""

    code: int | None
    signal: int | None

    def describe(self) -> str:
        """In words: `exit code 3`, `SIGKILL`."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class Observer(Protocol):
    """Who is told about a child. All calls come from the event loop."""

    def on_output(self, data: bytes) -> None:
        """Bytes of standard output and error, in the order they were written."""

    def on_exit(self, ending: Exit) -> None:
        """The process ended; its last output was told before."""

    def on_group_gone(self) -> None:
        """No process of its group is left."""


class Child:
    """A running process with its group, its output pipe and its lifeline (the write end of its standard input)."""

    def __init__(self, pid: int, output: int, lifeline: int, observer: Observer) -> None:
        self.pid = pid
        self.started = time.monotonic()
        self.ending: Exit | None = None
        self._observer = observer
        self._output = output
        self._lifeline = lifeline
        self._loop = asyncio.get_running_loop()
        self._exit = exit_descriptor(pid)  # first of what may fail: nothing is to be taken back then
        self._kill_timer: asyncio.TimerHandle | None = None
        self._straggler_timer: asyncio.TimerHandle | None = None
        os.set_blocking(output, False)
        self._gather_timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(output, self._on_readable)
        self._loop.add_reader(self._exit, self._reap)

    @property
    def alive(self) -> bool:
        """Whether the leader has not been reaped."""
        return self.ending is None

    def terminate(self, grace_s: float = STOP_S) -> None:
        """SIGTERM to the group now, SIGKILL after `grace_s` seconds to what is left of it.

        What is stopped (by a debugger, a terminal) is woken, since it would hear nothing before.
        """
        self._signal_group(signal.SIGTERM)
        self._signal_group(signal.SIGCONT)
        if self._kill_timer is None:
            self._kill_timer = self._loop.call_later(grace_s, self.kill)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            return
        for pid in group_members(self.pid):
            _signal_one(pid, self.pid, number)

    def _on_readable(self) -> None:
        if self._read_output() < READ_BYTES and self._output >= 0:
            self._loop.remove_reader(self._output)
            self._gather_timer = self._loop.call_later(GATHER_S, self._listen_again)

    def _listen_again(self) -> None:
        if self._output >= 0:
            self._loop.add_reader(self._output, self._on_readable)

    def _read_output(self) -> int:
        """Take what the pipe holds, within the limit of one turn; how many bytes, 0 where it is empty or at its end."""
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if data:
            self._observer.on_output(data)
        else:
            self._close_output()
        return len(data)

    def _reap(self) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            self.ending = Exit(None, os.WTERMSIG(status))
        else:
            self.ending = Exit(os.WEXITSTATUS(status), None)
        os.close(self._lifeline)
        for _ in range(64):
            if self._output < 0 or not self._read_output():
                break
        self._observer.on_exit(self.ending)
        self._check_group()

    def _check_group(self) -> None:
        if group_is_empty(self.pid):
            self._group_gone()
            return
        if self._kill_timer is None:
            self._signal_group(signal.SIGTERM)
            self._kill_timer = self._loop.call_later(STOP_S, self.kill)
        self._straggler_timer = self._loop.call_later(STRAGGLER_CHECK_S, self._check_group)

    def _group_gone(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._close_output()
        self._observer.on_group_gone()

    def _close_output(self) -> None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1


def spawn(command: Sequence[str], stdin: int, lifeline: int, env: Mapping[str, str], observer: Observer) -> Child:
    """Start a process in a group of its own. `stdin` becomes its standard input and stays the caller's to close.

    lifeline: our end of that, held open for as long as the process lives. Raises OSError where it cannot be started.
    """
    with contextlib.ExitStack() as kept:
        kept.callback(os.close, lifeline)
        output, writer = os.pipe()
        kept.callback(os.close, output)
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=writer, stderr=writer, env=dict(env), process_group=0, close_fds=True
            )
        finally:
            os.close(writer)
        try:
            child = Child(process.pid, output, lifeline, observer)
        except OSError:
            process.kill()
            process.wait()
            raise
        kept.pop_all()
    process.returncode = 0  # reaped by Child through its pidfd; Popen must never wait for it
    return child


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux), so that none escapes unseen."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


class Orphans:
    """Processes that came to us because their own parent ended, and belong to no group that is watched.

    The dead ones among them must be taken in, or they pile up as zombies. A `Child` takes its process in at once, and
    may learn of it a little after the fork: what nobody has taken in after some looks is nobody's.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def take_in(self) -> None:
        """To be called once a second."""
        self._seen = {pid: self._seen.get(pid, 0) + 1 for pid in children() if _is_zombie(pid)}
        for pid, looks in self._seen.items():
            if looks >= LOOKS_AT_AN_ORPHAN:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def children() -> list[int]:
    """The pids of our children (Linux: from /proc; elsewhere none are found)."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.scandir("/proc/self/task"):
            with open(f"{thread.path}/children") as listed:
                found += [int(pid) for pid in listed.read().split()]
    return found


def group_is_empty(group: int) -> bool:
    """Whether no process of that group is left, after taking in the orphans of it that ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def group_members(group: int) -> list[int]:
    """The pids of a process group (Linux: from /proc; elsewhere none are found)."""
    members = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and _group_of(int(entry.name)) == group:
                members.append(int(entry.name))
    return members


def _group_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[2])
    except (OSError, IndexError, ValueError):
        return None


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return False


def _signal_one(pid: int, group: int, number: signal.Signals) -> None:
    """Signal a process if it is still a member of that group: the pidfd pins it while the group is read again."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _group_of(pid) == group:
            signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return
    finally:
        os.close(pidfd)
