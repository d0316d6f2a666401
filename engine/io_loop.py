"""The thread that talks: one DEALER socket to the supervisor, and the descriptors that end or wake the process.

It never computes, so it answers while a forward runs or hangs; that is how a hang can be told from a death (spec 2).
It is the main thread, because Python runs signal handlers there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

import zmq

from engine import misdeeds
from engine.device_thread import DeviceThread, Work
from engine.errors import ProtocolError
from engine.messages import (
    HEARTBEAT_S,
    MAX_FRAME_BYTES,
    Answer,
    Ask,
    Cancel,
    End,
    ExitCode,
    Faults,
    Heartbeat,
    LaunchSpec,
    LoadFailed,
    Request,
    SetFaults,
    ToEngine,
    decode_to_engine,
    encode,
)
from engine.outbox import Outbox, Outgoing

FLUSH_MS = 1000
"""How long the last messages may take to leave when the process ends by itself, in milliseconds."""


class IoLoop:
    """Carries frames between the supervisor and the device thread until the process is told to leave."""

    def __init__(self, spec: LaunchSpec, device: DeviceThread, outbox: Outbox, lifeline: int) -> None:
        self._spec = spec
        self._device = device
        self._outbox = outbox
        self._lifeline = lifeline
        self._signals = _signal_pipe()
        self._context = zmq.Context()
        self._socket = _connect(self._context, spec)
        self._open: set[int] = set()
        self._faults = Faults()
        self._next_heartbeat = time.monotonic() + HEARTBEAT_S

    def run(self) -> ExitCode:
        """Serve until a signal, the end of the supervisor or a failed load; the reason."""
        poller = zmq.Poller()
        for source in (self._socket, self._outbox.fileno(), self._lifeline, self._signals):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._wait_ms()))
            self._outbox.woken()
            if self._lifeline in ready:
                return ExitCode.ORPHANED
            if self._signals in ready:
                return self._leave(ExitCode.LEFT)
            self._receive_all()
            if (ending := self._send_all()) is not None:
                return self._leave(ending)
            self._beat_if_due()

    def _wait_ms(self) -> int:
        if not self._outbox.sleep():
            return 0
        return max(0, int((self._next_heartbeat - time.monotonic()) * 1000) + 1)

    # ------------------------------------------------------------------------------------- supervisor to engine

    def _receive_all(self) -> None:
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode_to_engine(frames[0])
            except ProtocolError as error:
                print(f"dropped a frame: {error}", file=sys.stderr)
                continue
            self._handle(message, frames)

    def _handle(self, message: ToEngine, frames: list[bytes]) -> None:
        match message:
            case Request():
                self._open.add(message.exchange)
                if self._faults.crash_on_request:
                    misdeeds.crash()
                deadline = time.monotonic() + message.budget_s
                self._device.submit(Work(message.exchange, message.route, message.stream, frames[1], deadline))
            case Cancel():
                self._open.discard(message.exchange)
                self._device.cancel(message.exchange)
            case Ask():
                self._beat()
            case SetFaults():
                self._faults = message.faults
                self._device.set_faults(message.faults)
                misdeeds.act_on(message.faults)

    # ------------------------------------------------------------------------------------- engine to supervisor

    def _send_all(self) -> ExitCode | None:
        """Everything that the device thread said; the exit code where it said that it cannot serve."""
        for message, body in self._outbox.take():
            self._send((message, body))
            if isinstance(message, Answer | End):
                self._open.discard(message.exchange)
            if isinstance(message, LoadFailed):
                return ExitCode.LOAD_FINAL if message.final else ExitCode.LOAD_FAILED
        return None

    def _send(self, outgoing: Outgoing) -> None:
        message, body = outgoing
        header = encode(message)
        self._socket.send_multipart([header] if body is None else [header, body])
        if self._faults.garbage:
            self._socket.send_multipart([b"\xc1garbage", b"\x00", b"", b"more"])

    def _beat_if_due(self) -> None:
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
            threads=gauges.threads or self._spec.threads,
            nan_outputs=gauges.nan_outputs,
            cached_rows=gauges.cached_rows,
        )
        self._send((heartbeat, None))
        if (report := self._device.threads.report()) is not None:
            self._send((report, None))

    def _leave(self, code: ExitCode) -> ExitCode:
        self._socket.close(linger=FLUSH_MS)
        if code is not ExitCode.LEFT:
            self._context.term()
        return code


def _connect(context: zmq.Context[zmq.Socket[bytes]], spec: LaunchSpec) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, spec.identity)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.connect(spec.endpoint)
    return socket


def _signal_pipe() -> int:
    """A descriptor that becomes readable when SIGTERM arrives, also while the interpreter is in a poll."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return reader


def _resident_bytes() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
