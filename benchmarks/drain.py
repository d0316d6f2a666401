"""An idle drain: from the command to the process gone, seen by the kernel's word from outside.

    python -m benchmarks.drain [times]

Goal (spec 16): 10 ms in the median, 30 ms at p99; Infera on NATS: 3 ms.
"""

from __future__ import annotations

import os
import select
import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from benchmarks.fleet import serving
from supervisor.control.events import ReplicaReady
from supervisor.control.messages import DrainReplica, Restart
from tests.support import Running, stub_config


def one(running: Running, incarnation: int) -> float:
    """Milliseconds of one drain; the replica is back afterwards."""
    pid = running.replica("stub/0").pid
    assert pid is not None
    pidfd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    with running.client() as client:
        started = time.perf_counter()
        client.ask(DrainReplica(replica="stub/0"))
        assert poller.poll(10_000), "it did not go"
        took = time.perf_counter() - started
    os.close(pidfd)
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].state == "stopped")
    running.accepted(Restart(target="stub/0"))
    running.wait_event(ReplicaReady, lambda event: event.incarnation == incarnation + 1)
    return took * 1000


def main() -> None:
    """Run and print the table."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with serving(stub_config(replicas=1), replicas=1) as running:
        taken = sorted(one(running, number + 1) for number in range(times))
    table = Table(title=f"idle drain, command to process gone, {times} times")
    for column in ("min ms", "median ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="right")
    points = (taken[0], statistics.median(taken), taken[int(times * 0.9)], taken[int(times * 0.99)], taken[-1])
    table.add_row(*(f"{point:.1f}" for point in points))
    Console().print(table)


if __name__ == "__main__":
    main()
