"""The whole HTTP side in one process: real sockets, the real gateway and exchanges, engines played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from engine.messages import Request
from supervisor.core.body_room import BodyRoom
from supervisor.core.dispatch import Member, Pool
from supervisor.core.ejection import Outcome
from supervisor.core.traffic import Traffic
from supervisor.exchanges import Exchanges, Lane, Target
from supervisor.gateway.app import Gateway, Page
from supervisor.gateway.connection import Connection
from supervisor.gateway.server import HttpServer

LONG_S = 20.0
"""A bound that only a hang reaches."""
MOST_CLIENTS = 500
BODY_ROOM_BYTES = 16 * 1024 * 1024


class Wire:
    """Where requests go that nobody answers by itself."""

    def __init__(self) -> None:
        self.sent: list[tuple[Request, bytes]] = []
        self.cancelled: list[int] = []

    def send(self, request: Request, body: bytes) -> bool:
        self.sent.append((request, body))
        return True

    def cancel(self, exchange: int) -> None:
        self.cancelled.append(exchange)

    def ask(self) -> None:
        """Health is of no interest here."""


class Pages:
    """The status side: two pages, and one that fails."""

    def get(self, path: str) -> Page | None:
        if path == "/mistake":
            raise ZeroDivisionError("a mistake of ours")
        return Page(200, b'{"status":"ok"}') if path in ("/health", "/a page") else None

    def scale(self, body: bytes) -> Page:
        return Page(200, body)


class Directory:
    """One deployment, `m`, and it is the default."""

    def __init__(self, lane: Lane) -> None:
        self.stopping = False
        self._lane = lane

    def find(self, model: str | None) -> Lane | None:
        return self._lane if model in (None, "m") else None

    def why_none(self, model: str | None) -> str:
        return f"there is no {model}"


@dataclasses.dataclass
class Answer:
    """One HTTP answer as a client sees it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error in our shape."""
        error = msgspec.json.decode(self.body)["error"]
        assert error["message"] and error["type"] and self.headers["x-request-id"]
        return str(error["code"])


class Client:
    """A client that sends bytes as the test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, body: bool = True) -> Answer:
        """The next answer. body: whether one follows its head."""
        status, headers = await self.head()
        if not body:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join([piece async for piece in self.pieces()]))
        if "content-length" in headers:
            return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        return Answer(status, headers, await self.reader.read())

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().rstrip("\r\n").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        return int(status), dict(line.lower().split(": ", 1) for line in lines)

    async def pieces(self) -> AsyncIterator[bytes]:
        """A body that comes in chunks."""
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()

    async def closed(self) -> bytes:
        """What still comes until the server closes."""
        return await self.reader.read()


class House:
    """A gateway with two replicas, and the server before it."""

    def __init__(self) -> None:
        self.exchanges = Exchanges(lambda lane, found, reason: None)
        self.lane = Lane("m", Pool(self.exchanges.tickets, desired=2), 60.0, 1)
        self.targets = [self._target(f"m/{number}") for number in range(2)]
        self.directory = Directory(self.lane)
        self.room = BodyRoom(BODY_ROOM_BYTES)
        self.turned_away: list[int] = []
        self.server = HttpServer(
            Gateway(self.exchanges, self.directory, Pages(), None),
            most=MOST_CLIENTS,
            room=self.room,
            on_full=self.turned_away.append,
        )
        self.clients: list[Client] = []
        self.mistakes: list[dict[str, Any]] = []

    def _target(self, name: str) -> Target:
        member = Member(name, in_rotation=True)
        target = Target(member, Wire(), dict.fromkeys(Outcome, 0), Traffic(0.0))
        self.lane.pool.members.append(member)
        self.lane.targets[member] = target
        return target

    @property
    def connections(self) -> list[Connection]:
        return list(self.server._connections)

    async def connect(self, receive_buffer: int | None = None) -> Client:
        """A client; receive_buffer: bytes that its kernel takes in for it."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self.address)
        self.clients.append(Client(*await asyncio.open_connection(sock=connection, limit=2**12)))
        return self.clients[-1]

    async def opened(self, count: int) -> list[tuple[Target, int]]:
        """Exchanges that wait for their replica, once there are that many."""
        await until(lambda: len(self.open()) == count)
        return self.open()

    def open(self) -> list[tuple[Target, int]]:
        return [(target, number) for target in self.targets for number in target.open]

    def body_of(self, number: int) -> bytes:
        """What a replica got."""
        wires = [target.carrier for target in self.targets]
        return next(
            body for wire in wires if isinstance(wire, Wire) for sent, body in wire.sent if sent.exchange == number
        )

    def cancelled(self) -> list[int]:
        return [
            number for target in self.targets if isinstance(target.carrier, Wire) for number in target.carrier.cancelled
        ]

    def answer(self, target: Target, number: int, body: bytes = b"{}", status: int = 200) -> None:
        self.exchanges.on_answer(target, number, status, body)

    def sweep(self, later_s: float) -> None:
        """Have the server look at its connections as if so much time had passed."""
        for connection in self.connections:
            connection.sweep(self.server.now + later_s)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[House]:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.address = listener.getsockname()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.mistakes.append(context))
        listening = await self.server.listen(listener)
        try:
            yield self
        finally:
            listening.close()
            for client in self.clients:
                client.writer.close()
            for connection in self.connections:
                connection.abort()
            await self.server.close()
            assert not self.connections


async def until(holds: Callable[[], bool]) -> None:
    """Turn the loop until it is so."""
    async with asyncio.timeout(LONG_S):
        while not holds():
            await asyncio.sleep(0.001)


def in_house(test: Callable[[House], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in a house of its own, on the loop that the supervisor runs on."""

    @functools.wraps(test)
    def run() -> None:
        async def main() -> None:
            house = House()
            async with house.running(), asyncio.timeout(LONG_S):
                await test(house)

        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def post(body: bytes = b"{}", path: str = "/v1/embeddings", headers: str = "") -> bytes:
    """A request with a length. headers: further lines, each with its end."""
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body
