"""The template of a deployment: loads the weights once, then is forked for each replica (spec 5).

    supervisor --ForkRequest + 2 descriptors--> template --fork--> (gone at once) --fork--> replica
    supervisor <------------ Forked(pid) ------ template                                       |
    supervisor is its parent now (child subreaper) <-------------------------------------------'

The replica shares the template's pages until it writes to them: a MiniLM replica costs milliseconds and a few
megabytes. The template stays single-threaded: a thread, an OpenMP team above all, does not survive a fork, and a
child that inherits the memory of one hangs in its first parallel forward. So it is looked at before each fork, and
where it has more than one thread it says so instead, and the supervisor spawns.

Two forks, because a replica must outlive its template and be the supervisor's to wait for: the process in between
ends at once, and the kernel hands its child to the subreaper. Standard input is the socket to the supervisor, and its
lifeline.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from engine.backends.base import Backend, LoadError
from engine.backends.registry import build
from engine.errors import ProtocolError
from engine.messages import (
    PROTOCOL,
    ExitCode,
    Forked,
    ForkRequest,
    LaunchSpec,
    TemplateReady,
    decode_fork_request,
    decode_launch,
    encode,
)
from engine.process import die_with, leave, out_of_reach, serve

MOST_REQUEST_BYTES = 1 << 20


def main() -> None:
    """Become the template that the first message on standard input describes. Never returns."""
    supervisor = socket.socket(fileno=out_of_reach(0))
    try:
        spec = decode_launch(supervisor.recv(MOST_REQUEST_BYTES))
    except ProtocolError as error:
        print(f"template: {error}. It is started by `stoker serve`, not by hand.", file=sys.stderr, flush=True)
        os._exit(ExitCode.BAD_LAUNCH)
    die_with(spec.supervisor_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    backend = _load(spec, supervisor)
    while True:
        _serve_one(supervisor, backend)


def _load(spec: LaunchSpec, supervisor: socket.socket) -> Backend:
    """The loaded backend; where it cannot be loaded the process ends with the reason as its last words."""
    started = time.monotonic()
    try:
        backend = build(spec)
        backend.load()
    except LoadError as error:
        print(error, file=sys.stderr)
        leave(ExitCode.LOAD_FINAL if error.final else ExitCode.LOAD_FAILED)
        raise
    except Exception:
        traceback.print_exc()
        leave(ExitCode.LOAD_FAILED)
        raise
    import engine.desk
    import engine.standby  # noqa: F401  what a replica needs, imported once for all of them

    gc.collect()
    gc.freeze()  # the collector would write to the pages that replicas share
    supervisor.send(encode(TemplateReady(PROTOCOL, obstacle(), time.monotonic() - started)))
    return backend


def obstacle() -> str | None:
    """Why this process must not be forked, None where it may be."""
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else 1
    return None if threads == 1 else f"loading started {threads - 1} threads, which a fork would lose"


def _serve_one(supervisor: socket.socket, backend: Backend) -> None:
    """Wait for a request and fork; end where the supervisor is gone."""
    data, descriptors, _, _ = socket.recv_fds(supervisor, MOST_REQUEST_BYTES, 2)
    if not data:
        leave(ExitCode.ORPHANED)
    request = decode_fork_request(data)
    try:
        pid = _fork(request, descriptors, supervisor, backend)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    supervisor.send(encode(Forked(request.number, pid)))


def _fork(request: ForkRequest, descriptors: list[int], supervisor: socket.socket, backend: Backend) -> int:
    """The pid of a new replica, which is no child of ours any more."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        middle = os.getpid()
        replica = os.fork()
        if replica == 0:
            os.close(reader)
            os.close(writer)
            supervisor.close()
            _become(request, descriptors, backend, middle)
        with contextlib.suppress(OSError):  # also here: whoever is told the pid may signal its group at once
            os.setpgid(replica, replica)
        os.write(writer, replica.to_bytes(8, "big"))
        os._exit(0)
    os.close(writer)
    try:
        os.waitpid(between, 0)
        return int.from_bytes(os.read(reader, 8), "big")
    finally:
        os.close(reader)


def _become(request: ForkRequest, descriptors: list[int], backend: Backend, between: int) -> NoReturn:
    """In the new process: its own group, streams and parent, then an engine like any other."""
    try:
        os.setpgid(0, 0)
        output, lifeline = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        _await_adoption(between)
        die_with(request.spec.supervisor_pid)
        change_environment(request.env)
        backend.adopt(request.spec)
        leave(serve(request.spec, lifeline=lifeline, loaded=backend))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(ExitCode.LOAD_FAILED)


def change_environment(changes: dict[str, str | None]) -> None:
    """Make a replica's environment of its template's, see ForkRequest."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _await_adoption(between: int) -> None:
    """Wait until the process in between is gone and the kernel has given us to somebody else, whoever that is."""
    while os.getppid() == between:
        time.sleep(0.0002)


if __name__ == "__main__":
    main()
