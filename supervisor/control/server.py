"""The supervisor's end of the control socket: answers calls, feeds subscribers, waits for nobody (spec 2, 12).

A subscriber that does not read fills its own queue, loses notices, and is told how many once it reads again. Nothing
here blocks the loop: a send that would wait is a notice missed.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import zmq

from engine.errors import ProtocolError, StokerError
from supervisor.control.events import AnyEvent, EventLog
from supervisor.control.messages import (
    MAX_CALL_BYTES,
    Answer,
    AnyCommand,
    CommandRefused,
    EventNotice,
    GetEvents,
    Inventory,
    LogLine,
    LogNotice,
    Missed,
    Refused,
    Reply,
    Subscribe,
    Subscribed,
    decode_call,
    encode,
)
from supervisor.control.messages import Events as EventsAnswer
from supervisor.links.binding import bind_private
from supervisor.links.router import Router, Sent, router_socket

MOST_QUEUED = 2000
"""Notices that wait for one subscriber in its socket before it misses some."""
MOST_A_TURN = 32
"""Calls answered in one turn of the loop, so that requests get theirs."""
FLUSH_MS = 500
"""How long the last answers may take to leave when the supervisor ends."""
PRESENCE_EACH_S = 0.5
"""Between two looks whether those are still there whose going away matters."""
LOG_EACH_S = 0.1
"""Log lines are gathered for this long, so that a flood becomes ten notices a second."""
MOST_LOG_LINES = 500
"""Lines in one log notice; more than that in one gathering are left out and counted."""


@dataclasses.dataclass(eq=False)
class _Subscriber:
    events: bool
    logs: bool
    replica: str | None
    deployment: str | None
    missed: int = 0
    skipped: int = 0
    lines: list[LogLine] = dataclasses.field(default_factory=list)

    def hears(self, replica: str) -> bool:
        """Whether it asked for the log of that replica (or template)."""
        if not self.logs or self.replica not in (None, replica):
            return False
        return self.deployment in (None, replica.rpartition("/")[0])


class ControlServer:
    """Binds the socket. `handle` answers every command that is not about subscriptions, at once or by a future. It is
    told the identity of the caller's connection, for `attend`.

    It may raise StokerError, and so may its future: that becomes a refusal.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: str,
        events: EventLog,
        handle: Callable[[AnyCommand, bytes], Answer | asyncio.Future[Answer]],
        inventory: Callable[[], Inventory],
        on_bad_frame: Callable[[str], None],
    ) -> None:
        self._events = events
        self._handle = handle
        self._inventory = inventory
        self._on_bad_frame = on_bad_frame
        self._subscribers: dict[bytes, _Subscriber] = {}
        self._loop = asyncio.get_running_loop()
        self._log_timer: asyncio.TimerHandle | None = None
        self._attended: dict[bytes, Callable[[], None]] = {}
        self._presence_timer: asyncio.TimerHandle | None = None
        socket = router_socket(context, most_bytes=MAX_CALL_BYTES, linger_ms=FLUSH_MS)
        socket.setsockopt(zmq.SNDHWM, MOST_QUEUED)
        bind_private(socket, path)
        self._router = Router(socket, self._take, on_bad_frame, MOST_A_TURN)
        events.listen(self._on_event)

    def close(self) -> None:
        """Stop answering; what was sent still leaves."""
        for timer in (self._log_timer, self._presence_timer):
            if timer is not None:
                timer.cancel()
        self._router.close()

    def on_log(self, lines: list[LogLine]) -> None:
        """New lines of a replica, for those who asked for logs."""
        wanted = False
        for subscriber in self._subscribers.values():
            if subscriber.hears(lines[0].replica):
                room = MOST_LOG_LINES - len(subscriber.lines)
                subscriber.lines.extend(lines[:room])
                subscriber.skipped += max(0, len(lines) - room)
                wanted = True
        if wanted and self._log_timer is None:
            self._log_timer = self._loop.call_later(LOG_EACH_S, self._send_logs)

    def attend(self, client: bytes, on_gone: Callable[[], None]) -> None:
        """Call that when the client's connection ends, by whatever death."""
        self._attended[client] = on_gone
        if self._presence_timer is None:
            self._presence_timer = self._loop.call_later(PRESENCE_EACH_S, self._look_who_is_there)

    def _look_who_is_there(self) -> None:
        """Only a send tells whether a peer is there; that nothing was missed is news to nobody."""
        self._presence_timer = None
        frame = encode(Missed(0))
        for client, on_gone in list(self._attended.items()):
            if self._router.send([client, frame]) is Sent.GONE:
                del self._attended[client]
                on_gone()
        if self._attended:
            self._presence_timer = self._loop.call_later(PRESENCE_EACH_S, self._look_who_is_there)

    # --------------------------------------------------------------------------------------------- calls

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            self._on_bad_frame(f"{len(frames)} frames where a call has two")
            return
        client, frame = frames
        try:
            call = decode_call(frame)
        except ProtocolError as error:
            self._on_bad_frame(str(error))
            return
        try:
            answer = self._answer(client, call.command)
        except StokerError as error:
            answer = _refused(error)
        except Exception as error:
            answer = self._failed(call.command, error)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda done: self._reply(client, call.id, self._outcome(call.command, done)))
        else:
            self._reply(client, call.id, answer)

    def _reply(self, client: bytes, number: int, answer: Answer) -> None:
        if not self._router.closed:
            self._send(client, encode(Reply(number, answer)))

    def _outcome(self, command: AnyCommand, done: asyncio.Future[Answer]) -> Answer:
        if done.cancelled():
            return Refused(message="the supervisor is stopping", code="stopping")
        error = done.exception()
        if error is None:
            return done.result()
        return _refused(error) if isinstance(error, StokerError) else self._failed(command, error)

    def _failed(self, command: AnyCommand, error: BaseException) -> Refused:
        """A mistake of ours is logged, and told: a caller without an answer takes the supervisor to be frozen."""
        name = type(command).__name__
        self._loop.call_exception_handler(
            {"message": f"the command {name} failed by a mistake of ours", "exception": error}
        )
        return Refused(message=f"{name}: a mistake of the supervisor's own; its log says more", code="internal")

    def _answer(self, client: bytes, command: AnyCommand) -> Answer | asyncio.Future[Answer]:
        match command:
            case Subscribe():
                return self._subscribe(client, command)
            case GetEvents():
                events, missed = self._events.since(command.since)
                return EventsAnswer(events=events, missed=missed)
            case _:
                return self._handle(command, client)

    def _subscribe(self, client: bytes, command: Subscribe) -> Subscribed:
        """Snapshot and stream meet without a gap: both are made in this one turn of the loop."""
        self._subscribers[client] = _Subscriber(command.events, command.logs, command.replica, command.deployment)
        events, missed = self._events.since(command.since) if command.since is not None else ([], 0)
        return Subscribed(inventory=self._inventory(), events=events, missed=missed)

    # --------------------------------------------------------------------------------------------- streams

    def _on_event(self, event: AnyEvent) -> None:
        if not self._subscribers:
            return
        frame = encode(EventNotice(event))
        for client, subscriber in list(self._subscribers.items()):
            if subscriber.events:
                self._notify(client, subscriber, frame, 1)

    def _send_logs(self) -> None:
        self._log_timer = None
        for client, subscriber in list(self._subscribers.items()):
            if subscriber.lines or subscriber.skipped:
                frame = encode(LogNotice(subscriber.lines, subscriber.skipped))
                sent = self._notify(client, subscriber, frame, 0)
                subscriber.skipped = 0 if sent else subscriber.skipped + len(subscriber.lines)
                subscriber.lines = []
        if self._log_timer is None and any(one.skipped for one in self._subscribers.values()):
            self._log_timer = self._loop.call_later(LOG_EACH_S, self._send_logs)

    def _notify(self, client: bytes, subscriber: _Subscriber, frame: bytes, counts: int) -> bool:
        """Whether the notice went out; where it did not, `counts` events are missed."""
        if subscriber.missed and self._send(client, encode(Missed(subscriber.missed))):
            subscriber.missed = 0
        if subscriber.missed or not self._send(client, frame):
            subscriber.missed += counts
            return False
        return True

    def _send(self, client: bytes, frame: bytes) -> bool:
        """Without waiting. A client that is gone is forgotten; one that does not read misses this frame."""
        sent = self._router.send([client, frame])
        if sent is Sent.GONE:
            self._subscribers.pop(client, None)
        return sent is Sent.OK


def _refused(error: StokerError) -> Refused:
    return Refused(message=str(error), code=error.code if isinstance(error, CommandRefused) else "refused")
