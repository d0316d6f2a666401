"""All of the HTTP link that is aiohttp: connections to one foreign server, a request on them, what went wrong.

Imported when the first attached replica appears, and not by the event loop's thread: aiohttp costs 9 MiB and
0.4 s.
"""

from __future__ import annotations

import contextvars
import io
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.http import HttpProcessingError
from yarl import URL

from engine.messages import MAX_BODY_BYTES
from supervisor.links.rewrite import Broken, error_body, is_json, said

if TYPE_CHECKING:
    from aiohttp.connector import Connection

CONNECT_S = 2.0
"""Limit of connecting: name, TCP, TLS. The answer has no limit here; the deadline is dispatch's."""
MOST_IDLE = 64
"""Connections to one server that are kept for the next exchange."""
IDLE_S = 90.0
"""How long they are kept."""
LARGE_BYTES = 64 * 1024
"""A larger body is sent in pieces, so that what a stopped server does not read is not copied to a buffer."""

HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
"""Uncompressed is asked for, so that bytes pass through; what comes compressed all the same is unpacked."""
CLOSE = {"Connection": "close"}

FAULTS = (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError, UnicodeError)
"""What aiohttp raises where the other side, or the way to it, is at fault."""
_CUT = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class Way:
    """The connection that an exchange is on: to give it up at once, and to know a stale one."""

    __slots__ = ("answered", "connection", "reused")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.reused = False
        self.answered = False

    def abort(self) -> None:
        """Close the connection now, whatever is still to be sent on it: how a server learns that it may stop.

        Nothing happens where the exchange is through with its connection, which may be another's by now.
        """
        transport = self.connection.transport if self.connection is not None else None
        if transport is not None:
            transport.abort()


_Used = weakref.WeakSet[object]
_way: contextvars.ContextVar[tuple[Way, _Used] | None] = contextvars.ContextVar("way", default=None)
"""The way of the exchange whose task this is, and the connections that carried one before."""


class _Request(aiohttp.ClientRequest):
    """A request that tells its exchange which connection it got."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        found = _way.get()
        if found is not None:
            way, used = found
            way.connection, way.reused = conn, conn.protocol in used
            used.add(conn.protocol)
        return await super().send(conn)


class Session:
    """The connections to one server. `base`: http(s)://host[:port][/path], or unix:///path of its socket."""

    def __init__(self, base: str) -> None:
        self._busy = 0
        self._used: _Used = weakref.WeakSet()
        self._urls: dict[str, URL] = {}
        connector: aiohttp.BaseConnector
        if base.startswith("unix://"):
            connector = aiohttp.UnixConnector(base.removeprefix("unix://"), limit=0, keepalive_timeout=IDLE_S)
            self._base = "http://localhost"
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
            self._base = base
        self._session = aiohttp.ClientSession(
            connector=connector,
            request_class=_Request,
            headers=HEADERS,
            skip_auto_headers=("User-Agent", "Accept"),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    def new_way(self) -> Way:
        """For one exchange."""
        return Way()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page. Raises Broken."""
        try:
            async with self._session.get(self._url(path), allow_redirects=False) as response:
                return response.status, await self._whole(response)
        except FAULTS as error:
            raise Broken(_words(error, answered=False)) from error

    async def post(
        self, way: Way, path: str, body: bytes, on_piece: Callable[[bytes], None] | None
    ) -> tuple[int, bytes] | None:
        """Status and JSON of the whole answer; None where it was streamed, each piece given to `on_piece`.

        Only server-sent events are streamed, and only where there is an `on_piece`. Raises Broken.
        """
        self._busy += 1
        _way.set((way, self._used))
        try:
            try:
                return await self._post(way, path, body, on_piece)
            except _CUT as error:
                # A server may close an idle connection just while a request is on its way to it. That says
                # nothing of the server, so the request is sent once more, on another connection.
                if way.answered or not way.reused or isinstance(error, aiohttp.ClientConnectorError):
                    raise
                return await self._post(way, path, body, on_piece)
        except FAULTS as error:
            raise Broken(_words(error, way.answered)) from error
        finally:
            self._busy -= 1

    async def _post(
        self, way: Way, path: str, body: bytes, on_piece: Callable[[bytes], None] | None
    ) -> tuple[int, bytes] | None:
        data = body if len(body) <= LARGE_BYTES else io.BytesIO(body)
        headers = CLOSE if self._busy > MOST_IDLE else None
        url = self._url(path)
        async with self._session.post(url, data=data, headers=headers, allow_redirects=False) as response:
            way.answered = True
            if on_piece is not None and _is_stream(response):
                await self._pour(response, on_piece)
                return None
            return self._judged(response, await self._whole(response))

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        pieces, size = [], 0
        async for piece in response.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise Broken(f"answered with more than {MAX_BODY_BYTES} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _pour(self, response: aiohttp.ClientResponse, on_piece: Callable[[bytes], None]) -> None:
        tail = b""
        async for piece in response.content.iter_any():
            tail = (tail + piece)[-16:]
            on_piece(piece)
        if not _has_end(response) and b"[DONE]" not in tail:
            raise Broken("closed the connection before the end of the stream")

    def _judged(self, response: aiohttp.ClientResponse, body: bytes) -> tuple[int, bytes]:
        """What of an answer a caller may get. Raises Broken where it is none."""
        status = response.status
        if status >= 400:
            return status, error_body(status, body)
        if not 200 <= status < 300:
            raise Broken(f"answered {said(status)}, which is followed nowhere")
        kind = response.content_type
        if not body or not (kind == "application/json" or kind.endswith("+json") or is_json(body)):
            found = ascii(kind[:60])[1:-1] if body else "nothing"
            raise Broken(f"answered {said(status)} with {found} where JSON was expected")
        return status, body

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self._base + path, encoded=True)
        return url


def _is_stream(response: aiohttp.ClientResponse) -> bool:
    return response.status == 200 and response.content_type == "text/event-stream"


def _has_end(response: aiohttp.ClientResponse) -> bool:
    """Whether HTTP itself says where the answer ends, so that a cut one is an error and needs no guess."""
    coding = response.headers.get("Transfer-Encoding", "").lower()
    return response.content_length is not None or "chunked" in coding


def _words(error: BaseException, answered: bool) -> str:
    """What went wrong, without addresses."""
    match error:
        case TimeoutError():
            return f"no connection within {CONNECT_S:g} s"
        case aiohttp.ClientConnectorDNSError() | UnicodeError():  # the latter for a label of over 63 characters
            return "its name has no address"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not trusted"
        case aiohttp.ClientSSLError():
            return "TLS failed"
        case aiohttp.ClientConnectorError():
            return _system_words(error.os_error, "no connection")
        case aiohttp.ClientPayloadError():
            return "broke off in the middle of its answer"
        case aiohttp.ServerDisconnectedError():
            when = "in the middle of its answer" if answered else "without an answer"
            return f"closed the connection {when}"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return "its answer is not valid HTTP"
        case OSError():
            return _system_words(error, "the connection broke")
    return "the connection broke"


def _system_words(error: OSError, otherwise: str) -> str:
    return os.strerror(error.errno).lower() if error.errno else otherwise
