"""One HTTP/1.1 connection of a load generator: a request at a time, no task and no future for it.

A bare protocol over httptools' parser: about a third of the processor time of a stream reader, which matters where
load and server share two cores. Whoever sends is called back when the answer is whole, or when there is none.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from engine.errors import StokerError

NO_CONNECTION = "connection"
"""Failure: it could not be made, or broke before an answer."""
TIMEOUT = "timeout"
CUT = "cut"
"""Failure: an answer that began, and broke off."""
NOT_HTTP = "not HTTP"

FAILURES = {
    NO_CONNECTION: "the connection could not be made, or broke before an answer came",
    TIMEOUT: "no answer within the limit of a request (--timeout)",
    CUT: "an answer that began, and broke off or ended with an error",
    NOT_HTTP: "what came back is no HTTP",
}
"""What each of them means."""

MOST_SAID_BYTES = 2000
"""Of the body of an error that are kept."""

CONNECT_S = 5.0

clock = time.perf_counter
"""Seconds; what latencies are taken with."""


class BadAddress(StokerError):
    """Not a URL that can be measured."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is. unix: path of its socket, else None. base: what stands before the path of a route."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    unix: str | None
    base: str

    @classmethod
    def at(cls, url: str) -> Server:
        """From `http(s)://host[:port][/base]` or `unix:///path`; a `/v1` at the end is that of the routes.

        Raises BadAddress.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadAddress(f"{url!r} is no URL: {error}") from None
        if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
            return cls(url, "localhost", 0, None, parts.path, "")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise BadAddress(f"expected http://HOST:PORT, https://HOST or unix:///PATH, found {url!r}")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(url, parts.hostname, port or (80 if tls is None else 443), tls, None, base)

    async def connect(self, connection: Connection) -> None:
        """Open it. Raises OSError, TimeoutError, UnicodeError (for a name that cannot be one)."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            if self.unix is not None:
                await loop.create_unix_connection(lambda: connection, self.unix)
                return
            await loop.create_connection(lambda: connection, self.host, self.port, ssl=self.tls)

    def request(self, method: str, path: str, key: str | None) -> bytes:
        """The head of a request, up to the value of its content-length."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            f"host: {host}:{self.port}" if self.unix is None else "host: localhost",
            "content-type: application/json",
            *([f"authorization: Bearer {key}"] if key is not None else []),
            "content-length: ",
        ]
        return "\r\n".join(lines).encode("latin-1", "replace")


class Reader(Protocol):
    """What is done with the body of an answer (`ui.bench.reading`)."""

    def begin(self) -> None:
        """A new answer is waited for."""

    def feed(self, piece: bytes) -> None:
        """More of its body."""


class Connection(asyncio.Protocol):
    """`done(connection)` is called for each request that was sent; `failure` says why it has no answer, None if it has.

    began: where latency is counted from. status: 0 before there is one. said: how the body of an error begins.
    """

    __slots__ = (
        "_done",
        "_keep",
        "_parser",
        "_transport",
        "_whole",
        "began",
        "busy",
        "failure",
        "reader",
        "said",
        "status",
        "usable",
    )

    def __init__(self, reader: Reader, done: Callable[[Connection], None]) -> None:
        self.reader = reader
        self.began = 0.0
        self.status = 0
        self.said = b""
        self.failure: str | None = None
        self.busy = False
        self.usable = False
        self._done = done
        self._whole = False
        self._keep = True
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)

    def send(self, request: bytes, began: float) -> None:
        """One request, head and body; the last one must be over."""
        assert self._transport is not None and not self.busy
        self.began, self.status, self.said, self.failure, self.busy = began, 0, b"", None, True
        self.reader.begin()
        self._transport.write(request)

    def give_up(self, why: str) -> None:
        """End what is being waited for, with that failure, and the connection with it."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()
        self._finish(why)

    def close(self) -> None:
        """Give the connection back, whatever is on it; nobody is told."""
        self.busy = False
        self.give_back()

    def give_back(self) -> None:
        """Nothing is sent on it any more."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.usable = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.give_up(NOT_HTTP)
            return
        if self._whole:
            self._whole = False
            if not self._keep:
                self.give_back()
            self._finish(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._finish(CUT if self.status else NO_CONNECTION)

    # ------------------------------------------------------------------------------------------- httptools

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self.reader.feed(piece)
        if self.status >= 300 and len(self.said) < MOST_SAID_BYTES:
            self.said += piece[:MOST_SAID_BYTES]

    def on_message_complete(self) -> None:
        self._whole = True
        self._keep = self._parser.should_keep_alive()  # the parser forgets it with the message

    def _finish(self, failure: str | None) -> None:
        if self.busy:
            self.busy = False
            self.failure = failure
            self._done(self)
