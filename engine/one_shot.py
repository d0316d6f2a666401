"""A process that loads a model, prints what a command wants to know of it, and ends: no replica, no supervisor.

It takes a launch specification on standard input as a replica does. Its lines are for the `stoker` command that started
it and waits for them; what libraries print goes to standard error, where people read it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable

from engine.backends.base import LoadError
from engine.errors import ProtocolError
from engine.messages import ExitCode, LaunchSpec
from engine.process import die_with, leave, read_launch


def run(started_by: str, lines_of: Callable[[LaunchSpec], Iterable[bytes]]) -> None:
    """Print the lines about what standard input describes, each when it is known. Never returns.

    started_by: the command that does, for somebody who tries it by hand. A LoadError is told on standard error.
    """
    said = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        spec = read_launch(0)
    except ProtocolError as error:
        print(f"{error}. This is started by `{started_by}`, not by hand.", file=sys.stderr)
        os._exit(ExitCode.BAD_LAUNCH)
    die_with(spec.supervisor_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    try:
        for line in lines_of(spec):
            said.write(line)
    except LoadError as error:
        print(error, file=sys.stderr)
        leave(ExitCode.LOAD_FINAL)
    leave(ExitCode.LEFT)
