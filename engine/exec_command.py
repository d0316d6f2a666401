"""Entry of a foreign server's process: `python -P -m engine.exec_command SUPERVISOR_PID CORES ARTIFACT COMMAND…`.

It ties the process's life to the supervisor's, and then becomes the command. A foreign server knows nothing of that,
so both ties are made before: the kernel's parent-death signal, which outlives an exec, and a watcher for the rest of
its process group. A server such as vLLM runs workers of its own, and where their parent is killed without a word
nothing would end them.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from engine.errors import StokerError
from engine.exits import exit_descriptor
from engine.process import die_with

NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""Exit codes for a command that cannot be executed, as every shell has them."""

LAST_MOMENT_MS = 100
"""From a process's files being closed to its end being told; microseconds, unless the machine is very busy."""

ARTIFACT = "{artifact}"


def main() -> NoReturn:
    """Become the command. Returns only as an exit code, where it cannot be executed."""
    supervisor_pid, cores, artifact, *command = sys.argv[1:]
    die_with(int(supervisor_pid))
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    try:
        command = with_artifact(command, artifact)
    except StokerError as error:
        _give_up(str(error), NOT_FOUND)
    if shutil.which(command[0]) is None:
        _give_up(f"{command[0]}: expected a program that can be executed, found none", NOT_FOUND)
    _watch_group(int(supervisor_pid))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _give_up(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE)


def with_artifact(command: Sequence[str], artifact: str) -> list[str]:
    """The command with `{artifact}` replaced: by a path where the files are here, else by the hub's name.

    Raises LoadError where there are no such files.
    """
    if not any(ARTIFACT in part for part in command):
        return list(command)
    if artifact.startswith(("pkg:", "/", ".", "~")):
        from engine.backends.artifacts import resolve

        artifact = str(resolve(artifact).path)
    return [part.replace(ARTIFACT, artifact) for part in command]


def _watch_group(supervisor_pid: int) -> None:
    """Leave a process in the group that ends all of it when the supervisor is gone.

    Standard input is the lifeline. It ends with the supervisor, and also when the supervisor has seen the server end;
    then what is left of the group is the supervisor's to stop. The kernel tells the two apart: a dying supervisor
    closes its files a moment before the kernel says that it is gone, so the word is waited for.
    """
    if os.fork():
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    while os.read(0, 1):
        pass
    if _ends_soon(supervisor_pid):
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _ends_soon(pid: int) -> bool:
    """Whether that process is gone, or goes within a moment."""
    try:
        descriptor = exit_descriptor(pid)
    except OSError:
        return True
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in ended.poll(LAST_MOMENT_MS))


def _give_up(why: str, code: int) -> NoReturn:
    print(why, file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main()
