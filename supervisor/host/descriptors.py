"""How many files this process may have open, and how many of them may be clients' connections.

A supervisor with no descriptor left starts no engine and reads no config, and libzmq ends the process where it cannot
take a connection in on a local socket. So the limit is raised as far as the system allows, and half of it is kept from
the clients of the HTTP side, who may be anybody.
"""

from __future__ import annotations

import resource

ENOUGH = 65_536
"""More is not asked for: some programs go through all descriptors that they may have when they start a child."""


def raise_limit() -> None:
    """As many open files as the system allows, up to `ENOUGH`; children start with the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def for_clients() -> int:
    """How many connections clients may have open together."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (ENOUGH if soft == resource.RLIM_INFINITY else min(ENOUGH, soft)) // 2
