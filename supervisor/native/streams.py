"""Streamed answers on the client's side: bytes as they come, and the events in them.

Leaving early is what matters here. A stream that is closed, left by an exception, cancelled, or just dropped
(`break` out of `async for`) cancels its generation in the engine. So the connection holds the feed, only the
caller holds the stream.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import msgspec

from engine.errors import ProtocolError, StokerError
from supervisor.native.connection import Connection, Waiting
from supervisor.native.errors import error_in

Start = Callable[[Waiting], Coroutine[Any, Any, tuple[Connection, int]]]
"""Sends the request of a stream; the connection and the request's number on it."""

_decode = msgspec.json.Decoder().decode


class Feed:
    """What came of one stream and was not taken yet (`connection.Waiting`)."""

    def __init__(self) -> None:
        self.give_up_at = math.inf
        self.pieces: collections.deque[bytes] = collections.deque()
        self.replica: str | None = None
        self.status: int | None = None
        """Set where the answer came whole."""
        self.error: StokerError | None = None
        self.over = False
        self._news: asyncio.Future[None] | None = None

    async def news(self) -> None:
        """Wait until there is a piece, or the end."""
        if not (self.pieces or self.over):
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    def answer(self, status: int, body: bytes, replica: str) -> None:
        self.replica, self.status = replica, status
        self.pieces.append(body)
        self.end()

    def chunk(self, data: bytes, replica: str) -> None:
        self.replica = replica
        self.pieces.append(data)
        self._tell()

    def end(self) -> None:
        self.over = True
        self._tell()

    def fail(self, error: StokerError) -> None:
        self.error = error
        self.end()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class ByteStream:
    """The bytes of a streamed answer, as they come. The request leaves at the first step.

    A failure, also one after the first bytes, is raised where the next bytes would be. Use it in one task at
    a time.
    """

    def __init__(self, start: Start) -> None:
        self._start: Start | None = start
        self._feed = Feed()
        self._connection: Connection | None = None
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def replica(self) -> str | None:
        """Who answers; known with the first bytes."""
        return self._feed.replica

    @property
    def request_id(self) -> str | None:
        """The request's id; known once it has left."""
        return None if self._connection is None else self._connection.request_id(self._number)

    @property
    def is_whole(self) -> bool:
        """The replica did not stream: it gave one whole answer."""
        return self._feed.status is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        start, self._start = self._start, None
        self._loop = asyncio.get_running_loop()
        feed = self._feed
        try:
            if start is not None:
                self._connection, self._number = await start(feed)
            await feed.news()
        except BaseException:
            self.close()
            raise
        if feed.pieces:
            return self._checked(feed.pieces.popleft())
        error, feed.error = feed.error, None
        raise StopAsyncIteration if error is None else error

    def _checked(self, piece: bytes) -> bytes:
        if self._feed.status is not None and self._feed.status >= 400:
            raise error_in(piece, self._feed.status, replica=self.replica, request_id=self.request_id)
        return piece

    def close(self) -> None:
        """Leave: what is not generated yet will not be. After the end it changes nothing."""
        self._start = None
        self._feed.pieces.clear()
        self._feed.over = True
        if self._connection is not None:
            self._connection.cancel(self._number)

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """Dropped without a word, perhaps on another thread: cancelled on the loop, if that still runs."""
        if self._loop is not None and self._connection is not None and not self._feed.over:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._connection.cancel, self._number)


class EventStream:
    """The events of a streamed answer, each as a dictionary; `[DONE]` is the end of it, not an event."""

    def __init__(self, source: ByteStream) -> None:
        self._bytes = source
        self._reader = EventReader()
        self._events: collections.deque[dict[str, Any]] = collections.deque()

    @property
    def replica(self) -> str | None:
        """Who answers; known with the first event."""
        return self._bytes.replica

    @property
    def request_id(self) -> str | None:
        """The request's id; known once it has left."""
        return self._bytes.request_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        while not self._events:
            data = await self._bytes.__anext__()
            found = [data] if self._bytes.is_whole else self._reader.feed(data)
            self._events.extend(self._parsed(one) for one in found)
        event = self._events.popleft()
        if "error" in event:
            self.close()
            raise error_in(msgspec.json.encode(event), 500, replica=self.replica, request_id=self.request_id)
        return event

    def close(self) -> None:
        """Leave: what is not generated yet will not be."""
        self._events.clear()
        self._bytes.close()

    async def aclose(self) -> None:
        """The same as `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.close()
            raise ProtocolError(f"{self.replica} streamed an event that is not JSON: {error}") from None
        if not isinstance(event, dict):
            self.close()
            raise ProtocolError(f"{self.replica} streamed an event that is no object: {data[:80]!r}")
        return event


class EventReader:
    """Server-sent events out of bytes that may be cut anywhere. Pure: feed it, take what it found."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete, `[DONE]` left out."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                event = b"\n".join(self._data)
                self._data = []
                if event != b"[DONE]":
                    found.append(event)
        return found
