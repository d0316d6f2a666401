"""What a dashboard costs the requests: 64 stub replicas at full load, with `stoker top` attached and without.

    python -m benchmarks.dashboard [seconds a turn] [rounds]

With and without take turns, since a machine's speed drifts; the ratio is of neighbouring turns. The dashboard runs in a
pseudo-terminal of 200 x 60 that somebody reads, as an ssh session would. Prints, asserts nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import load
from benchmarks.fleet import serving
from tests.support import Running, stub_config

REPLICAS = 64
CLIENTS = 128
SETTLED_S = 2.0
"""After its first picture a dashboard has loaded all it needs."""


def main() -> None:
    """Run and print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    body = json.dumps({"model": "stub", "input": "x" * 460}).encode()
    table = Table(title=f"{REPLICAS} stub replicas, {CLIENTS} clients, a dashboard of 200 x 60")
    for column in ("round", "requests/s without", "with", "ratio", "dashboard, % of a core"):
        table.add_column(column, justify="right")
    ratios, shares = [], []
    with serving(stub_config(replicas=REPLICAS), replicas=REPLICAS) as running:
        load.run(*running.address, "/v1/embeddings", body, CLIENTS, 1.0)
        for number in range(1, rounds + 1):
            alone = load.run(*running.address, "/v1/embeddings", body, CLIENTS, seconds)
            with _dashboard(running) as process:
                before, began = sum(process.cpu_times()[:2]), time.monotonic()
                watched = load.run(*running.address, "/v1/embeddings", body, CLIENTS, seconds)
                share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
            ratios.append(watched.requests_per_s / alone.requests_per_s)
            shares.append(share)
            rates = (f"{alone.requests_per_s:,.0f}", f"{watched.requests_per_s:,.0f}")
            table.add_row(str(number), *rates, f"{ratios[-1]:.3f}", f"{share:.1%}")
    table.add_section()
    table.add_row("median", "", "", f"{statistics.median(ratios):.3f}", f"{statistics.median(shares):.1%}")
    Console().print(table)


@contextlib.contextmanager
def _dashboard(running: Running) -> Iterator[psutil.Process]:
    """A dashboard that has drawn its first picture."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    command = [sys.executable, "-m", "ui.cli.main", "top", "--name", "test"]
    environ = running.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    drawn = threading.Event()
    reader = threading.Thread(target=_read, args=(ours, drawn))
    reader.start()
    try:
        if not drawn.wait(30):
            raise RuntimeError("the dashboard did not draw its fleet within 30 s")
        time.sleep(SETTLED_S)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()
        reader.join()
        os.close(ours)


def _read(terminal: int, drawn: threading.Event) -> None:
    """What a terminal does: read, until nobody writes any more."""
    seen = b""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65536):
            if not drawn.is_set():
                seen += data
                if b"live" in seen:
                    drawn.set()


if __name__ == "__main__":
    main()
