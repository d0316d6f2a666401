"""The source against a real control socket: snapshot and stream without a gap, lost and found, floods, silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import zmq
import zmq.asyncio
from textual.message import Message

from engine.errors import StokerError
from supervisor.control import server as server_module
from supervisor.control.events import AnyEvent, Warned
from supervisor.control.messages import (
    Accepted,
    AnyCommand,
    DrainReplica,
    Kill,
    LogLine,
    LogNotice,
    Subscribe,
    decode_from_supervisor,
    encode_call,
)
from tests.dashboard.fleet import EPOCH, deployment, fleet_of_twelve, inventory, log_lines, replica
from tests.dashboard.served import Served, serving
from ui.dashboard import source as source_module
from ui.dashboard.model import Skipped, Written
from ui.dashboard.rows import RowKey
from ui.dashboard.source import (
    ControlSource,
    EventsHappened,
    InventoryRead,
    LinesWritten,
    Mailbox,
    SupervisorLost,
)

Kind = TypeVar("Kind", bound=Message)
TURNS = 20
"""Notices of a mebibyte each that nobody reads: more than sockets of one notice each hold on the way."""


class Heard:
    """What a source posted, in order, with its mailboxes emptied as an app would."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.events: list[AnyEvent] = []
        self.missed = 0
        self.written: list[Written] = []
        self._news = asyncio.Event()

    def __call__(self, message: Message) -> None:
        self.messages.append(message)
        if isinstance(message, EventsHappened):
            if message.afresh:
                self.events.clear()
            events, missed = message.mailbox.take()
            self.events += events
            self.missed += missed
        if isinstance(message, LinesWritten):
            written, lost = message.mailbox.take()
            self.written += [Skipped(lost), *written] if lost else written
        self._news.set()

    async def until(self, condition: Callable[[], bool], limit_s: float = 10.0) -> None:
        """Wait until it holds."""
        async with asyncio.timeout(limit_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    @property
    def lines(self) -> list[LogLine]:
        return [one for one in self.written if isinstance(one, LogLine)]

    @property
    def skipped(self) -> int:
        return sum(one.count for one in self.written if isinstance(one, Skipped))

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.messages)


def attached(tmp_path: Path, scenario: Callable[[ControlSource, Heard, Served, str], Awaitable[None]]) -> None:
    """Run a scenario with a source attached to a served fleet."""

    async def play() -> None:
        path = str(tmp_path / "control")
        served, heard = Served(fleet_of_twelve()), Heard()
        source = ControlSource(path, poll_s=0.02, retry_s=0.02)
        async with serving(path, served):
            served.events.publish(Warned(message="first"))
            source.start(heard)
            await heard.until(lambda: heard.count(InventoryRead) > 0)
            await scenario(source, heard, served, path)
            await source.stop()

    asyncio.run(play())


def test_snapshot_and_stream_have_no_gap(tmp_path: Path) -> None:
    async def scenario(source: ControlSource, heard: Heard, served: Served, path: str) -> None:
        for number in range(50):
            served.events.publish(Warned(message=str(number)))
        await heard.until(lambda: len(heard.events) == 51)
        assert [event.seq for event in heard.events] == list(range(1, 52)) and heard.missed == 0

    attached(tmp_path, scenario)


def test_polls_do_not_overlap_and_show_the_newest_fleet(tmp_path: Path) -> None:
    async def scenario(source: ControlSource, heard: Heard, served: Served, path: str) -> None:
        served.inventory = inventory([deployment("primary", [replica("primary/7")])])
        await heard.until(lambda: _last(heard, InventoryRead).inventory.deployments[0].replicas[0].name == "primary/7")
        assert heard.count(SupervisorLost) == 0

    attached(tmp_path, scenario)


def test_a_command_is_answered(tmp_path: Path) -> None:
    async def scenario(source: ControlSource, heard: Heard, served: Served, path: str) -> None:
        command: AnyCommand = DrainReplica(replica="primary/3", incarnation=2)
        assert isinstance(await source.ask(command), Accepted)
        assert served.asked == [command]

    attached(tmp_path, scenario)


def test_without_a_supervisor_it_says_so_and_a_command_fails(tmp_path: Path) -> None:
    async def play() -> None:
        heard = Heard()
        source = ControlSource(str(tmp_path / "nobody"), retry_s=0.02)
        source.start(heard)
        await heard.until(lambda: heard.count(SupervisorLost) >= 2)
        lost = _last(heard, SupervisorLost)
        assert "no supervisor is running there" in lost.why and lost.gone
        with pytest.raises(StokerError, match="nothing was sent"):
            await source.ask(Kill(replica="primary/0", incarnation=1))
        await source.stop()

    asyncio.run(play())


def test_a_lost_supervisor_is_found_again_and_the_story_goes_on(tmp_path: Path) -> None:
    async def play() -> None:
        path, heard = str(tmp_path / "control"), Heard()
        source = ControlSource(path, poll_s=0.02, retry_s=0.02)
        served = Served(fleet_of_twelve())
        async with serving(path, served):
            served.events.publish(Warned(message="before"))
            source.start(heard)
            await heard.until(lambda: len(heard.events) == 1)
        await heard.until(lambda: heard.count(SupervisorLost) > 0)
        served.events.publish(Warned(message="meanwhile"))
        async with serving(path, served):
            await heard.until(lambda: len(heard.events) == 2)
            assert [event.sentence() for event in heard.events] == ["warning: before", "warning: meanwhile"]
        await source.stop()

    asyncio.run(play())


