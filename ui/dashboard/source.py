"""Where the dashboard's facts come from: one client of the control socket, which only posts what happened.

A source never touches a widget. It polls the status (the next poll is armed by the answer to the last, so polls never
overlap), reads the subscription, and posts past-tense messages. What comes faster than it is shown waits in a bounded
`Mailbox` and is counted beyond that, so a flood costs the dashboard a number, not its memory. A supervisor that is gone
or silent is a message too, and the source goes on trying. Nothing here can make the supervisor wait.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from textual.message import Message

from engine.errors import StokerError
from supervisor.control.async_client import AsyncControlClient
from supervisor.control.client import NoAnswer, NotRunning, check_listening
from supervisor.control.events import AnyEvent
from supervisor.control.messages import (
    Answer,
    AnyCommand,
    EventNotice,
    FromSupervisor,
    GetEvents,
    GetLogs,
    GetReplica,
    GetStatus,
    Inventory,
    Lines,
    LogLine,
    LogNotice,
    Missed,
    ReplicaDetails,
    Status,
    Subscribe,
    Subscribed,
)
from supervisor.control.messages import Events as EventsAnswer
from ui.dashboard.model import Skipped, Written
from ui.dashboard.rows import RowKey

POLL_S = 0.5
"""From the answer to one status to the question for the next, seconds."""
MANY_ROWS, MANY_TIMES = 32, 2
"""More replicas than that are looked at as much more rarely: figures of 64 rows twice a second cost the fleet 2 %."""
STATUS_ANSWER_S = 2.0
"""A supervisor that takes longer over a status is shown as lost; it normally takes milliseconds."""
LATE_S = 0.25
"""An answer that takes longer than this is late, seconds."""
RETRY_S = 0.5
"""Between two attempts to reach a supervisor, seconds."""
GATHER_S = 0.05
"""What arrives within this time goes to the screen together, seconds."""
QUIET_S = 5.0
"""A log that says nothing for so long may be subscribed with a supervisor that is gone: look, seconds."""
PENDING_LINES = 2000
PENDING_EVENTS = 1000
FIRST_LINES = 1000
"""Lines of the past that a log starts with."""

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A bounded queue whose reader takes everything at once; what does not fit pushes the oldest out and is counted."""

    def __init__(self, size: int) -> None:
        self._items: collections.deque[Item] = collections.deque()
        self._size = size
        self._lost = 0

    def put(self, items: Sequence[Item], lost: int = 0) -> bool:
        """Add items, `lost` before them; true where the reader has to be told, because nothing was waiting."""
        was_empty = not self._items and not self._lost
        self._items.extend(items)
        self._lost += lost
        while len(self._items) > self._size:
            pushed = self._items.popleft()
            self._lost += pushed.count if isinstance(pushed, Skipped) else 1
        return was_empty and bool(self._items or self._lost)

    def take(self) -> tuple[list[Item], int]:
        """All that waits, oldest first, and how many were lost before it."""
        items, lost = list(self._items), self._lost
        self._items.clear()
        self._lost = 0
        return items, lost


# --------------------------------------------------------------------------------------------------- messages


class InventoryRead(Message):
    """The fleet as it is now."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self.inventory = inventory

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, InventoryRead)


class ReplicaRead(Message):
    """Everything about the replica that is followed, as it is now."""

    def __init__(self, details: ReplicaDetails) -> None:
        super().__init__()
        self.details = details

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ReplicaRead)


class EventsHappened(Message):
    """Events wait in the mailbox; `afresh`: they are the story of another supervisor than before."""

    def __init__(self, mailbox: Mailbox[AnyEvent], afresh: bool = False) -> None:
        super().__init__()
        self.mailbox = mailbox
        self.afresh = afresh


class LinesWritten(Message):
    """Log lines wait in the mailbox, of the slot or deployment that was asked for."""

    def __init__(self, mailbox: Mailbox[Written], of: RowKey) -> None:
        super().__init__()
        self.mailbox = mailbox
        self.of = of


class SupervisorLost(Message):
    """Nobody answers; the source goes on trying. gone: nobody listens there, rather than that an answer is late."""

    def __init__(self, why: str, gone: bool) -> None:
        super().__init__()
        self.why = why
        self.gone = gone


Sink = Callable[[Message], object]


class Source(Protocol):
    """What the app needs of a source: `ControlSource` in life, an in-memory twin in tests."""

    def start(self, sink: Sink) -> None:
        """Begin to post messages to the sink. Called inside the running event loop."""

    async def stop(self) -> None:
        """Post nothing more and give everything back."""

    async def ask(self, command: AnyCommand) -> Answer:
        """The answer to one command. Raises StokerError."""

    def follow_log(self, of: RowKey | None) -> None:
        """Post the log lines of a slot, or of a deployment's replicas, instead of those before; None: of nobody."""

    def follow_replica(self, name: str | None) -> None:
        """Post everything about that replica after each inventory, instead of another; None: of nobody."""


