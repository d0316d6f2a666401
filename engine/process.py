"""Entry of an engine process: `python -P -m engine.process`, with its launch specification on standard input.

Standard input is also the lifeline: the supervisor keeps the other end open for as long as it lives, so the end of
file there means that nobody is left to serve. On Linux the kernel's parent-death signal says the same, faster and
whatever the interpreter is doing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

from engine.errors import ProtocolError
from engine.messages import ExitCode, LaunchSpec, decode_launch

if TYPE_CHECKING:
    from engine.backends.base import Backend

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the replica that standard input describes. Never returns."""
    try:
        spec = read_launch(0)
    except ProtocolError as error:
        print(f"engine: {error}. It is started by `stoker serve`, not by hand.", file=sys.stderr, flush=True)
        os._exit(ExitCode.BAD_LAUNCH)
    die_with(spec.supervisor_pid)
    leave(serve(spec, lifeline=out_of_reach(0)))


def read_launch(fd: int) -> LaunchSpec:
    """The launch specification from a descriptor: four bytes of length, then msgpack. Raises ProtocolError."""
    size = int.from_bytes(_read_exactly(fd, 4), "big")
    return decode_launch(_read_exactly(fd, size))


def out_of_reach(fd: int) -> int:
    """Another number for a descriptor whose own stands for an empty file from now on: no `input()` or debugger in a
    model's code shall wait at the lifeline for somebody who types."""
    moved = os.dup(fd)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, fd)
    os.close(empty)
    return moved


def die_with(supervisor_pid: int) -> None:
    """Tie this process's life to its supervisor's. Where that one is gone already, end now."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor_pid:
        os._exit(ExitCode.ORPHANED)


def serve(spec: LaunchSpec, lifeline: int, loaded: Backend | None = None) -> ExitCode:
    """Connect, load (where the template has not), serve until told to leave; why it ended."""
    from engine.custody import Custody
    from engine.desk import Desk
    from engine.device_thread import DeviceThread
    from engine.link import Link
    from engine.standby import Standby

    if spec.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec.cores)  # every thread that starts from here on inherits it
    link = Link(spec)
    custody = Custody()
    device = DeviceThread(spec, Desk(link, custody), loaded)
    link.serve_for(device)
    standby = Standby(link, custody, lifeline)
    device.start()
    return standby.run()


def leave(code: ExitCode) -> None:
    """Leave without waiting for a forward that may still run: nobody waits for its answer any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            raise ProtocolError("the launch specification ended early")
        data += piece
    return data


if __name__ == "__main__":
    main()
