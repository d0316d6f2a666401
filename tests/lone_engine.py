"""One engine process without a supervisor: started as one starts it, and spoken to over a ROUTER socket of our own.

For what a supervisor would hide: when exactly a frame leaves, what a request costs, what a signal does in a forward.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import zmq

from engine.messages import (
    Answer,
    Faults,
    LaunchSpec,
    Register,
    Request,
    Route,
    SetFaults,
    ToEngine,
    ToSupervisor,
    decode_to_supervisor,
    encode,
)

LONG_S = 30.0
"""A bound that only a hang reaches."""

BODY = b'{"model":"stub","input":"%s"}' % (b"x" * 460)

Said = tuple[ToSupervisor, bytes | None]
Kind = TypeVar("Kind")


class LoneEngine:
    """A stub engine in its own process. options: its `engine_args`."""

    def __init__(self, folder: Path, **options: object) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        endpoint = f"ipc://{folder}/lone"
        self._socket.bind(endpoint)
        self._numbers = itertools.count(1)
        spec = LaunchSpec(
            endpoint=endpoint,
            identity=b"lone",
            supervisor_pid=os.getpid(),
            replica="stub/0",
            incarnation=1,
            artifact="stub",
            device="cpu",
            threads=1,
            engine="stub",
            options=options,
        )
        data = encode(spec)
        self.process = subprocess.Popen([sys.executable, "-P", "-m", "engine.process"], stdin=subprocess.PIPE)
        assert self.process.stdin is not None
        self.lifeline = self.process.stdin
        self.lifeline.write(len(data).to_bytes(4, "big") + data)
        self.lifeline.flush()
        self.seen = psutil.Process(self.process.pid)

    def __enter__(self) -> LoneEngine:
        self.await_one(Register)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.lifeline.close()
        self._socket.close()
        self._context.term()

    # ------------------------------------------------------------------------------------------- to it

    def tell(self, message: ToEngine, body: bytes | None = None) -> None:
        """Send a message."""
        frames = [b"lone", encode(message)]
        self._socket.send_multipart(frames if body is None else [*frames, body])

    def ask(self, body: bytes = BODY, route: Route = Route.EMBEDDINGS, *, stream: bool = False) -> int:
        """Send a request; its exchange."""
        exchange = next(self._numbers)
        self.tell(Request(exchange, route, stream, LONG_S), body)
        return exchange

    def faults(self, **faults: Any) -> None:
        """Set its faults."""
        self.tell(SetFaults(Faults(**faults)))

    # ------------------------------------------------------------------------------------------- from it

    def hear(self, limit_s: float = LONG_S) -> Said | None:
        """The next message, None where none comes in time."""
        if not self._socket.poll(int(limit_s * 1000)):
            return None
        frames = self._socket.recv_multipart()
        return decode_to_supervisor(frames[1]), frames[2] if len(frames) == 3 else None

    def hear_for(self, seconds: float) -> list[Said]:
        """Everything it says in that time."""
        end = time.monotonic() + seconds
        said = []
        while (left := end - time.monotonic()) > 0:
            if (one := self.hear(left)) is not None:
                said.append(one)
        return said

    def await_one(self, kind: type[Kind], limit_s: float = LONG_S) -> Kind:
        """The next message of a kind; others are passed over."""
        deadline = time.monotonic() + limit_s
        while (said := self.hear(max(0.0, deadline - time.monotonic()))) is not None:
            if isinstance(said[0], kind):
                return said[0]
        raise AssertionError(f"no {kind.__name__} within {limit_s} s")

    def answers(self, count: int) -> Iterator[Answer]:
        """The next answers."""
        for _ in range(count):
            yield self.await_one(Answer)

    # ------------------------------------------------------------------------------------------- about it

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        times = self.seen.cpu_times()
        return times.user + times.system

    def wake_ups(self) -> int:
        """How often its threads have gone to sleep and were woken."""
        count = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    count += int(line.split()[1])
        return count