# ----------------------------------------------------------------------------------------------- the real one


class ControlSource:
    """The source over the control socket at `path`."""

    def __init__(self, path: str, poll_s: float = POLL_S, retry_s: float = RETRY_S) -> None:
        self._path = path
        self._poll_s = poll_s
        self._retry_s = retry_s
        self._sink: Sink = lambda message: None
        self._client: AsyncControlClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._log: asyncio.Task[None] | None = None
        self._replica: str | None = None
        self._events: Mailbox[AnyEvent] = Mailbox(PENDING_EVENTS)
        self._pid = 0
        self._last_event = 0

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._keep(self._stay_connected())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, command: AnyCommand) -> Answer:
        if self._client is None:
            raise NotRunning("not connected to a supervisor: nothing was sent")
        return await self._client.ask(command)

    def follow_log(self, of: RowKey | None) -> None:
        if self._log is not None:
            self._log.cancel()
        self._log = None if of is None else self._keep(self._read_log(of))

    def follow_replica(self, name: str | None) -> None:
        self._replica = name
        if name is not None and self._client is not None:
            self._keep(self._look_closer(self._client))

    async def _look_closer(self, client: AsyncControlClient) -> None:
        """Ask for the replica that is followed. One that is gone, or a supervisor that is, is told by the status."""
        if self._replica is None:
            return
        with contextlib.suppress(StokerError):
            answer = await client.ask(GetReplica(replica=self._replica), STATUS_ANSWER_S)
            if isinstance(answer, ReplicaDetails):
                self._sink(ReplicaRead(answer))

    # --------------------------------------------------------------------------------------------- connection

    async def _stay_connected(self) -> None:
        while True:
            try:
                async with _connected(self._path) as client:
                    await self._converse(client)
            except StokerError as error:
                self._sink(SupervisorLost(str(error), gone=isinstance(error, NotRunning)))
            self._client = None
            await asyncio.sleep(self._retry_s)

    async def _converse(self, client: AsyncControlClient) -> None:
        """Read the story from where it was left, then poll and listen until the supervisor is lost."""
        inventory = await _status(client, self._path)
        afresh = inventory.supervisor.pid != self._pid
        if afresh:
            self._pid, self._last_event = inventory.supervisor.pid, 0
        answer = await client.ask(Subscribe(since=self._last_event), STATUS_ANSWER_S)
        if not isinstance(answer, Subscribed):
            raise NoAnswer(f"expected a subscription, found {type(answer).__name__}: is it another version of stoker?")
        self._client = client
        self._post_events(answer.events, answer.missed, afresh=afresh)
        self._sink(InventoryRead(answer.inventory))
        listener = asyncio.ensure_future(self._listen(client))
        poller = asyncio.ensure_future(self._poll(client))
        try:
            await asyncio.wait({listener, poller}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listener.cancel()
            poller.cancel()
            ended = await asyncio.gather(listener, poller, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome

    async def _poll(self, client: AsyncControlClient) -> None:
        rows = 0
        while True:
            await asyncio.sleep(self._poll_s if rows <= MANY_ROWS else MANY_TIMES * self._poll_s)
            inventory = await _status(client, self._path)
            rows = sum(len(deployment.replicas) for deployment in inventory.deployments)
            if inventory.supervisor.pid != self._pid:
                raise NotRunning("another supervisor answers there now")
            self._sink(InventoryRead(inventory))
            await self._look_closer(client)

    async def _listen(self, client: AsyncControlClient) -> None:
        while True:
            notices = await _gathered(client)
            events = [notice.event for notice in notices if isinstance(notice, EventNotice)]
            missed = sum(notice.count for notice in notices if isinstance(notice, Missed))
            if missed and (lost := await self._lost_events(client, events)) is not None:
                events, missed = lost
            self._post_events(events, missed)

    async def _lost_events(
        self, client: AsyncControlClient, events: list[AnyEvent]
    ) -> tuple[list[AnyEvent], int] | None:
        """The whole story since the last event that was shown, where the history still has it."""
        answer = await client.ask(GetEvents(since=self._last_event), STATUS_ANSWER_S)
        if not isinstance(answer, EventsAnswer):
            return None
        last = answer.events[-1].seq if answer.events else self._last_event
        return [*answer.events, *(event for event in events if event.seq > last)], answer.missed

    def _post_events(self, events: list[AnyEvent], missed: int, afresh: bool = False) -> None:
        fresh = [event for event in events if event.seq > self._last_event]
        if fresh:
            self._last_event = fresh[-1].seq
        if afresh:
            self._events.take()
        if self._events.put(fresh, missed) or afresh:
            self._sink(EventsHappened(self._events, afresh))

    # --------------------------------------------------------------------------------------------------- logs

    async def _read_log(self, of: RowKey) -> None:
        """A connection of its own for the lines of one log: it ends the subscription by going."""
        mailbox: Mailbox[Written] = Mailbox(PENDING_LINES)
        seam: LogLine | None = None
        replica = of.replica or None
        whole = None if of.is_replica else of.deployment
        while True:
            with contextlib.suppress(StokerError):  # the status poll says that the supervisor is lost
                async with _connected(self._path) as client:
                    pid = (await _status(client, self._path)).supervisor.pid
                    hear = Subscribe(events=False, logs=True, replica=replica, deployment=whole)
                    await client.ask(hear, STATUS_ANSWER_S)
                    past = await client.ask(
                        GetLogs(replica=replica, deployment=whole, lines=FIRST_LINES), STATUS_ANSWER_S
                    )
                    lines = past.lines if isinstance(past, Lines) else []
                    seam = self._post_lines(mailbox, of, _after(lines, seam)) or seam
                    while (await _status(client, self._path)).supervisor.pid == pid:
                        seam = await self._pass_on_lines(client, mailbox, of, seam)
            await asyncio.sleep(self._retry_s)

    async def _pass_on_lines(
        self, client: AsyncControlClient, mailbox: Mailbox[Written], of: RowKey, seam: LogLine | None
    ) -> LogLine | None:
        """The stream until it is quiet. It may repeat lines of the past: the seam was the last."""
        fresh = False
        while True:
            try:
                notices = await _gathered(client, QUIET_S)
            except TimeoutError:
                return seam
            for notice in notices:
                if isinstance(notice, LogNotice):
                    lines = notice.lines if fresh else _after(notice.lines, seam)
                    fresh = fresh or bool(lines)
                    seam = self._post_lines(mailbox, of, lines, notice.skipped) or seam

    def _post_lines(
        self, mailbox: Mailbox[Written], of: RowKey, lines: list[LogLine], skipped: int = 0
    ) -> LogLine | None:
        """Lines, and how many were left out after them."""
        if mailbox.put([*lines, Skipped(skipped)] if skipped else lines):
            self._sink(LinesWritten(mailbox, of))
        return lines[-1] if lines else None

    def _keep(self, work: collections.abc.Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _after(lines: list[LogLine], seam: LogLine | None) -> list[LogLine]:
    return lines if seam is None else [line for line in lines if line.time > seam.time]


async def _status(client: AsyncControlClient, path: str) -> Inventory:
    """The inventory now. An answer that is late may never come: whether anybody listens is seen at once."""
    asking = asyncio.ensure_future(client.ask(GetStatus(), STATUS_ANSWER_S))
    try:
        if not (await asyncio.wait({asking}, timeout=LATE_S))[0]:
            await asyncio.to_thread(check_listening, path)
        answer = await asking
    finally:
        asking.cancel()
    if not isinstance(answer, Status):
        raise NoAnswer(f"expected a status, found {type(answer).__name__}: is it another version of stoker?")
    return answer.inventory


async def _gathered(client: AsyncControlClient, within_s: float | None = None) -> list[FromSupervisor]:
    """What the subscription brings, as much as comes within a moment. Raises TimeoutError where nothing begins."""
    notices = [await asyncio.wait_for(client.notices.get(), within_s)]
    await asyncio.sleep(GATHER_S)
    while not client.notices.empty():
        notices.append(client.notices.get_nowait())
    return notices


@contextlib.asynccontextmanager
async def _connected(path: str) -> AsyncIterator[AsyncControlClient]:
    """A client of the socket, given back at the end. The first probe may block, so it is not in the loop."""
    await asyncio.to_thread(check_listening, path)
    client = AsyncControlClient(path)
    try:
        yield client
    finally:
        await client.close()
