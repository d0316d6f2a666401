"""Foreign servers for the link's tests: small, real, and each as well or ill behaved as its story needs.

Waiting is always for something that was heard, never for a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from engine.messages import Request, Route
from supervisor.links.health import Health
from supervisor.links.http import HttpCarrier, HttpLink

LONG_S = 20.0
"""A bound that only a hang reaches."""

BODY = b'{"model":"m","input":"hello"}'
ANSWER = b'{"object":"list","model":"m","data":[ 1.50 ]}'

T = TypeVar("T")
Connection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def soon(awaitable: Awaitable[T]) -> T:
    """What it comes to; a hang is an error."""
    return await asyncio.wait_for(awaitable, LONG_S)


class Heard:
    """A `Receiver` that keeps what it is told, probes apart from exchanges."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.healths: asyncio.Queue[Health] = asyncio.Queue()

    def on_answer(self, number: int, status: int, body: bytes) -> None:
        self.told.put_nowait(("answer", number, status, body))

    def on_chunk(self, number: int, data: bytes) -> None:
        self.told.put_nowait(("chunk", number, data))

    def on_end(self, number: int) -> None:
        self.told.put_nowait(("end", number))

    def on_broken(self, number: int, reason: str) -> None:
        self.told.put_nowait(("broken", number, reason))

    def on_health(self, health: Health) -> None:
        self.healths.put_nowait(health)

    async def next(self) -> tuple[Any, ...]:
        """What it is told next of any exchange."""
        return await soon(self.told.get())

    async def health(self) -> Health:
        """The next probe's result."""
        return await soon(self.healths.get())

    async def streamed(self) -> tuple[bytes, tuple[Any, ...]]:
        """The chunks of one exchange, joined, and how it ended."""
        data = b""
        while (told := await self.next())[0] == "chunk":
            data += told[2]
        return data, told

    @property
    def silent(self) -> bool:
        """Nothing more was said of any exchange."""
        return self.told.empty()


class Scene:
    """A link, who hears of it, and the servers of one story."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.link = HttpLink()
        self.heard = Heard()
        self.stack = contextlib.AsyncExitStack()

    async def serve(self, connection: Connection, unix: bool = False, tls: ssl.SSLContext | None = None) -> str:
        """An endpoint at which each connection is handed to `connection`, and closed when that returns."""
        busy: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            busy.add(task)
            try:
                await connection(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                busy.discard(task)
                writer.close()

        if unix:
            path = self.folder / "foreign.sock"
            server = await asyncio.start_unix_server(accept, path)
            endpoint = f"unix://{path}"
        else:
            server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
            endpoint = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        async def close() -> None:
            server.close()
            tasks = list(busy)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.stack.push_async_callback(close)
        return endpoint

    def attach(self, endpoint: str, model: str | None = None, logical_name: str = "primary") -> HttpCarrier:
        """A carrier whose receiver is `heard`."""
        return self.link.carrier(endpoint, model, logical_name, self.heard)

    async def ask(self, carrier: HttpCarrier, body: bytes = BODY, number: int = 1) -> tuple[Any, ...]:
        """Send one unary request; what came of it."""
        assert carrier.send(unary(number), body)
        return await self.heard.next()


def played(story: Callable[[Scene], Awaitable[None]]) -> Callable[[], None]:
    """A test out of a story, played on the supervisor's kind of loop; nothing may go wrong unseen or be left over."""

    def test() -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_play(story, Path(folder)))

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test


async def _play(story: Callable[[Scene], Awaitable[None]], folder: Path) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    scene = Scene(folder)
    async with scene.stack:
        await soon(story(scene))
        await soon(scene.link.close())
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"left running: {left}"
    assert not unseen, f"went wrong unseen: {unseen}"


def unary(number: int = 1, route: Route = Route.EMBEDDINGS) -> Request:
    """A request for one whole answer."""
    return Request(number, route, False, 30.0)


def streaming(number: int = 1, route: Route = Route.CHAT) -> Request:
    """A request for a stream."""
    return Request(number, route, True, 30.0)


# ------------------------------------------------------------------------------------------------ servers' manners


class Asked:
    """A request as a server got it."""

    def __init__(self, head: bytes, body: bytes) -> None:
        line, _, rest = head.decode().partition("\r\n")
        self.method, self.path, _ = line.split(" ")
        pairs = (line.split(": ", 1) for line in rest.strip().split("\r\n"))
        self.headers = {name.lower(): value for name, value in pairs}
        self.body = body

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def read_request(reader: asyncio.StreamReader) -> Asked:
    """The next request of a connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    asked = Asked(head, b"")
    asked.body = await reader.readexactly(int(asked.headers.get("content-length", 0)))
    return asked


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json", *headers: str) -> bytes:
    """The bytes of an answer of known length."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def stream_head(kind: str = "text/event-stream; charset=utf-8") -> bytes:
    """The head of a chunked answer."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    """A piece of a chunked answer; the empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: Any) -> bytes:
    """A server-sent event with JSON data."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Answering:
    """A well-behaved server: health is fine, every POST gets `answer`, and all POSTs are kept.

    answer: raw bytes, or what makes them of the request; None: `ANSWER`. models: what `/v1/models` lists; None: no
    such page.
    """

    def __init__(self, answer: bytes | Callable[[Asked], bytes] | None = None, models: list[str] | None = None) -> None:
        self.answer = whole(ANSWER) if answer is None else answer
        self.models = models
        self.asked: list[Asked] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            asked = await read_request(reader)
            if asked.method == "POST":
                self.asked.append(asked)
                writer.write(self.answer if isinstance(self.answer, bytes) else self.answer(asked))
            else:
                writer.write(self.page(asked.path))
            await writer.drain()

    def page(self, path: str) -> bytes:
        """The answer to a GET."""
        if path == "/health":
            return whole(b"")
        if path == "/v1/models" and self.models is not None:
            listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            return whole(json.dumps(listed).encode())
        return whole(b"no such page", "404 Not Found", "text/plain")


def once(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Connection:
    """A server whose health is fine, and whose POSTs are answered by hand: the request is read, then `answer` acts."""
    pages = Answering()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = await read_request(reader)
            if asked.method == "POST":
                await answer(reader, writer)
                return
            writer.write(pages.page(asked.path))

    return connection
