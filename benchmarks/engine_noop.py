"""What one request costs an engine process that has nothing to compute: the price of receiving, deciding and sending.

    python -m benchmarks.engine_noop [requests]

A ROUTER socket of our own speaks to one stub engine; so many requests are always under way. Processor time and wake-ups
are the engine's own, so a noisy neighbour changes them little; the round trip is as long as the machine lets it be.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.lone_engine import LoneEngine

UNDER_WAY = (1, 4, 32)


def main() -> None:
    """Run and print the table."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    table = Table(title=f"{requests} no-op requests to one stub engine")
    for column in ("under way", "CPU us a request", "wake-ups a request", "p50 us", "requests/s"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder, LoneEngine(Path(folder)) as engine:
        _flood(engine, requests // 10, 32)
        for under_way in UNDER_WAY:
            cpu, woken, began = engine.cpu_s(), engine.wake_ups(), time.perf_counter()
            times = _flood(engine, requests, under_way)
            took = time.perf_counter() - began
            cpu, woken = engine.cpu_s() - cpu, engine.wake_ups() - woken
            table.add_row(
                str(under_way),
                f"{cpu / requests * 1e6:.1f}",
                f"{woken / requests:.2f}",
                f"{statistics.median(times) * 1e6:.0f}",
                f"{requests / took:,.0f}",
            )
    Console().print(table)


def _flood(engine: LoneEngine, requests: int, under_way: int) -> list[float]:
    """Send that many, a new one for each answer; how long each took."""
    sent = {engine.ask(): time.perf_counter() for _ in range(under_way)}
    times = []
    for answer in engine.answers(requests):
        now = time.perf_counter()
        times.append(now - sent.pop(answer.exchange))
        if len(times) + len(sent) < requests:
            sent[engine.ask()] = now
    return times


if __name__ == "__main__":
    main()
