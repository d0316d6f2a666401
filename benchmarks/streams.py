"""Many streams at once: what an open one costs, and whether all get their share.

    python -m benchmarks.streams

Streams come from 64 stubs at 10 tokens a second each. For each number of streams: the supervisor's memory and CPU while
they are open, and the fewest and the most events that one of them got in the same time.
"""

from __future__ import annotations

import asyncio
import json
import time

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.fleet import serving
from tests.support import Running, stub_config

STREAMS = (1, 200, 1000)
REPLICAS = 64
SECONDS = 5.0
BODY = json.dumps({"model": "stub", "prompt": "x", "stream": True, "max_tokens": 100_000}).encode()
REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


def main() -> None:
    """Run and print the table."""
    table = Table(title="open streams, 10 events/s each")
    for column in ("streams", "supervisor MiB", "more than idle", "% of a core", "events/s", "fewest", "most"):
        table.add_column(column, justify="right")
    config = stub_config(replicas=REPLICAS, engine_args="tokens: 100000, token_ms: 100")
    with serving(config, replicas=REPLICAS) as running:
        idle = psutil.Process(running.process.pid).memory_info().rss
        for streams in STREAMS:
            table.add_row(str(streams), *asyncio.run(_measure(running, streams, idle)))
    Console().print(table)


async def _measure(running: Running, streams: int, idle: int) -> list[str]:
    counts = [0] * streams
    tasks = [asyncio.create_task(_read(running, counts, number)) for number in range(streams)]
    while not all(counts):
        await asyncio.sleep(0.1)
        broken = [task for task in tasks if task.done()]
        assert not broken, broken[0].exception()
    process = psutil.Process(running.process.pid)
    before, cpu, began = list(counts), sum(process.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(SECONDS)
    took, cpu = time.monotonic() - began, sum(process.cpu_times()[:2]) - cpu
    got = [after - earlier for after, earlier in zip(counts, before, strict=True)]
    rss = process.memory_info().rss
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    mib = 1024 * 1024
    shares = [f"{rss / mib:.0f}", f"{(rss - idle) / mib:.0f}", f"{cpu / took:.0%}", f"{sum(got) / took:,.0f}"]
    return [*shares, str(min(got)), str(max(got))]


async def _read(running: Running, counts: list[int], number: int) -> None:
    reader, writer = await asyncio.open_connection(*running.address)
    try:
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        while True:
            await reader.readuntil(b"\n\n")
            counts[number] += 1
    finally:
        writer.close()


if __name__ == "__main__":
    main()
