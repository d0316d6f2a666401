"""The caller's side of an exchange in the gateway: what a replica says goes straight to the client's connection."""

from __future__ import annotations

from supervisor.exchanges import Exchange, Exchanges, Failure
from supervisor.gateway import errors
from supervisor.gateway.connection import Connection
from supervisor.gateway.errors import Kind

JSON = b"content-type: application/json\r\n"
EVENT_STREAM = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"


class UnarySink:
    """One whole answer. `exchange` is what a client that leaves cancels."""

    __slots__ = ("_connection", "_exchanges", "_pieces", "_replica", "_request_id", "exchange")

    def __init__(self, exchanges: Exchanges, connection: Connection, request_id: bytes) -> None:
        self.exchange: Exchange | None = None
        self._exchanges = exchanges
        self._connection = connection
        self._request_id = request_id
        self._pieces = b""
        self._replica = ""

    def answer(self, status: int, body: bytes, replica: str) -> None:
        self.exchange = None
        self._connection.respond(status, head(JSON, self._request_id, replica), body)

    def chunk(self, data: bytes, replica: str) -> None:
        """An engine that streams where nobody asked for it: its pieces make one body."""
        self._pieces += data
        self._replica = replica

    def end(self) -> None:
        self.answer(200, self._pieces, self._replica)

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        self.exchange = None
        reply_error(self._connection, self._request_id, errors.OF_FAILURE[failure], message, replica=replica)

    def leave(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._exchanges.cancel(exchange)


class StreamSink:
    """The pieces of a streamed answer as they come; one that breaks off ends with an error event, never silently."""

    __slots__ = ("_begun", "_connection", "_exchanges", "_request_id", "exchange")

    def __init__(self, exchanges: Exchanges, connection: Connection, request_id: bytes) -> None:
        self.exchange: Exchange | None = None
        self._exchanges = exchanges
        self._connection = connection
        self._request_id = request_id
        self._begun = False

    def answer(self, status: int, body: bytes, replica: str) -> None:
        """It was not streamed after all, or an error came instead of the rest."""
        if self._begun:
            self._finish(b"data: %b\n\n" % body)
            return
        self.exchange = None
        self._connection.respond(status, head(JSON, self._request_id, replica), body)

    def chunk(self, data: bytes, replica: str) -> None:
        if not self._begun:
            self._begun = True
            self._connection.begin(head(EVENT_STREAM, self._request_id, replica))
        if data:
            self._connection.piece(data)
            if self._connection.behind:
                self._cut()

    def end(self) -> None:
        if not self._begun:
            self._connection.begin(head(EVENT_STREAM, self._request_id, ""))
        self._finish(b"")

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        kind = errors.OF_FAILURE[failure]
        if self._begun:
            self._finish(_event(kind, message))
            return
        self.exchange = None
        reply_error(self._connection, self._request_id, kind, message, replica=replica)

    def leave(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._exchanges.cancel(exchange)

    def _cut(self) -> None:
        """Nobody reads: what is generated is held for nobody."""
        self.leave()
        kind = errors.OF_FAILURE[Failure.OVERLOADED]
        self._finish(_event(kind, "the stream is cut: what was sent before is not read"))

    def _finish(self, last: bytes) -> None:
        self.exchange = None
        if last:
            self._connection.piece(last)
        self._connection.finish()


def head(content: bytes, request_id: bytes, replica: str) -> bytes:
    """Header lines of an answer. content: those that say what it is."""
    if not replica:
        return b"%bx-request-id: %b\r\n" % (content, request_id)
    return b"%bx-stoker-replica: %b\r\nx-request-id: %b\r\n" % (content, replica.encode(), request_id)


def reply_error(
    connection: Connection,
    request_id: bytes,
    kind: Kind,
    message: str,
    param: str | None = None,
    replica: str | None = None,
) -> None:
    """Answer with an error."""
    lines = head(JSON, request_id, replica or "") + kind.header_lines
    connection.respond(kind.status, lines, errors.body(kind, message, param))


def _event(kind: Kind, message: str) -> bytes:
    return b"data: %b\n\n" % errors.body(kind, message)
