"""A ROUTER socket in the event loop: read on its own descriptor until it is empty, sent to without waiting (spec 2).

A ROUTER hands over an identity and at least one frame, always. Frames go through pyzmq's plain socket, with plain
numbers for flags: `send_multipart` and `recv_multipart` cost 10 us and 4.5 us for three frames, this 2 us and 2.5 us.

A ZeroMQ socket's descriptor is edge-triggered: it says "look again", not "there is something". So each look reads until
nothing is left or its turn is used up, and each send is followed by a look, since sending may have swallowed the edge.

All sockets of the supervisor are of this kind; what a frame means is for their owners to say.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence

import zmq
from zmq.backend import Socket as Plain

from supervisor.links.monitor import HandshakeMonitor

_send, _receive, _option = Plain.send, Plain.recv, Plain.get
_NOBLOCK = int(zmq.NOBLOCK)
_MORE_TO_COME = int(zmq.NOBLOCK | zmq.SNDMORE)
_RCVMORE = int(zmq.RCVMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


class Sent(enum.Enum):
    """What became of frames that were to go out."""

    OK = enum.auto()
    FULL = enum.auto()
    """The peer is there and takes nothing more for now."""
    GONE = enum.auto()
    """Nobody is connected under that identity."""


class Router:
    """Owns a bound ROUTER socket. on_frames: told of each message, identity first. It may raise; the next look goes
    on."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_frames: Callable[[list[bytes]], None],
        on_bad_frame: Callable[[str], None],
        most_a_turn: int,
    ) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._most_a_turn = most_a_turn
        self._monitor = HandshakeMonitor(socket, on_bad_frame)
        self._fd = int(socket.getsockopt(zmq.FD))
        self._look_due = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self.look)

    def send(self, frames: Sequence[bytes | zmq.Frame]) -> Sent:
        """Hand frames over, identity first, without waiting."""
        socket = self._socket
        last = len(frames) - 1
        try:
            for frame in frames[:last]:
                _send(socket, frame, _MORE_TO_COME)
            _send(socket, frames[last], _NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError:
            return Sent.GONE
        finally:
            self._look_soon()
        return Sent.OK

    def look(self) -> None:
        """Read what is there now, within the limit of one turn, so that others get theirs under a flood."""
        self._look_due = False
        socket = self._socket
        more = True
        try:
            for _ in range(self._most_a_turn):
                frames = [_receive(socket, _NOBLOCK), _receive(socket, _NOBLOCK)]
                while _option(socket, _RCVMORE):
                    frames.append(_receive(socket, _NOBLOCK))
                self._on_frames(frames)
                if not int(_option(socket, _EVENTS)) & _POLLIN:  # asking costs a third of being refused
                    more = False
                    break
        except zmq.Again:
            more = False
        finally:
            if more:  # the turn is used up, or a message made its owner stumble: the edge will not come again
                self._look_soon()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._socket.closed

    def close(self) -> None:
        """Stop reading; what was sent still leaves within the socket's linger."""
        self._loop.remove_reader(self._fd)
        self._monitor.close()
        self._socket.close()

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look_if_due)

    def _look_if_due(self) -> None:
        """The look after a send; mostly there is nothing, and asking costs less than being refused."""
        if not self._look_due or self._socket.closed:
            return
        self._look_due = False
        if int(_option(self._socket, _EVENTS)) & _POLLIN:
            self.look()


def router_socket(context: zmq.Context[zmq.Socket[bytes]], *, most_bytes: int, linger_ms: int) -> zmq.Socket[bytes]:
    """A ROUTER that says when a peer is gone and takes no message over `most_bytes`. Not bound yet."""
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
    socket.setsockopt(zmq.LINGER, linger_ms)
    return socket
