"""The native clients' wire (spec 2, 11): typed messages in msgpack, one structure a kind.

Frames (the supervisor binds a ROUTER, each client connects a DEALER and sets no identity of its own):

    client -> supervisor   [identity] [header: FromClient]  [body, after Request only]
    supervisor -> client   [identity] [header: ToClient]    [body, after Answer and Chunk only]

A conversation:

    client      Hello ──┐        Request+body ──┐                                Cancel   Read   Bye
    supervisor          └─ Welcome              ├─ Answer+body                   (no answer to these)
                                                ├─ Chunk+body … Chunk+body, End └─ Failed
                                                Alive, while a request is open

Every request ends with exactly one of Answer, End and Failed, unless its client cancelled it. A body is never
part of a header: the caller's bytes reach the engine as they came, and the engine's reach the caller. Which
deployment is meant stands in the header, so nothing of a body is read on the way. Never pickle. Light: no zmq
is needed to read this.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from engine.errors import ProtocolError

NATIVE_PROTOCOL = 1
"""Version of this wire. `Hello` and `Welcome` keep their shape for ever, so that each side can tell."""

LONGEST_TIMEOUT_MS = 86_400_000
"""A day, as in `X-Request-Timeout-Ms`."""

MESSAGE_BYTES = 128
"""What a message costs beside its frames, about: many tiny ones are a weight, too."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=LONGEST_TIMEOUT_MS)]
ModelName = Annotated[str, msgspec.Meta(max_length=4096)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of every message: positional on the wire, so a header is a few bytes."""


# --------------------------------------------------------------------------------------- client to supervisor


class Hello(Message, frozen=True, tag="h"):
    """The first message of a connection. What comes before it is dropped."""

    protocol: int


class Request(Message, frozen=True, tag="q"):
    """One request under a number of the client's choice; its JSON follows in a frame of its own.

    route: `engine.messages.Route`. model: a deployment's name or artifact, None for the default one.
    timeout_ms: the caller's limit, None for the deployment's own. read: as in `Read`, so that a busy client
    needs no message for it.
    """

    number: Count
    route: int
    stream: bool
    timeout_ms: Milliseconds | None
    model: ModelName | None
    read: Count


class Cancel(Message, frozen=True, tag="c"):
    """Nobody waits for that request any more. One that has just been answered is no error."""

    number: Count


class Read(Message, frozen=True, tag="r"):
    """The `weight` of all messages that this client has read since its `Hello`; it only grows."""

    read: Count


class Bye(Message, frozen=True, tag="b"):
    """The client leaves; what it has open is cancelled."""


FromClient = Hello | Request | Cancel | Read | Bye


# --------------------------------------------------------------------------------------- supervisor to client


class Welcome(Message, frozen=True, tag="w"):
    """The answer to `Hello`. A client of another protocol gets it, too, and is listened to no further.

    session: with a request's number it makes the request's id (`request_id`).
    """

    protocol: int
    session: str


class Answer(Message, frozen=True, tag="a"):
    """The whole answer of a replica, as JSON in the next frame, with the status that HTTP would have."""

    number: int
    status: int
    replica: str


class Chunk(Message, frozen=True, tag="k"):
    """The next bytes of a streamed answer: server-sent events, as HTTP would have them."""

    number: int
    replica: str


class End(Message, frozen=True, tag="e"):
    """A streamed answer is complete."""

    number: int


class Failed(Message, frozen=True, tag="f"):
    """There is no answer, or no more of it. status, code, message and param are those of the HTTP error."""

    number: int
    status: int
    code: str
    message: str
    param: str | None
    retry_after_s: int | None
    replica: str | None = None


class Alive(Message, frozen=True, tag="!"):
    """A sign of life while a request is open; sending it also shows that its client is still there."""


ToClient = Welcome | Answer | Chunk | End | Failed | Alive

WITH_BODY = (Request, Answer, Chunk)
"""Messages that are followed by a body frame; all others stand alone."""


_encoder = msgspec.msgpack.Encoder()
_from_client = msgspec.msgpack.Decoder(FromClient)
_to_client = msgspec.msgpack.Decoder(ToClient)

encode = _encoder.encode
"""Header to bytes."""


def parse_from_client(frames: list[bytes]) -> tuple[FromClient, bytes]:
    """A message and its body, empty where it has none. frames: the identity, the header, perhaps the body.

    Raises ProtocolError.
    """
    if len(frames) not in (2, 3):
        raise ProtocolError(f"{len(frames)} frames where two or three are a client's message")
    try:
        message = _from_client.decode(frames[1])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"not a message of a client: {error}") from error
    return message, _body(message, frames[2:])


def parse_to_client(frames: list[bytes]) -> tuple[ToClient, bytes]:
    """A message and its body, empty where it has none. frames: the header, perhaps the body.

    Raises ProtocolError.
    """
    try:
        message = _to_client.decode(frames[0])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(
            f"not a message for a client: {error}; is the supervisor another version of stoker?"
        ) from error
    return message, _body(message, frames[1:])


def weight(header: bytes, body: bytes) -> int:
    """What a message to a client counts until it is read, in bytes; both sides count by this."""
    return len(header) + len(body) + MESSAGE_BYTES


def request_id(session: str, number: int) -> str:
    """The id of a request (`X-Request-Id` over HTTP): known to both sides, so never sent."""
    return f"req-{session}-{number:x}"


def _body(message: FromClient | ToClient, frames: list[bytes]) -> bytes:
    expected = 1 if isinstance(message, WITH_BODY) else 0
    if len(frames) != expected:
        raise ProtocolError(f"{type(message).__name__} with {len(frames)} body frames, expected {expected}")
    return frames[0] if frames else b""
