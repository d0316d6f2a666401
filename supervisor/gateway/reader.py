"""Bytes to requests: HTTP/1.1 as it comes off one connection, cut anywhere (spec 11).

    feed(bytes) ... -> ready: requests, in order

httptools (llhttp) is the parser; it is strict about everything that smuggles: two lengths, a length beside a transfer
coding, bare line feeds, folded headers. What is decided here is what of a request is kept, and how much may come:

- Of the headers only those that somebody reads (`KEPT`); of a trailer nothing.
- A request that is refused by its head is handed over at once, with the reason in `refusal`. Its body is read on and
  dropped, so that a client that sends first and listens afterwards still gets the answer, and the connection lives.
- A large body holds its part of the room that all bodies share (`core.body_room`), until its request is let go. One
  that finds none is refused: by its head where that tells its length, else amid the body.
- After bytes that are no HTTP nothing more is read (`broken`): the last request handed over is the one to refuse.

Holds no socket and no clock.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import httptools

from engine.messages import MAX_BODY_BYTES
from supervisor.core.body_room import SMALL_BYTES as SMALL_BODY_BYTES
from supervisor.core.body_room import BodyRoom
from supervisor.exchanges import Failure
from supervisor.gateway import errors
from supervisor.gateway.errors import HttpError

MAX_HEAD_BYTES = 64 * 1024
"""Limit of request line and headers together, and of what may come in a body beside its bytes (a chunk's extension, the
trailer); 431 beyond it. What was read in one piece with the end of something else does not count."""

SMALL_PIECE_BYTES = 4 * 1024
COLLECT_BYTES = 256 * 1024
"""Pieces of a body smaller than the first are collected up to the second, so that a body in single bytes takes no more
than itself. Larger ones are joined once: growing one buffer with them costs ten times as much."""

ONCE = frozenset({b"host", b"transfer-encoding"})
"""Headers that two readers could read differently where there are two of them; the parser sees to the length."""

KEPT = frozenset(
    {
        b"authorization",
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"x-request-id",
        b"x-request-timeout-ms",
    }
)
"""Headers that are read; all others are passed over."""


class Request:
    """One request, read whole, or as far as it was refused. Names of headers are lower case.

    version: `1.1`, or what the client speaks instead. refusal: why it is not served. path, route: what the target
    means, filled in by whoever judges the head. held: what its body holds of the room for bodies.
    """

    __slots__ = ("body", "headers", "held", "keep_alive", "method", "path", "refusal", "route", "target", "version")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.version = "1.1"
        self.keep_alive = True
        self.body = b""
        self.refusal: HttpError | None = None
        self.path = ""
        self.route = 0
        self.held = 0


class Reader:
    """Reads one connection. judge: says of a head why its request is not served, None where it is.

    room: where large bodies find room. Whoever takes a request from `ready` lets it go by `release`.
    """

    def __init__(self, judge: Callable[[Request], HttpError | None], room: BodyRoom) -> None:
        self.ready: collections.deque[Request] = collections.deque()
        self.broken = False
        self.in_message = False
        """A request has begun and is not complete."""
        self.in_head = False
        self.continue_due = False
        """Its client waits for a word before it sends the body."""
        self._judge = judge
        self._room = room
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._head_bytes = 0
        self._piece = self._elsewhere = 0
        self._beside = 0
        self._dropping = False
        self._pieces: list[bytes | bytearray] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take bytes in. What they complete is in `ready` afterwards."""
        if self.broken:
            return
        self._piece, self._elsewhere = len(data), 0
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError as error:
            self._break(HttpError(errors.BAD_REQUEST, f"not an HTTP/1.1 request: {error}"))
        if self.in_message:
            self._beside += len(data)
            if self._beside > MAX_HEAD_BYTES and not self.broken:
                self._break(_head_too_large())

    def time_out(self) -> None:
        """The rest of a request does not come: refuse it."""
        self._break(HttpError(errors.REQUEST_TIMEOUT, "the rest of the request did not come in time"))

    def close(self) -> None:
        """No more bytes come; lets go of the parser, which points back here."""
        self.broken = True
        self._parser = None
        for request in self.ready:
            self.release(request)
        self.ready.clear()
        if self.in_message:
            self.release(self._request)
            self._forget_body()

    def release(self, request: Request) -> None:
        """Its body is needed no longer."""
        if request.held:
            self._room.give_back(request.held)
            request.held = 0

    # ------------------------------------------------------------------------------------- called by the parser

    def on_message_begin(self) -> None:
        self._request = Request()
        self._head_bytes = 0
        self._beside = -self._elsewhere
        self.in_message = self.in_head = True

    def on_url(self, url: bytes) -> None:
        self._request.target += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            return  # a trailer
        self._head_bytes += len(name) + len(value) + 4
        name = name.lower()
        if name in KEPT:
            headers = self._request.headers
            if name in ONCE and name in headers:
                self._request.refusal = HttpError(errors.BAD_REQUEST, f"more than one {name.decode().title()}")
            headers[name] = value

    def on_headers_complete(self) -> None:
        request, parser = self._request, self._parser
        self.in_head = False
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        if not request.keep_alive or b"connection" in request.headers:
            request.version = parser.get_http_version()
            if request.version == "1.0":
                request.keep_alive = request.headers.get(b"connection", b"").lower() == b"keep-alive"
        request.refusal = self._why_refused(request)
        if request.refusal is not None:
            self._hand_over_refused(request)
        elif b"expect" in request.headers:
            self.continue_due = request.headers[b"expect"].lower() == b"100-continue"

    def on_chunk_header(self) -> None:
        self._beside = -self._piece

    def on_body(self, data: bytes) -> None:
        self.continue_due = False
        self._beside = -self._piece
        if self._dropping:
            return
        self._size += len(data)
        pieces = self._pieces
        if len(data) >= SMALL_PIECE_BYTES or not pieces:
            pieces.append(data)
        elif isinstance(last := pieces[-1], bytearray) and len(last) < COLLECT_BYTES:
            last += data
        else:
            pieces.append(bytearray(data))
        if self._size > SMALL_BODY_BYTES and (why := self._why_not_more(self._request)) is not None:
            self._request.refusal = why
            self._hand_over_refused(self._request)

    def on_message_complete(self) -> None:
        self.in_message = self.continue_due = False
        self._elsewhere = self._piece
        if self._dropping:
            self._dropping = False
            return
        pieces, request = self._pieces, self._request
        if pieces:
            request.body = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
            self._forget_body()
        self.ready.append(request)

    # ------------------------------------------------------------------------------------- inside

    def _why_refused(self, request: Request) -> HttpError | None:
        headers = request.headers
        if request.refusal is not None:
            return request.refusal
        if self._head_bytes > MAX_HEAD_BYTES:
            return _head_too_large()
        if request.version not in ("1.1", "1.0"):
            return HttpError(errors.BAD_REQUEST, f"HTTP/{request.version}; HTTP/1.1 is spoken here")
        if b"host" not in headers and request.version == "1.1":
            return HttpError(errors.BAD_REQUEST, "a request of HTTP/1.1 names its Host")
        if b"transfer-encoding" in headers:
            coding = headers[b"transfer-encoding"].lower()
            if coding != b"chunked" or request.version == "1.0":
                request.keep_alive = False
                return HttpError(
                    errors.BAD_REQUEST, "of the transfer codings only 'chunked' is understood, in HTTP/1.1"
                )
        if (digits := headers.get(b"content-length")) is not None:
            length = int(digits.lstrip(b"0") or b"0")  # of zeros the parser lets more through than `int` takes
            if length > MAX_BODY_BYTES:
                return HttpError(errors.TOO_LARGE, f"a body of {length} bytes; {MAX_BODY_BYTES} are the most")
            if length > SMALL_BODY_BYTES:
                return self._judge(request) or (None if self._room.fits(length) else self._no_room())
        return self._judge(request)

    def _why_not_more(self, request: Request) -> HttpError | None:
        """Why the body that came so far is too much, for itself or beside those of others."""
        if self._size > MAX_BODY_BYTES:
            return HttpError(errors.TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes, which are the most")
        held = self._room.hold(request.held, self._size)
        if held is None:
            return self._no_room()
        request.held = held
        return None

    def _no_room(self) -> HttpError:
        return HttpError(errors.OF_FAILURE[Failure.OVERLOADED], self._room.why_none())

    def _parse(self, data: bytes | memoryview) -> None:
        while not self.broken:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = memoryview(data)[upgrade.args[0] :]
                self._read_without_upgrade()

    def _read_without_upgrade(self) -> None:
        """Another protocol is asked for, which need not be granted: read the same request without that wish.

        The parser takes an upgraded request to be over with its head, so what follows would be lost.
        """
        request = self.ready[-1]
        if request.method == b"CONNECT" or request.refusal is not None:
            self.broken = True
            request.keep_alive = False
            return
        self.ready.pop()
        lines = b"".join(b"%b: %b\r\n" % header for header in request.headers.items() if header[0] != b"connection")
        if not request.keep_alive and request.version == "1.1":
            lines += b"connection: close\r\n"
        first = b"%b %b HTTP/%b\r\n" % (request.method, request.target, request.version.encode())
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"%b%b\r\n" % (first, lines))

    def _hand_over_refused(self, request: Request) -> None:
        """Its body is of no use. A client that asked before sending it may send it or not: that connection ends."""
        if b"expect" in request.headers:
            request.keep_alive = False
        self._dropping = True
        self.release(request)
        self._forget_body()
        self.ready.append(request)

    def _forget_body(self) -> None:
        self._pieces = []
        self._size = 0

    def _break(self, why: HttpError) -> None:
        """Nothing more is read; what was begun is refused, unless it was already."""
        self.broken = True
        if self.in_message:
            self.release(self._request)
        self._forget_body()
        if not self._dropping:
            request = self._request if self.in_message else Request()
            request.refusal = why
            request.keep_alive = False
            self.ready.append(request)
        elif self.ready:
            self.ready[-1].keep_alive = False


def _head_too_large() -> HttpError:
    return HttpError(errors.HEAD_TOO_LARGE, f"request line and headers of more than {MAX_HEAD_BYTES} bytes")
