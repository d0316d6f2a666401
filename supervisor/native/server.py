"""The supervisor's end of the native clients: their requests go the same way as those over HTTP (spec 6, 11).

    Hello -> a client; Request -> deployment -> `Exchanges.submit` -> Answer | Chunk … End | Failed

A client is trusted with nothing:
- What is no message is counted and dropped. It touches no other client and no request of its own.
- It may vanish. While it has a request open it is sent a sign of life, and ROUTER_MANDATORY tells when there
  is nobody to send to; ZeroMQ's own heartbeats make that true also where a process or a network hangs. Then
  what it has open is cancelled.
- It may not read. It says how much it has read. One that is `MOST_UNREAD_BYTES` behind gets no further
  request in and no further piece of a stream; only what its open requests still bring is added, as over HTTP.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable

import zmq

from engine.errors import ProtocolError
from engine.messages import MAX_BODY_BYTES, MAX_FRAME_BYTES, Route
from supervisor.core.body_room import BodyRoom
from supervisor.exchanges import Exchange, Exchanges, Failure
from supervisor.gateway import errors
from supervisor.gateway.app import Directory
from supervisor.gateway.errors import Kind
from supervisor.links.router import Router, Sent, router_socket
from supervisor.native.doors import Door
from supervisor.native.messages import (
    NATIVE_PROTOCOL,
    Alive,
    Answer,
    Bye,
    Cancel,
    Chunk,
    End,
    Failed,
    FromClient,
    Hello,
    Read,
    Request,
    ToClient,
    Welcome,
    encode,
    parse_from_client,
    weight,
)

MOST_A_TURN = 64
"""Messages read in one turn of the loop, so that HTTP and the engines get their turn under a flood."""
MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""How far a client may be behind with reading; the largest answer fits."""
MOST_WAITING = 256
"""Messages of one client that ZeroMQ holds for the loop; beyond that the client's own socket holds them."""
ALIVE_EACH_S = 0.25
"""Between two signs of life to a client with an open request, so also how late its death is noticed."""
IDLE_TURNS = 40
"""A client with nothing open is looked at each so many of these times: ten seconds."""
HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 10_000
"""ZeroMQ's own heartbeats: a connection without an answer for this long is ended."""
FLUSH_MS = 500
"""How long the last answers may take to leave when the supervisor ends."""

ROUTES = frozenset(Route)


@dataclasses.dataclass(slots=True, eq=False)
class _Client:
    """One connection: its open exchanges by its numbers, the weight of what it was sent and has read."""

    identity: bytes
    open: dict[int, Exchange] = dataclasses.field(default_factory=dict)
    held: dict[int, int] = dataclasses.field(default_factory=dict)
    """What the large ones of their bodies hold of the room for bodies."""
    sent: int = 0
    read: int = 0
    provoked: int = 0
    """Weight of what it was sent without an exchange (greetings, errors) since it last said that it reads."""
    gone: bool = False
    """It is over. Remembered for a while, since what it sent before may still be on its way in."""

    @property
    def unread(self) -> int:
        return self.sent - self.read