def test_another_supervisor_on_the_same_socket_starts_a_new_story(tmp_path: Path) -> None:
    async def play() -> None:
        path, heard = str(tmp_path / "control"), Heard()
        source = ControlSource(path, poll_s=0.02, retry_s=0.02)
        old, new = Served(fleet_of_twelve(), pid=1), Served(fleet_of_twelve(), pid=2)
        for number in range(5):
            old.events.publish(Warned(message=f"old {number}"))
        new.events.publish(Warned(message="new"))
        async with serving(path, old):
            source.start(heard)
            await heard.until(lambda: len(heard.events) == 5)
        async with serving(path, new):
            await heard.until(lambda: [event.sentence() for event in heard.events] == ["warning: new"])
        await source.stop()

    asyncio.run(play())


def test_a_silent_supervisor_is_lost_until_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "STATUS_ANSWER_S", 0.05)

    async def play() -> None:
        path, heard = str(tmp_path / "control"), Heard()
        listener = await asyncio.start_unix_server(lambda reader, writer: None, path)
        source = ControlSource(path, poll_s=0.02, retry_s=0.02)
        source.start(heard)
        await heard.until(lambda: heard.count(SupervisorLost) > 0)
        lost = _last(heard, SupervisorLost)
        assert "does not answer" in lost.why and not lost.gone
        await source.stop()
        listener.close()

    asyncio.run(play())


# ----------------------------------------------------------------------------------------------- logs


def test_a_log_starts_with_its_past_and_goes_on_without_repeating(tmp_path: Path) -> None:
    async def scenario(source: ControlSource, heard: Heard, served: Served, path: str) -> None:
        source.follow_log(RowKey("primary", "primary/0", 1))
        await heard.until(lambda: len(heard.lines) == 40)
        later = [LogLine(time=EPOCH + 100 + at, replica="primary/0", incarnation=1, text=str(at)) for at in range(9)]
        for line in later:
            served.write([line])
        await heard.until(lambda: len(heard.lines) == 49)
        assert heard.lines == [*log_lines(), *later]

    attached(tmp_path, scenario)


def test_a_log_of_a_deployment_has_no_other_replicas(tmp_path: Path) -> None:
    async def scenario(source: ControlSource, heard: Heard, served: Served, path: str) -> None:
        served.lines += log_lines("chat/1", 3)
        source.follow_log(RowKey("chat"))
        await heard.until(lambda: len(heard.lines) == 3)
        served.write([LogLine(time=EPOCH + 100, replica="primary/0", incarnation=1, text="not here")])
        served.write([LogLine(time=EPOCH + 101, replica="chat/0", incarnation=1, text="here")])
        await heard.until(lambda: len(heard.lines) == 4)
        assert heard.lines[-1].text == "here"

    attached(tmp_path, scenario)


def test_a_log_that_is_left_brings_no_more_lines(tmp_path: Path) -> None:
    async def scenario(source: ControlSource, heard: Heard, served: Served, path: str) -> None:
        source.follow_log(RowKey("primary", "primary/0", 1))
        await heard.until(lambda: len(heard.lines) == 40)
        source.follow_log(None)
        seen = heard.count(InventoryRead)
        served.write([LogLine(time=EPOCH + 100, replica="primary/0", incarnation=1, text="late")])
        await heard.until(lambda: heard.count(InventoryRead) > seen + 3)
        assert len(heard.lines) == 40

    attached(tmp_path, scenario)


def test_a_flood_costs_a_number(tmp_path: Path) -> None:
    async def scenario(source: ControlSource, heard: Heard, served: Served, path: str) -> None:
        source.follow_log(RowKey("primary", "primary/0", 1))
        await heard.until(lambda: len(heard.lines) == 40)
        served.write(
            [LogLine(time=EPOCH + 100 + at, replica="primary/0", incarnation=1, text="x") for at in range(5000)]
        )
        await heard.until(lambda: heard.skipped > 0)
        assert len(heard.lines) - 40 + heard.skipped == 5000
        assert heard.written[-1] == Skipped(heard.skipped), "it is told where they are missing: after those that came"

    attached(tmp_path, scenario)


def test_what_a_full_mailbox_pushes_out_is_counted_with_what_had_been_skipped_in_it() -> None:
    mailbox: Mailbox[Written] = Mailbox(3)
    first, *others = log_lines(count=4)
    assert mailbox.put([first, Skipped(70)]) and not mailbox.put(others)
    assert mailbox.take() == (others, 71)
    assert mailbox.take() == ([], 0)


def test_lines_that_found_no_room_on_the_way_are_told_once_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stands still (Ctrl-Z) misses notices: their lines are counted, and nothing has to follow them."""
    monkeypatch.setattr(server_module, "MOST_QUEUED", 1)
    monkeypatch.setattr(server_module, "LOG_EACH_S", 0.0)

    async def play() -> None:
        path = str(tmp_path / "control")
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, 1)
        async with serving(path, served := Served(fleet_of_twelve())), asyncio.timeout(30):
            socket.connect(f"ipc://{path}")
            await socket.send(encode_call(1, Subscribe(events=False, logs=True)))
            await socket.recv()
            for _ in range(TURNS):
                served.write([LogLine(time=EPOCH, replica="primary/0", incarnation=1, text="x" * 10_000)] * 100)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            shown = skipped = 0
            while shown + skipped < TURNS * 100:
                notice = decode_from_supervisor(await socket.recv())
                assert isinstance(notice, LogNotice)
                shown, skipped = shown + len(notice.lines), skipped + notice.skipped
            assert shown > 0 and skipped > 0 and shown + skipped == TURNS * 100
        socket.close(linger=0)
        context.term()

    asyncio.run(play())


def _last(heard: Heard, kind: type[Kind]) -> Kind:
    return next(message for message in reversed(heard.messages) if isinstance(message, kind))
