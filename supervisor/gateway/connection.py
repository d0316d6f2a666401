"""One client's connection: its requests are answered in order, one at a time, and never with more than fits (spec 11).

    bytes -> Reader -> Application.serve(request, connection) -> respond | begin, piece ... finish -> bytes

Callbacks, not tasks: a request costs no task, future or timer here, and an answer is one write. What bounds memory:

- While an answer is due or not taken by the client, further requests of the connection are not read from the socket.
- A client that does not take what it is sent is `behind`; whoever streams to it is to stop then.
- A client that was told 429 rests for a moment: its next request is looked at a little later, however soon it comes.
  Refusing costs about half of answering, so clients that ask again at once would take the time of those served.
- A client that leaves while nothing is read of it is found by the server's sweep.
- Clients that send or take nothing for too long are found by the server's sweep, which looks at every connection now
  and then: one timer for all of them. A body must come at `LEAST_BODY_RATE`: else one byte now and then would keep its
  part of the room for bodies without end.
"""

from __future__ import annotations

import asyncio
import http
import select
from typing import TYPE_CHECKING, Protocol, cast

from supervisor.exchanges import Failure
from supervisor.gateway import errors
from supervisor.gateway.errors import HttpError
from supervisor.gateway.reader import Reader, Request

if TYPE_CHECKING:
    from supervisor.gateway.server import HttpServer

MOST_BEHIND_BYTES = 1024 * 1024
"""What may wait for a client that does not read, beyond what the kernel holds for it."""
ONE_WRITE_BYTES = 64 * 1024
"""Up to here head and body are joined; larger bodies are not copied."""
KEEP_ALIVE_S = 75
"""A connection without a request is closed after this long."""
HEAD_S = 20
"""How long a request's head may take, from its first byte."""
STALL_S = 30
"""How long a body, or a client's reading, may stand still."""
LEAST_BODY_RATE = 16 * 1024
"""Bytes a second that a body may not stay behind for longer than that: an eighth of a line of 1 Mbit/s."""
LINGER_S = 3
"""How long what a client still sends is read and dropped after its last answer, so that it gets to see that answer."""

LEFT = getattr(select, "POLLRDHUP", 0)
"""The event of a client that closed its side (Linux); that the connection is over is told everywhere."""

TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b"
)
_TOO_MANY = errors.body(errors.OF_FAILURE[Failure.UNAVAILABLE], "too many connections are open; try again in a moment")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PHRASES = {status.value: status.phrase for status in http.HTTPStatus}
STATUS_LINES = {code: f"HTTP/1.1 {code} {_PHRASES.get(code, '')}\r\n".encode() for code in range(100, 1000)}
"""Also for codes that no standard names: attached servers have some."""


class Caller(Protocol):
    """Whoever works on a request that is not answered yet."""

    def leave(self) -> None:
        """Its client is gone; nobody reads the answer."""


class Application(Protocol):
    """What requests are for."""

    def judge(self, request: Request) -> HttpError | None:
        """Why a request is not served, told by its head; None where it is."""

    def serve(self, request: Request, connection: Connection) -> None:
        """Answer it on that connection, now or later. Raises HttpError for what `refuse` is to say."""

    def refuse(self, request: Request, error: HttpError, connection: Connection) -> None:
        """Answer with an error."""

    def fail(self, request: Request, connection: Connection) -> None:
        """Answer that this is a mistake of ours."""


