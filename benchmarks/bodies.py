"""Bodies from 100 bytes to 8 MB through the supervisor, and what it holds of them at its highest.

    python -m benchmarks.bodies [seconds]

The two stubs refuse every request before they read it (the answer is a 400), so what is measured is the way there and
back, and not how fast somebody parses JSON. Eight clients with keep-alive; the memory is the supervisor's peak so far.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import load
from benchmarks.fleet import serving
from tests.support import stub_config

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 8_000_000)
CLIENTS = 8


def main() -> None:
    """Run and print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    table = Table(title=f"bodies through the supervisor, {CLIENTS} clients")
    for column in ("bytes", "requests/s", "GB/s", "p50 ms", "p99 ms", "peak MiB"):
        table.add_column(column, justify="right")
    with serving(stub_config(replicas=2), replicas=2) as running:
        for name in ("stub/0", "stub/1"):
            running.faults(name, refuse=True)
        for size in SIZES:
            body = b'{"input": "' + b"x" * (size - 13) + b'"}'
            done = load.run(*running.address, "/v1/embeddings", body, CLIENTS, seconds)
            table.add_row(
                f"{size:,}",
                f"{done.requests_per_s:,.0f}",
                f"{done.requests_per_s * size / 1e9:.2f}",
                f"{done.p50_ms:.2f}",
                f"{done.p99_ms:.2f}",
                f"{_peak_mib(running.process.pid):.0f}",
            )
    Console().print(table)


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
