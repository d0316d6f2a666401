"""The engine's end of its ZeroMQ link: frames in and out, the exchanges that are open, the heartbeat.

It belongs to one thread at a time, to whoever has `custody.Custody`, and knows nothing of threads itself.
Frames go through pyzmq's plain socket, with plain numbers for flags: its multipart calls and its enumerations cost more
than the frames themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

import zmq
from zmq.backend import Socket as Plain

from engine import misdeeds
from engine.device_thread import Arrival, DeviceThread, Outgoing, Work
from engine.errors import ProtocolError
from engine.messages import (
    HEARTBEAT_S,
    MAX_FRAME_BYTES,
    Answer,
    Ask,
    Cancel,
    End,
    Faults,
    Heartbeat,
    LaunchSpec,
    Request,
    SetFaults,
    ToEngine,
    decode_to_engine,
    encode,
)

_send, _receive, _option, _set = Plain.send, Plain.recv, Plain.get, Plain.set
_NOBLOCK = int(zmq.NOBLOCK)
_SNDMORE = int(zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_RCVTIMEO = int(zmq.RCVTIMEO)

FLUSH_MS = 1000
"""How long the last messages may take to leave when the process ends by itself, in milliseconds."""

LATE_S = 0.05
"""A heartbeat may be that late, so that the wait for requests is not set anew for each of them."""


class Link:
    """A DEALER socket that is connected to the supervisor."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = _connect(self._context, spec)
        self._threads = spec.threads
        self._open: set[int] = set()
        self._arrived: list[Arrival] = []
        self._faults = Faults()
        self._waits_s = 0.0
        self._next_heartbeat = time.monotonic() + HEARTBEAT_S

    def serve_for(self, device: DeviceThread) -> None:
        """Whose gauges a heartbeat tells, and who is told of faults. Before anything else."""
        self._device = device

    def close(self) -> None:
        """What was sent still leaves, then the link is gone."""
        self.socket.close(linger=FLUSH_MS)
        self._context.term()

    # ------------------------------------------------------------------------------------- supervisor to engine

    def take(self) -> list[Arrival]:
        """Requests, and exchanges that were cancelled, in the order in which they were received."""
        arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def holds(self) -> bool:
        """Whether there is something to take."""
        return bool(self._arrived)

    def wait(self) -> None:
        """Receive everything, and wait for it; not beyond the next heartbeat."""
        left = self.until_heartbeat()
        if not 0 <= self._waits_s - left < LATE_S:
            self._waits_s = left
            _set(self.socket, _RCVTIMEO, max(1, int(left * 1000) + 1))
        try:
            self._receive(0)
        except zmq.Again:
            return
        self.receive()

    def receive(self) -> None:
        """Receive everything that is there."""
        if not int(_option(self.socket, _EVENTS)) & _POLLIN:  # much cheaper than a refusal
            return
        try:
            while True:
                self._receive(_NOBLOCK)
        except zmq.Again:
            return

    def _receive(self, flags: int) -> None:
        """One message. Raises zmq.Again where there is none."""
        header = _receive(self.socket, flags, False)
        body = _receive(self.socket) if header.more else None
        try:
            message = decode_to_engine(header.bytes)
            self._handle(message, body)
        except ProtocolError as error:
            print(f"dropped a frame: {error}", file=sys.stderr)

    def _handle(self, message: ToEngine, body: bytes | None) -> None:
        match message:
            case Request():
                if body is None:
                    raise ProtocolError(f"request {message.exchange} without a body frame")
                self._open.add(message.exchange)
                if self._faults.crash_on_request:
                    misdeeds.crash()
                deadline = time.monotonic() + message.budget_s
                self._arrived.append(Work(message.exchange, message.route, message.stream, body, deadline))
            case Cancel():
                self._open.discard(message.exchange)
                self._arrived.append(message.exchange)
            case Ask():
                self._beat()
            case SetFaults():
                self._faults = message.faults
                self._device.set_faults(message.faults)
                misdeeds.act_on(message.faults)

    # ------------------------------------------------------------------------------------- engine to supervisor

    def send_all(self, outgoing: Sequence[Outgoing]) -> None:
        """Messages with their bodies, in order."""
        for message, body in outgoing:
            self._send(encode(message), body)
            if isinstance(message, Answer | End):
                self._open.discard(message.exchange)

    def _send(self, header: bytes, body: bytes | None = None) -> None:
        if body is None:
            _send(self.socket, header)
        else:
            _send(self.socket, header, _SNDMORE)
            _send(self.socket, body)
        if self._faults.garbage:
            self.socket.send_multipart([b"\xc1garbage", b"\x00", b"", b"more"])

    def until_heartbeat(self) -> float:
        """Seconds until the next heartbeat is due; 0 or less when it is."""
        return self._next_heartbeat - time.monotonic()

    def beat_if_due(self) -> None:
        """Send a heartbeat where one is due."""
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_S
            self._beat()

    def _beat(self) -> None:
        if self._faults.mute:
            return
        gauges = self._device.gauges
        started = gauges.forward_started
        heartbeat = Heartbeat(
            in_flight=len(self._open),
            queued_rows=gauges.queued_rows,
            forward_age_s=time.monotonic() - started if started is not None else 0.0,
            forwards=gauges.forwards,
            rows=gauges.rows,
            tokens=gauges.tokens,
            busy_s=gauges.busy_s,
            cpu_s=time.process_time(),
            cancelled_rows=gauges.cancelled_rows,
            rss_bytes=_resident_bytes(),
            gpu_bytes=gauges.gpu_bytes,
            threads=gauges.threads or self._threads,
            nan_outputs=gauges.nan_outputs,
            cached_rows=gauges.cached_rows,
        )
        self._send(encode(heartbeat))
        if (report := self._device.threads.report()) is not None:
            self._send(encode(report))


def _connect(context: zmq.Context[zmq.Socket[bytes]], spec: LaunchSpec) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, spec.identity)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.connect(spec.endpoint)
    return socket


def _resident_bytes() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
