"""One more replica: from the command to ready, and what it costs in memory.

    python -m benchmarks.scale_up [times] [config …]

cold: the first replica of a supervisor that just started. spawn: one more in a fresh interpreter
(STOKER_START=spawn). fork: one more from the loaded template. Memory of the new replica right after ready, from
/proc: private is what it alone holds, shared what it has in common with its template and siblings.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from supervisor.control.events import ReplicaReady
from supervisor.control.messages import Scale
from tests.support import Running

CONFIGS = ("sample-configs/minilm.yaml",)
MIB = 1024 * 1024


def free_port(text: str) -> str:
    """The config on a free port, with one replica."""
    lines = [line for line in text.splitlines() if "# minilm/1" not in line]
    return "\n".join(lines).replace("127.0.0.1:8100", "127.0.0.1:0")


def memory(running: Running, replica: str) -> tuple[float, float]:
    """Private and shared MiB of a replica's process."""
    pid = running.replica(replica).pid
    assert pid is not None
    info = psutil.Process(pid).memory_full_info()
    return info.uss / MIB, (info.rss - info.uss) / MIB


def measure(config: Path, start: str, times: int) -> list[tuple[str, float, float, float]]:
    """Rows (what, milliseconds, private MiB, shared MiB) of one way to start."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        began = time.perf_counter()
        running = Running(Path(folder), free_port(config.read_text()), environ={**os.environ, "STOKER_START": start})
        try:
            running.wait_ready(1)
            cold = (time.perf_counter() - began) * 1000
            (deployment,) = running.inventory().deployments
            rows.append((f"cold ({start})", cold, *memory(running, f"{deployment.name}/0")))
            taken, last = [], running.inventory().supervisor.last_event
            for _ in range(times):
                with running.client() as client:
                    started = time.perf_counter()
                    client.ask(Scale(deployment=deployment.name, replicas=2))
                    ready = running.wait_event(ReplicaReady, lambda event: event.replica.endswith("/1"), since=last)
                    taken.append((time.perf_counter() - started) * 1000)
                last = ready.seq
                cost = memory(running, f"{deployment.name}/1")
                running.accepted(Scale(deployment=deployment.name, replicas=1))
                running.wait_status(lambda inventory: len(inventory.deployments[0].replicas) == 1)
            rows.append((f"one more ({start})", statistics.median(taken), *cost))
        finally:
            running.close()
    return rows


def main() -> None:
    """Run and print a table a config."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for config in map(Path, sys.argv[2:] or CONFIGS):
        table = Table(title=f"{config.stem}: command to ready, median of {times}")
        table.add_column("start")
        for column in ("ms", "private MiB", "shared MiB"):
            table.add_column(column, justify="right")
        for start, count in (("spawn", min(times, 3)), ("fork", times)):
            for what, *figures in measure(config, start, count):
                table.add_row(what, *(f"{figure:,.0f}" for figure in figures))
        Console().print(table)


if __name__ == "__main__":
    main()
