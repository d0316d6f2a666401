"""A supervisor made of data: holds the lock of a name, answers the control socket as it was told, notes what
was asked.

It speaks the real wire through the real messages, so a client cannot tell the difference; what it answers is
set by the test, before or while a command runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from supervisor.control.events import AnyEvent
from supervisor.control.messages import (
    Accepted,
    Answer,
    AnyCommand,
    EventNotice,
    Events,
    FromSupervisor,
    GetEvents,
    GetLogs,
    GetStatus,
    Inventory,
    Lines,
    LogLine,
    Refused,
    Reply,
    Status,
    Stop,
    Subscribe,
    Subscribed,
    decode_call,
    encode,
)
from supervisor.host.runtime import RuntimeDir
from tests.cli.rows import TWO_READY

Handler = Callable[[AnyCommand], Answer | None]

LOOK_MS = 5


class FakeSupervisor:
    """Use as a context manager. `handler` may answer a command itself; None leaves it to the fake."""

    def __init__(
        self,
        root: Path,
        inventory: Inventory = TWO_READY,
        name: str = "default",
        pid: int = 4000,
        handler: Handler = lambda command: None,
    ) -> None:
        self.runtime = RuntimeDir(name, root)
        self.name = name
        self.pid = pid
        self.inventory = inventory
        self.inventories: list[Inventory] = []
        """What is answered next, one each time, before `inventory` is answered for good."""
        self.events: list[AnyEvent] = []
        self.lines: list[LogLine] = []
        self.asked: list[AnyCommand] = []
        self._handler = handler
        self._notices: list[FromSupervisor] = []
        self._subscribers: set[bytes] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def __enter__(self) -> FakeSupervisor:
        self._held = self.runtime.acquire("127.0.0.1:8100", time.time())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{self.runtime.control}")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def publish(self, event: AnyEvent) -> None:
        """The next event: numbered, kept, and told to subscribers."""
        self.tell(EventNotice(self.keep(event)))

    def keep(self, event: AnyEvent) -> AnyEvent:
        """The next event, kept but not told to anybody: as if it came while a client was away."""
        with self._lock:
            numbered = msgspec.structs.replace(event, seq=self._last_event() + 1, time=1_700_000_000.0)
            self.events.append(numbered)
            return numbered

    def tell(self, notice: FromSupervisor) -> None:
        """A notice to every subscriber."""
        with self._lock:
            self._notices.append(notice)

    def leave(self) -> None:
        """Close the socket and let go of the lock."""
        self._stop.set()

    def wait_for(self, kind: type[AnyCommand], times: int = 1) -> None:
        """Return when that kind of command was asked so many times."""
        deadline = time.monotonic() + 20
        while sum(isinstance(command, kind) for command in list(self.asked)) < times:
            assert time.monotonic() < deadline, f"{kind.__name__} was not asked {times} times: {self.asked}"
            self._stop.wait(LOOK_MS / 1000)

    def stamped(self, inventory: Inventory) -> Inventory:
        """The inventory with what this supervisor says of itself."""
        own = msgspec.structs.replace(inventory.supervisor, name=self.name, pid=self.pid, last_event=self._last_event())
        return msgspec.structs.replace(inventory, supervisor=own)

    # ------------------------------------------------------------------------------------------------ inside

    def _serve(self) -> None:
        try:
            while not self._stop.is_set():
                if self._socket.poll(LOOK_MS):
                    client, frame = self._socket.recv_multipart()
                    self._take(client, frame)
                self._send_notices()
        finally:
            self._socket.close(linger=200)
            self._context.term()
            self._held.release()

    def _take(self, client: bytes, frame: bytes) -> None:
        call = decode_call(frame)
        if isinstance(call.command, Subscribe):
            self._subscribers.add(client)
        answer = self._handler(call.command) or self._answer(call.command)
        self.asked.append(call.command)  # before its answer: whoever has that may look here
        self._socket.send_multipart([client, encode(Reply(call.id, answer))])
        if isinstance(call.command, Stop) and not isinstance(answer, Refused):
            self._stop.set()

    def _answer(self, command: AnyCommand) -> Answer:
        match command:
            case GetStatus():
                return Status(inventory=self._next_inventory())
            case Subscribe(since=since):
                with self._lock:
                    known = [event for event in self.events if since is not None and event.seq > since]
                return Subscribed(inventory=self.stamped(self.inventory), events=known, missed=0)
            case GetEvents(since=since):
                with self._lock:
                    return Events(events=[event for event in self.events if event.seq > since], missed=0)
            case GetLogs(lines=count):
                return Lines(lines=self.lines[-count:] if count else [])
            case _:
                return Accepted(text=f"{type(command).__name__} accepted", event=self._last_event())

    def _next_inventory(self) -> Inventory:
        if self.inventories:
            self.inventory = self.inventories.pop(0)
        return self.stamped(self.inventory)

    def _last_event(self) -> int:
        return self.events[-1].seq if self.events else 0

    def _send_notices(self) -> None:
        with self._lock:
            notices, self._notices = self._notices, []
        for notice in notices:
            for client in self._subscribers:
                self._socket.send_multipart([client, encode(notice)])
