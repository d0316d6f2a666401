"""Steady load while replicas are scaled, drained, restarted, reloaded, ejected and killed: what is lost?

    python -m benchmarks.soak [seconds] [actions]      60 s and 200 actions where nothing is said

Unary requests must all be answered. A stream may be lost only where its replica was killed, and then ends with an error
event, never silently. The tests run a shorter one and assert it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import random
import signal
import sys
import time

from rich.console import Console
from rich.table import Table

from benchmarks.fleet import serving
from supervisor.control.messages import (
    CommandRefused,
    DrainReplica,
    Eject,
    Inventory,
    Readmit,
    Reload,
    ReplicaStatus,
    Restart,
    Scale,
)
from tests.support import Running, stub_config

UNARY_CLIENTS = 8
STREAM_CLIENTS = 6
LEAST, MOST = 3, 6
ENGINE = "latency_ms: 4, tokens: 40, token_ms: 5"


@dataclasses.dataclass
class Report:
    """What the load saw, and what was done to the fleet meanwhile."""

    unary: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    streams: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    actions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    examples: list[str] = dataclasses.field(default_factory=list)
    most_processes: int = 0

    @property
    def lost_unary(self) -> int:
        """Unary requests that were not answered with 200."""
        return sum(count for status, count in self.unary.items() if status != "200")

    @property
    def silent_streams(self) -> int:
        """Streams that ended neither with [DONE] nor with an error event."""
        return self.streams["silent"]


async def request(address: tuple[str, int], path: str, body: dict[str, object]) -> tuple[int, bytes]:
    """Status and body of one POST on a connection of its own."""
    reader, writer = await asyncio.open_connection(*address)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    try:
        answer = await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    status, _, rest = answer.partition(b"\r\n\r\n")
    return int(status.split(b" ", 2)[1]), rest


async def unary_client(address: tuple[str, int], until: float, report: Report) -> None:
    """Ask, and ask again."""
    while time.monotonic() < until:
        status, body = await request(address, "/v1/embeddings", {"model": "stub", "input": "soak"})
        report.unary[str(status)] += 1
        if status != 200:
            report.examples.append(body.decode(errors="replace")[:200])


async def stream_client(address: tuple[str, int], until: float, report: Report) -> None:
    """Stream, and stream again."""
    body = {"model": "stub", "prompt": "soak", "stream": True, "max_tokens": 40}
    while time.monotonic() < until:
        status, answer = await request(address, "/v1/completions", body)
        if status != 200:
            report.streams[f"refused {status}"] += 1
            report.examples.append(answer.decode(errors="replace")[:200])
        elif b"[DONE]" in answer:
            report.streams["complete"] += 1
        elif b'"error"' in answer:
            report.streams["ended with an error event"] += 1
        else:
            report.streams["silent"] += 1


class Disturber:
    """Does something to the fleet, at random, but never takes away the last two that serve."""

    def __init__(self, running: Running, report: Report, seed: int) -> None:
        self._running = running
        self._report = report
        self._random = random.Random(seed)

    def act(self) -> None:
        """One action."""
        inventory = self._running.inventory()
        ready = [row for row in inventory.deployments[0].replicas if row.state == "ready"]
        self._look(inventory)
        calm = ["scale up", "reload", "readmit", "revive"]
        harsh = ["scale down", "drain", "restart", "rolling restart", "eject", "kill -9"]
        name = self._random.choice(calm + harsh if len(ready) >= LEAST else calm)
        with contextlib.suppress(CommandRefused):
            self._do(name, inventory, ready)
            self._report.actions[name] += 1

    def _do(self, name: str, inventory: Inventory, ready: list[ReplicaStatus]) -> None:
        running, pick = self._running, self._random.choice
        desired = inventory.deployments[0].desired_replicas
        rows = inventory.deployments[0].replicas
        match name:
            case "scale up":
                running.accepted(Scale(deployment="stub", replicas=min(MOST, desired + self._random.randint(1, 2))))
            case "scale down":
                running.accepted(Scale(deployment="stub", replicas=max(LEAST, desired - 1)))
            case "reload":
                running.accepted(Reload())
            case "drain":
                running.accepted(DrainReplica(replica=pick(ready).name))
            case "restart":
                running.accepted(Restart(target=pick(ready).name))
            case "rolling restart":
                running.accepted(Restart(target="stub"))
            case "eject":
                running.accepted(Eject(replica=pick(ready).name))
            case "kill -9":
                victim = pick(ready)
                if victim.pid is not None:
                    os.kill(victim.pid, signal.SIGKILL)
            case "readmit":
                for row in rows:
                    if row.state == "ejected":
                        running.accepted(Readmit(replica=row.name))
            case "revive":
                for row in rows:
                    if row.cordoned or row.state in ("failed", "restarting"):
                        running.accepted(Restart(target=row.name))

    def _look(self, inventory: Inventory) -> None:
        living = [row.pid for row in inventory.deployments[0].replicas if row.pid is not None]
        assert len(living) == len(set(living)), "two slots with one process"
        self._report.most_processes = max(self._report.most_processes, len(living))


async def soak(running: Running, seconds: float, actions: int, seed: int = 1) -> Report:
    """Load and disturb a fleet for some seconds."""
    report = Report()
    disturber = Disturber(running, report, seed)
    address, until = running.address, time.monotonic() + seconds
    clients = [unary_client(address, until, report) for _ in range(UNARY_CLIENTS)]
    clients += [stream_client(address, until, report) for _ in range(STREAM_CLIENTS)]
    load = asyncio.gather(*clients)
    for number in range(actions):
        await asyncio.to_thread(disturber.act)
        rest = until - time.monotonic()
        await asyncio.sleep(max(0.0, rest / (actions - number)))
    await load
    return report


def main() -> None:
    """Run and print the counts; exit code 1 where something was lost."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    actions = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with serving(stub_config(replicas=4, engine_args=ENGINE), replicas=4) as running:
        report = asyncio.run(soak(running, seconds, actions, seed))
        log = running.log()
    table = Table(title=f"soak: {seconds:g} s, {sum(report.actions.values())} actions, seed {seed}")
    table.add_column("what")
    table.add_column("count", justify="right")
    for title, counts in (("unary", report.unary), ("stream", report.streams), ("action", report.actions)):
        for name, count in sorted(counts.items()):
            table.add_row(f"{title}: {name}", str(count))
    table.add_row("unary requests lost", str(report.lost_unary))
    Console().print(table)
    for example in report.examples[:5]:
        print(example)
    if report.lost_unary or report.silent_streams:
        print(log)
        sys.exit(1)


if __name__ == "__main__":
    main()
