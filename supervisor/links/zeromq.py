"""The link to managed engines: one ROUTER socket for all of them (spec 2).

Only identities that were admitted are listened to. Everything else, and everything that is not a message, is counted
and dropped; one peer's nonsense never disturbs another's exchange.

A large body is not copied for its engine, and ZeroMQ says when it is gone. Where nobody waits for its answer any more
and the engine has not taken it (it stands still), it goes on holding its part of the room for bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import zmq

from engine.errors import ProtocolError
from engine.messages import (
    MAX_FRAME_BYTES,
    WITH_BODY,
    Ask,
    Cancel,
    Faults,
    Request,
    SetFaults,
    ToEngine,
    ToSupervisor,
    decode_to_supervisor,
    encode,
)
from supervisor.core.body_room import BodyRoom
from supervisor.links.binding import bind_private
from supervisor.links.router import Router, Sent, router_socket

MOST_A_TURN = 256
"""Messages read in one turn of the loop, so that HTTP gets its turn under a flood."""

MOST_WAITING = 128
"""Messages that wait for an engine that stands still: its 32 exchanges, and what took the places of cancelled ones.
Beyond that it counts as out of reach, and memory stays bounded."""

TRACKED_BYTES = 1024 * 1024
"""From here on a body is not copied but watched until it has left. Below, copying is cheaper, and `MOST_WAITING` of
them are little. Measured: 8 MB take 0.2 ms of the loop instead of 2 ms, 1 MiB a third, 100 KB half as much again."""

LOOK_EACH_S = 0.1
"""Between two looks whether bodies that nobody waits for have left, while there are such."""


class Peer(Protocol):
    """Who is told what one admitted engine says."""

    def on_message(self, message: ToSupervisor, body: bytes | None) -> None:
        """A valid message of this engine."""


class EngineLink:
    """The supervisor's end of all engine connections."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: str,
        room: BodyRoom,
        on_bad_frame: Callable[[str], None],
    ) -> None:
        self._on_bad_frame = on_bad_frame
        self._room = room
        self._abandoned: list[tuple[zmq.MessageTracker, int]] = []
        """Bodies that nobody waits for and no engine has taken yet, each with its size."""
        self._loop = asyncio.get_running_loop()
        self._looker: asyncio.TimerHandle | None = None
        self._peers: dict[bytes, Peer] = {}
        socket = router_socket(context, most_bytes=MAX_FRAME_BYTES, linger_ms=0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.SNDHWM, MOST_WAITING)
        self.endpoint = bind_private(socket, path)
        self._router = Router(socket, self._take, on_bad_frame, MOST_A_TURN)

    def admit(self, identity: bytes, peer: Peer) -> EngineCarrier:
        """Listen to an engine under the identity that it was given; the way to it."""
        self._peers[identity] = peer
        return EngineCarrier(self, identity)

    def forget(self, identity: bytes) -> None:
        """That incarnation is over: whatever still comes from it is dropped."""
        self._peers.pop(identity, None)

    def look(self) -> None:
        """Read what is there now; for the moment before an engine's end is acted on."""
        self._router.look()

    def close(self) -> None:
        """Stop listening."""
        if self._looker is not None:
            self._looker.cancel()
        self._router.close()

    def send(self, identity: bytes, message: ToEngine, body: bytes | zmq.Frame | None) -> bool:
        """Hand frames to an engine without waiting; False where it is not connected or takes nothing more."""
        header = encode(message)
        frames = [identity, header] if body is None else [identity, header, body]
        return self._router.send(frames) is Sent.OK

    def abandon(self, tracker: zmq.MessageTracker, size: int) -> None:
        """Nobody waits any more for the answer to a body of that size, which has not left: it holds room until then."""
        self._room.keep(size)
        self._abandoned.append((tracker, size))
        if self._looker is None:
            self._looker = self._loop.call_later(LOOK_EACH_S, self._look_at_abandoned)

    def _look_at_abandoned(self) -> None:
        """Runs while there are some."""
        self._looker = None
        before, self._abandoned = self._abandoned, []
        for tracker, size in before:
            if tracker.done:
                self._room.give_back(size)
            else:
                self._abandoned.append((tracker, size))
        if self._abandoned:
            self._looker = self._loop.call_later(LOOK_EACH_S, self._look_at_abandoned)

    def _take(self, frames: list[bytes]) -> None:
        peer = self._peers.get(frames[0])
        if peer is None:
            self._on_bad_frame("a frame under an unknown identity")
            return
        try:
            message, body = parse(frames)
        except ProtocolError as error:
            self._on_bad_frame(str(error))
            return
        peer.on_message(message, body)


class EngineCarrier:
    """The way to one engine (`links.carrier.Carrier`)."""

    __slots__ = ("_identity", "_link", "_tracked")

    def __init__(self, link: EngineLink, identity: bytes) -> None:
        self._link = link
        self._identity = identity
        self._tracked: dict[int, tuple[zmq.MessageTracker, int]] = {}
        """Large bodies by exchange, with their sizes; those that have left go when the next one is sent."""

    def send(self, request: Request, body: bytes) -> bool:
        if len(body) < TRACKED_BYTES:
            return self._link.send(self._identity, request, body)
        return self._send_tracked(request, body)

    def cancel(self, exchange: int) -> None:
        self._link.send(self._identity, Cancel(exchange), None)
        tracked = self._tracked.pop(exchange, None) if self._tracked else None
        if tracked is not None and not tracked[0].done:
            self._link.abandon(*tracked)

    def ask(self) -> None:
        self._link.send(self._identity, Ask(), None)

    def set_faults(self, faults: Faults) -> None:
        """New faults for a stub."""
        self._link.send(self._identity, SetFaults(faults), None)

    def _send_tracked(self, request: Request, body: bytes) -> bool:
        self._tracked = {number: one for number, one in self._tracked.items() if not one[0].done}
        frame = zmq.Frame(body, track=True)
        tracker = frame.tracker
        if not self._link.send(self._identity, request, frame):
            return False
        self._tracked[request.exchange] = (tracker, len(body))
        return True


def parse(frames: list[bytes]) -> tuple[ToSupervisor, bytes | None]:
    """A message and its body from `[identity, header]` or `[identity, header, body]`. Raises ProtocolError."""
    if len(frames) not in (2, 3):
        raise ProtocolError(f"{len(frames)} frames where two or three are a message")
    message = decode_to_supervisor(frames[1])
    has_body = len(frames) == 3
    if isinstance(message, WITH_BODY) != has_body:
        raise ProtocolError(f"{type(message).__name__} {'with' if has_body else 'without'} a body frame")
    return message, frames[2] if has_body else None
