"""Requests a second through the whole path, with engines that answer at once: what Stoker itself costs.

    make bench            python -m benchmarks.http_noop [seconds]

client -> HTTP -> dispatch -> ZeroMQ -> engine process -> and back; two stub replicas, 500 bytes of JSON.
"""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import load
from benchmarks.fleet import serving
from tests.support import stub_config

CLIENTS = (1, 32, 128)


def main() -> None:
    """Run and print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    body = json.dumps({"model": "stub", "input": "x" * 460}).encode()
    table = Table(title="no-op requests, two stub replicas")
    for column in ("clients", "requests/s", "p50 ms", "p99 ms", "not 2xx", "load by"):
        table.add_column(column, justify="right")
    with serving(stub_config(replicas=2), replicas=2) as running:
        for clients in CLIENTS:
            done = load.run(*running.address, "/v1/embeddings", body, clients, seconds)
            table.add_row(
                str(clients),
                f"{done.requests_per_s:,.0f}",
                f"{done.p50_ms:.2f}",
                f"{done.p99_ms:.2f}",
                str(done.errors),
                done.by,
            )
    Console().print(table)
    print("Beyond 64 exchanges at once (2 replicas of 32) the answer is 429: there is no waiting queue.")


if __name__ == "__main__":
    main()
