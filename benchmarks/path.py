"""Where the microseconds of a no-op request go inside the supervisor, stage by stage, in one process without a network.

    python -m benchmarks.path

Each stage is the real code on real bytes; what is left out is the kernel (sockets, wake-ups) and ZeroMQ's own thread.
The best of many short rounds is shown, since whatever else runs on the machine only adds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop
import zmq
from rich.console import Console
from rich.table import Table

from engine.messages import Answer, Request, encode
from supervisor.exchanges import Exchange, Failure
from supervisor.gateway.app import Peek
from supervisor.gateway.connection import Connection
from supervisor.gateway.reader import Reader
from supervisor.links.router import Router, router_socket
from supervisor.links.zeromq import parse
from tests.gateway.house import House

ROUNDS = 300
CALLS_A_ROUND = 50
IDENTITY = b"\1" + bytes(16)
BODY = json.dumps({"model": "m", "input": "x" * 460}).encode()
ANSWER = json.dumps({"object": "list", "data": [{"embedding": [0.1] * 8}], "usage": {"total_tokens": 1}}).encode()
HTTP = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


class _Transport:
    """A client that takes everything."""

    def write(self, data: bytes) -> None:
        """It is gone."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits."""
        return 0

    def abort(self) -> None:
        """Nothing to end."""


class _Nobody:
    """A caller of an exchange that hears nothing."""

    def answer(self, status: int, body: bytes, replica: str) -> None:
        """Not heard."""

    def chunk(self, data: bytes, replica: str) -> None:
        """Not heard."""

    def end(self) -> None:
        """Not heard."""

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        """Not heard."""


async def measure() -> Table:
    """Every stage."""
    table = Table(title="a no-op request inside the supervisor")
    table.add_column("stage")
    table.add_column("us", justify="right")
    reader = Reader(lambda request: None)
    peek = msgspec.json.Decoder(Peek)
    house = House()
    for target in house.targets:
        target.carrier = _Quiet()
    connection = Connection(house.server, house.server._app)
    connection.connection_made(cast(asyncio.Transport, _Transport()))

    def read() -> None:
        reader.feed(HTTP)
        reader.ready.clear()

    def exchange() -> None:
        submitted = house.exchanges.submit(house.lane, 1, False, BODY, _Nobody())
        assert isinstance(submitted, Exchange) and submitted.target is not None
        house.exchanges.on_answer(submitted.target, submitted.number, 200, ANSWER)

    def whole() -> None:
        connection.data_received(HTTP)
        target = next(target for target in house.targets if target.open)
        house.exchanges.on_answer(target, next(iter(target.open)), 200, ANSWER)

    table.add_row("HTTP bytes to a request", await _cost(read))
    table.add_row("its model and stream", await _cost(lambda: peek.decode(BODY)))
    table.add_row("dispatch, deadline, settling, accounts", await _cost(exchange))
    table.add_row("all of the gateway, with these three and the answer's bytes", await _cost(whole))
    table.add_row("header of the message to the engine", await _cost(lambda: encode(Request(12345, 1, False, 29.99))))
    sending, receiving = await _router_costs()
    table.add_row("three frames to ZeroMQ", sending)
    table.add_row("three frames from ZeroMQ, and the message in them", receiving)
    for connected in house.connections:
        house.server.closed(connected)
    return table


class _Quiet:
    """A way to a replica that leads nowhere."""

    def send(self, request: Request, body: bytes) -> bool:
        """Taken."""
        return True

    def cancel(self, exchange: int) -> None:
        """Taken."""

    def ask(self) -> None:
        """Taken."""


async def _router_costs() -> tuple[str, str]:
    """Sending to a peer in this process and receiving from it."""
    with zmq.Context() as context:
        socket = router_socket(context, most_bytes=1_000_000, linger_ms=0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind("inproc://benchmark")
        router = Router(socket, parse, str, 10**9)
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.ROUTING_ID, IDENTITY)
        peer.setsockopt(zmq.RCVHWM, 0)
        peer.setsockopt(zmq.SNDHWM, 0)
        peer.connect("inproc://benchmark")
        sending = await _cost(lambda: router.send([IDENTITY, encode(Request(1, 1, False, 1.0)), BODY]))
        best = float("inf")
        for _ in range(ROUNDS):
            for _ in range(CALLS_A_ROUND):
                peer.send_multipart([encode(Answer(1, 200)), ANSWER])
            started = time.perf_counter()
            router.look()
            best = min(best, time.perf_counter() - started)
        router.close()
        peer.close(linger=0)
    return sending, f"{best / CALLS_A_ROUND * 1e6:.1f}"


async def _cost(call: Callable[[], object]) -> str:
    """Microseconds a call takes; the loop turns between rounds, as it does in life."""
    best = float("inf")
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
        started = time.perf_counter()
        for _ in range(CALLS_A_ROUND):
            call()
        best = min(best, time.perf_counter() - started)
    return f"{best / CALLS_A_ROUND * 1e6:.1f}"


if __name__ == "__main__":
    Console().print(uvloop.run(measure()))
