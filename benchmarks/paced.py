"""An open-loop HTTP load: requests leave at their own times, at random around a set rate, answered or not.

Unlike `load`, which slows down with the server, this finds out what waits: a latency counts from the moment at which
the request was due, so a server that stalls is charged for everyone who came meanwhile. One thread on plain sockets
with `select`, as event loops round their timers up to a millisecond.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import re
import select
import socket
import time

from benchmarks.load import as_request
from benchmarks.results import percentile

PATIENCE_S = 30.0
"""How long to wait for the last answers."""
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


@dataclasses.dataclass
class Paced:
    """What became of the requests. Latencies of 200s in seconds, from when they were due."""

    statuses: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    latencies: list[float] = dataclasses.field(default_factory=list)
    sent: int = 0
    took_s: float = 0.0

    @property
    def lost(self) -> int:
        """Requests without any answer."""
        return self.sent - self.statuses.total()

    @property
    def answered_per_s(self) -> float:
        """200s a second."""
        return self.statuses[200] / self.took_s

    def ms(self, share: float) -> float:
        """A percentile of the latencies, in milliseconds."""
        return percentile(self.latencies, share) * 1e3


class _Connection:
    """One request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.due = 0.0
        self._read = b""
        self._address = address
        self.open()

    def open(self) -> None:
        """Connect, anew where it broke."""
        self.socket = socket.create_connection(self._address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    def send(self, request: bytes, due: float) -> None:
        """Ask; small requests go out whole."""
        self.due = due
        self._read = b""
        self.socket.sendall(request)

    def status(self) -> int | None:
        """Read what came: the status of a whole answer, None where more is to come. Raises ConnectionError."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionResetError("closed by the server")
        self._read += data
        head, found, rest = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or len(rest) < (int(length[1]) if length else 0):
            return None
        return int(head[9:12])


def run(address: tuple[str, int], path: str, body: bytes, rate: float, seconds: float, connections: int) -> Paced:
    """Send at `rate` a second for some seconds, over at most so many connections (select allows about a thousand).

    A request that is due while all connections wait for answers leaves when one is free, and its waiting counts.
    """
    request = as_request(address[0], path, body)
    free = [_Connection(address) for _ in range(connections)]
    waiting: set[_Connection] = set()
    done, dice = Paced(), random.Random(1)
    began = due = time.perf_counter()
    end = began + seconds
    try:
        while due < end or (waiting and time.perf_counter() < end + PATIENCE_S):
            now = time.perf_counter()
            while free and due <= now and due < end:
                one = free.pop()
                one.send(request, due)
                waiting.add(one)
                done.sent += 1
                due += dice.expovariate(rate)
            pause = max(0.0, due - now) if free and due < end else 0.1
            for one in select.select(list(waiting), [], [], pause)[0]:
                if _settle(one, done):
                    waiting.discard(one)
                    free.append(one)
        done.took_s = time.perf_counter() - began
    finally:
        for one in (*free, *waiting):
            one.socket.close()
    return done


def _settle(one: _Connection, done: Paced) -> bool:
    """Take an answer in, where it is whole. A connection that breaks is replaced; its request is lost."""
    try:
        status = one.status()
    except ConnectionError:  # counted: sent, and no status
        one.socket.close()
        one.open()
        return True
    if status is None:
        return False
    done.statuses[status] += 1
    if status == 200:
        done.latencies.append(time.perf_counter() - one.due)
    return True
