"""How many files this process may have open, and how many of them may be clients' connections.

A supervisor with no descriptor left starts no engine and reads no config, and libzmq ends the process where it cannot
take a connection in on a local socket. So the limit is raised as far as the system allows, and half of it is kept from
the clients of the HTTP side, who may be anybody.
"""

from __future__ import annotations

import contextlib
import os
import resource

from engine.errors import StokerError

LEAST = 256
"""Fewer are not worth beginning with: a supervisor of two replicas has 45 open."""
SPARE = 24
"""So many must be left where a process is to be started: for its pipes, its connection, and the commands meanwhile."""
TOO_FEW = (
    "almost all files that the supervisor may have open are in use, so no process is started; raise the limit "
    "(`ulimit -n`, systemd: LimitNOFILE) or close connections"
)
ENOUGH = 65_536
"""More is not asked for: some programs go through all descriptors that they may have when they start a child."""


def raise_limit() -> None:
    """As many open files as the system allows, up to `ENOUGH`; children start with the same. Raises StokerError where
    that is not enough for anything."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if wanted < LEAST:
        raise StokerError(
            f"this process may have {wanted} files open; a supervisor needs {LEAST} at least: "
            "raise the hard limit (`ulimit -Hn`, systemd: LimitNOFILE)"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def are_left() -> bool:
    """Whether at least `SPARE` more may be opened now. Asked by opening them, which costs less than counting."""
    with contextlib.ExitStack() as stack:
        try:
            first = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, first)
            for _ in range(SPARE - 1):
                stack.callback(os.close, os.dup(first))
        except OSError:
            return False
    return True


def for_clients() -> int:
    """How many connections clients may have open together."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (ENOUGH if soft == resource.RLIM_INFINITY else min(ENOUGH, soft)) // 2