class Connection(asyncio.Protocol):
    """Belongs to a server. Whoever answers later sets `caller`, and is told there when the client is gone."""

    __slots__ = (
        "_advancing",
        "_app",
        "_begun",
        "_ending",
        "_paused",
        "_pausing_reads",
        "_reader",
        "_request",
        "_resting",
        "_server",
        "_since",
        "_stuck",
        "_transport",
        "caller",
    )

    def __init__(self, server: HttpServer, app: Application) -> None:
        self.caller: Caller | None = None
        self._server = server
        self._app = app
        self._reader = Reader(app.judge, server.room)
        self._request: Request | None = None
        self._begun = False
        self._advancing = False
        self._ending = False
        self._paused = False
        self._pausing_reads = False
        self._resting = False
        self._since = server.now
        self._stuck = 0
        self._transport: asyncio.Transport

    # ------------------------------------------------------------------------------------------- from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.opened(self)
        self._since = self._server.now

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        reader = self._reader
        if not reader.in_message:
            self._since = self._server.now
        elif not reader.in_head:  # a body: its bytes buy time, but none in advance
            self._since = min(self._server.now, self._since + len(data) / LEAST_BODY_RATE)
        reader.feed(data)
        if reader.ready or reader.continue_due:
            self._advance()
        elif reader.broken and self._request is None:  # what broke off was the body of a request refused before
            self._end()

    def pause_writing(self) -> None:
        self._paused = True
        self._since = self._server.now

    def resume_writing(self) -> None:
        self._paused = False
        if not self._ending:
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self._ending = True
        self._reader.close()
        if self._request is not None:
            self._reader.release(self._request)
        caller, self.caller = self.caller, None
        if caller is not None:
            caller.leave()

    # ------------------------------------------------------------------------------------------- the answer

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        """The whole answer. head: header lines, each with its end; the length and the connection's own are added."""
        request = self._request
        assert request is not None
        head = b"%b%b%b%bcontent-length: %d\r\n\r\n" % (
            STATUS_LINES[status],
            self._server.date(),
            head,
            self._connection_header(request),
            len(body),
        )
        if request.method == b"HEAD":
            self._transport.write(head)
        elif len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        if status == 429:
            self._resting = True
            self._server.rest(self)
        self._finished(request)

    def begin(self, head: bytes) -> None:
        """The head of an answer that comes in pieces."""
        request = self._request
        assert request is not None
        self._begun = True
        if request.version == "1.0":
            request.keep_alive = False
            framing = b""
        else:
            framing = b"transfer-encoding: chunked\r\n"
        self._transport.write(
            b"%b%b%b%b%b\r\n"
            % (STATUS_LINES[200], self._server.date(), head, self._connection_header(request), framing)
        )

    def piece(self, data: bytes) -> None:
        """The next bytes of it, at least one."""
        assert self._request is not None
        if self._request.version == "1.0":
            self._transport.write(data)
        else:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self) -> None:
        """That answer is complete."""
        request = self._request
        assert request is not None
        if request.version != "1.0":
            self._transport.write(b"0\r\n\r\n")
        self._finished(request)

    @property
    def behind(self) -> bool:
        """The client does not take what it is sent, and enough waits for it."""
        return self._paused and self._transport.get_write_buffer_size() > MOST_BEHIND_BYTES

    # ------------------------------------------------------------------------------------------- told by the server

    def stop(self) -> None:
        """No further request. What is being read or answered is still answered."""
        if self._request is None and not (self._ending or self._reader.in_message or self._reader.ready):
            self._end()

    def go_on(self) -> None:
        """It rested."""
        self._resting = False
        if not self._ending:
            self._advance()

    def turn_away(self) -> None:
        """There are too many. Not read on: that would keep it open."""
        self._transport.write(TURNED_AWAY % (len(_TOO_MANY), _TOO_MANY))
        self._end()

    def abort(self) -> None:
        """Now, whatever is still to be sent."""
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Is it waiting for a client that does nothing, or is there no more? Called now and then."""
        if self._pausing_reads and self._has_left():
            self.abort()
            return
        still = now - self._since
        left = self._transport.get_write_buffer_size()
        if self._paused or (self._ending and left):
            if left < self._stuck:
                self._since = now
            elif still > STALL_S:
                self.abort()
            self._stuck = left
        elif self._ending:
            if still > LINGER_S:
                self.abort()
        elif self._request is None:
            self._sweep_reading(still)

    def _has_left(self) -> bool:
        """Whether the client closed: asked of the kernel where nothing is read, since then nothing else tells."""
        looking = select.poll()
        looking.register(self._transport.get_extra_info("socket").fileno(), LEFT)
        return bool(looking.poll(0))

    def _sweep_reading(self, still: float) -> None:
        reader = self._reader
        if not reader.in_message:
            if still > KEEP_ALIVE_S:
                self._end()
        elif still > (HEAD_S if reader.in_head else STALL_S):
            reader.time_out()
            if reader.ready:
                self._advance()
            else:
                self._end()

    # ------------------------------------------------------------------------------------------- inside

    def _advance(self) -> None:
        """Serve what was read, one after another, as long as the client takes the answers."""
        if self._advancing:
            return
        self._advancing = True
        ready = self._reader.ready
        while ready and self._request is None and not (self._paused or self._resting or self._ending):
            self._serve(ready.popleft())
        self._advancing = False
        if self._reader.continue_due and self._request is None:
            self._reader.continue_due = False
            self._transport.write(CONTINUE)
        if self._pausing_reads or ready or self._paused:
            self._balance_reading()

    def _serve(self, request: Request) -> None:
        self._request = request
        try:
            if request.refusal is not None:
                self._app.refuse(request, request.refusal, self)
            else:
                self._app.serve(request, self)
        except HttpError as error:
            self._app.refuse(request, error, self)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a request of {request.path!r} failed by a mistake of ours", "exception": error}
            )
            if self._request is request and not self._begun:
                self._app.fail(request, self)
            else:
                self.abort()

    def _finished(self, request: Request) -> None:
        self._request = self.caller = None
        self._begun = False
        if request.held:
            self._reader.release(request)
        if not request.keep_alive or self._server.stopping:
            self._end()
            return
        self._since = self._server.now
        if (self._reader.ready or self._reader.continue_due) and not self._advancing:
            self._advance()

    def _end(self) -> None:
        """The last answer is written. Where the client still sends, it is read on for a moment: closing at once would
        have the kernel throw that answer away."""
        reader = self._reader
        self._ending = True
        self._since = self._server.now
        unread = reader.in_message or reader.broken or len(reader.ready) > 0
        reader.close()
        if self._transport.is_closing():
            return
        self._resume_reading()
        if unread:
            self._transport.write_eof()
        else:
            self._transport.close()

    def _connection_header(self, request: Request) -> bytes:
        if self._server.stopping or not request.keep_alive:
            request.keep_alive = False
            return b"connection: close\r\n"
        return b"" if request.version == "1.1" else b"connection: keep-alive\r\n"

    def _balance_reading(self) -> None:
        """Take nothing more in while there is enough to do. One request may wait: most clients are never paused so."""
        if self._ending or self._transport.is_closing():
            return
        if len(self._reader.ready) > 1 or self._paused:
            if not self._pausing_reads:
                self._pausing_reads = True
                self._transport.pause_reading()
        else:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._pausing_reads:
            self._pausing_reads = False
            self._transport.resume_reading()