class NativeServer:
    """Binds one door and serves who comes in by it. `on_bad_frame` is told of everything that is dropped.

    room: where large bodies find room, those that come over HTTP too.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        door: Door,
        exchanges: Exchanges,
        directory: Directory,
        room: BodyRoom,
        on_bad_frame: Callable[[str], None],
    ) -> None:
        self._exchanges = exchanges
        self._directory = directory
        self._room = room
        self._on_bad_frame = on_bad_frame
        self._clients: dict[bytes, _Client] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        socket = router_socket(context, most_bytes=MAX_FRAME_BYTES, linger_ms=FLUSH_MS)
        socket.setsockopt(zmq.RCVHWM, MOST_WAITING)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        door.open(socket)
        self._router = Router(socket, self._take, on_bad_frame, MOST_A_TURN)

    def close(self) -> None:
        """Stop serving; what was sent still leaves."""
        if self._timer is not None:
            self._timer.cancel()
        for client in list(self._clients.values()):
            self._forget(client)
        self._router.close()

    # ------------------------------------------------------------------------------------------- from clients

    def _take(self, frames: list[bytes]) -> None:
        try:
            message, body = parse_from_client(frames)
            client = self._clients.get(frames[0])
            if isinstance(message, Hello):
                self._greet(frames[0], message)
            elif client is None:
                raise ProtocolError(f"{type(message).__name__} before Hello")
            elif not client.gone:
                self._obey(client, message, body)
        except ProtocolError as error:
            self._on_bad_frame(str(error))

    def _greet(self, identity: bytes, hello: Hello) -> None:
        """A client begins. One that was known under the same identity is over."""
        before = self._clients.get(identity)
        client = self._clients[identity] = _Client(identity)
        if before is not None:
            self._forget(before)
            client.provoked = before.provoked
        self._watch()
        self._send_provoked(client, Welcome(NATIVE_PROTOCOL, secrets.token_hex(4)))
        if hello.protocol != NATIVE_PROTOCOL:
            client.gone = True
            raise ProtocolError(f"native protocol {hello.protocol}, expected {NATIVE_PROTOCOL}")

    def _obey(self, client: _Client, message: FromClient, body: bytes) -> None:
        match message:
            case Request():
                self._note_read(client, message.read)
                self._submit(client, message, body)
            case Cancel():
                if (exchange := self._pop(client, message.number)) is not None:
                    self._exchanges.cancel(exchange)
            case Read():
                self._note_read(client, message.read)
            case Bye():
                self._forget(client)

    def _note_read(self, client: _Client, read: int) -> None:
        if not client.read <= read <= client.sent:
            raise ProtocolError(f"{read} bytes read, of {client.sent} sent and {client.read} read before")
        if read > client.read:
            client.read = read
            client.provoked = 0

    def _submit(self, client: _Client, request: Request, body: bytes) -> None:
        number = request.number
        if number in client.open:
            raise ProtocolError(f"request {number} while another one of that number is open")
        if request.route not in ROUTES:
            raise ProtocolError(f"route {request.route}, expected one of {sorted(ROUTES)}")
        if client.unread > MOST_UNREAD_BYTES:
            self._fail(client, number, errors.OF_FAILURE[Failure.OVERLOADED], f"{_behind(client)}: read them first")
        elif len(body) > MAX_BODY_BYTES:
            message = f"a body of {len(body)} bytes; {MAX_BODY_BYTES} are the most"
            self._fail(client, number, errors.TOO_LARGE, message)
        elif not self._room.fits(len(body)):
            self._fail(client, number, errors.OF_FAILURE[Failure.OVERLOADED], self._room.why_none())
        elif self._directory.stopping:
            self._fail(client, number, errors.OF_FAILURE[Failure.STOPPING], "the supervisor is stopping")
        elif (lane := self._directory.find(request.model)) is None:
            self._fail_unknown(client, number, request.model)
        else:
            limit_s = None if request.timeout_ms is None else request.timeout_ms / 1000
            caller = _Caller(self, client, number)
            exchange = self._exchanges.submit(lane, request.route, request.stream, body, caller, limit_s)
            if exchange is not None:
                client.open[number] = exchange
                if held := self._room.hold(0, len(body)):
                    client.held[number] = held

    def _pop(self, client: _Client, number: int) -> Exchange | None:
        """A request that is over holds nothing any more."""
        if client.held:
            self._room.give_back(client.held.pop(number, 0))
        return client.open.pop(number, None)

    def _fail_unknown(self, client: _Client, number: int, model: str | None) -> None:
        kind = errors.BAD_REQUEST if model is None else errors.MODEL_NOT_FOUND
        self._fail(client, number, kind, self._directory.why_none(model), "model")

    # ------------------------------------------------------------------------------------------- to clients

    def on_answer(self, client: _Client, number: int, status: int, body: bytes, replica: str) -> None:
        """A replica answered whole."""
        self._pop(client, number)
        self._send(client, Answer(number, status, replica), body)

    def on_chunk(self, client: _Client, number: int, data: bytes, replica: str) -> None:
        """A replica streamed a piece; a client that is too far behind loses its stream instead."""
        if client.unread <= MOST_UNREAD_BYTES:
            self._send(client, Chunk(number, replica), data)
        elif (exchange := self._pop(client, number)) is not None:
            self._exchanges.cancel(exchange)
            self._fail(client, number, errors.OF_FAILURE[Failure.OVERLOADED], f"the stream is cut: {_behind(client)}")

    def on_end(self, client: _Client, number: int) -> None:
        """A streamed answer is complete."""
        self._pop(client, number)
        self._send(client, End(number))

    def on_fail(self, client: _Client, number: int, failure: Failure, message: str, replica: str | None) -> None:
        """There is no answer, or no more of it."""
        self._pop(client, number)
        self._fail(client, number, errors.OF_FAILURE[failure], message, replica=replica)

    def _fail(
        self,
        client: _Client,
        number: int,
        kind: Kind,
        message: str,
        param: str | None = None,
        replica: str | None = None,
    ) -> None:
        retry_after = dict(kind.headers).get(b"retry-after")
        retry_after_s = None if retry_after is None else int(retry_after)
        failed = Failed(number, kind.status, kind.code, message, param, retry_after_s, replica)
        self._send_provoked(client, failed)

    def _send_provoked(self, client: _Client, message: Welcome | Failed) -> None:
        """Send what costs the client nothing to ask for. One that asks on without reading is over."""
        if client.provoked > MOST_UNREAD_BYTES and not client.gone:
            self._on_bad_frame("a client that asks on and reads nothing")
            self._lose(client)
        before = client.sent
        self._send(client, message)
        client.provoked += client.sent - before

    def _send(self, client: _Client, message: ToClient, body: bytes | None = None) -> None:
        """Without waiting. Where nobody is there any more, the client is over."""
        if client.gone:
            return
        header = encode(message)
        frames = [client.identity, header] if body is None else [client.identity, header, body]
        client.sent += weight(header, body or b"")
        if self._router.send(frames) is not Sent.OK:
            self._lose(client)

    # ------------------------------------------------------------------------------------------- who is there

    def _lose(self, client: _Client) -> None:
        """Nobody is there. Forgotten in a turn of its own: this one may be amid a replica's exchanges."""
        client.gone = True
        self._loop.call_soon(self._forget, client)

    def _forget(self, client: _Client) -> None:
        """The client is over: what it has open is cancelled, what still comes from it is dropped."""
        client.gone = True
        for number in list(client.open):
            if (exchange := self._pop(client, number)) is not None:
                self._exchanges.cancel(exchange)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(ALIVE_EACH_S, self._show_life)

    def _show_life(self) -> None:
        """To clients with an open request each time, to the others now and then: so deaths are noticed."""
        self._timer = None
        self._turn += 1
        everybody = self._turn % IDLE_TURNS == 0
        for client in list(self._clients.values()):
            if client.gone and everybody:
                del self._clients[client.identity]
            elif client.open or everybody:
                self._send(client, Alive())
        if self._clients:
            self._watch()


class _Caller:
    """A client's request as an exchange sees it (`exchanges.Sink`)."""

    __slots__ = ("_client", "_number", "_server")

    def __init__(self, server: NativeServer, client: _Client, number: int) -> None:
        self._server = server
        self._client = client
        self._number = number

    def answer(self, status: int, body: bytes, replica: str) -> None:
        self._server.on_answer(self._client, self._number, status, body, replica)

    def chunk(self, data: bytes, replica: str) -> None:
        self._server.on_chunk(self._client, self._number, data, replica)

    def end(self) -> None:
        self._server.on_end(self._client, self._number)

    def fail(self, failure: Failure, message: str, replica: str | None) -> None:
        self._server.on_fail(self._client, self._number, failure, message, replica)


def _behind(client: _Client) -> str:
    return f"{client.unread // 1024**2} MiB of answers are not read yet"
