"""The dashboard over a real supervisor: details, and a replica that floods its log with what terminals obey."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.dashboard.bench import Bench, Clock
from tests.dashboard.fleet import FakeSource
from tests.dashboard.test_source import Heard
from tests.support import LONG_S, Running, stub_config
from ui.dashboard.app import Dashboard
from ui.dashboard.desk import QuitChoice
from ui.dashboard.rows import RowKey
from ui.dashboard.source import ControlSource, InventoryRead
from ui.dashboard.widgets.line_view import KEPT_LINES

HOSTILE = "[bold]red[/] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[?1049l \x1bP unterminated \x1b[\n"
LITERAL = r"[bold]red[/] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[?1049l \x1bP unterminated \x1b["
FLOOD = 100_000
MOST_GROWTH = 200 * 1024 * 1024


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("flood"), stub_config(replicas=2)) as started:
        started.wait_ready(2)
        yield started


async def until_seen(bench: Bench, text: str) -> None:
    async with asyncio.timeout(60):
        while not bench.picture_of(text):
            await bench.pilot.pause(0.02)


async def said(bench: Bench, running: Running, text: str) -> None:
    """Until the replica's last words are on the screen: what it says while it floods may be skipped."""
    async with asyncio.timeout(60):
        while not bench.picture_of(text):
            await asyncio.to_thread(running.faults, "stub/0", say=f"\n{text}\n")
            await bench.pilot.pause(0.2)


def test_a_flood_of_hostile_lines_and_a_line_of_sixteen_mebibytes(running: Running) -> None:
    async def play() -> None:
        app = Dashboard(ControlSource(str(running.runtime.control)))
        async with app.run_test(size=(120, 30)) as pilot:
            bench = Bench(app, FakeSource(), pilot, Clock())
            await until_seen(bench, "stub/1")
            await bench.go_to("stub/0")
            await bench.press("l")
            before = psutil.Process().memory_info().rss
            await asyncio.to_thread(running.faults, "stub/0", say="x" * 512 * 1024, say_times=32)
            await said(bench, running, "the long line is over")
            assert any(line.count("x") > 4000 for line in bench.log.lines)
            await asyncio.to_thread(running.faults, "stub/0", say=HOSTILE, say_times=FLOOD)
            await until_seen(bench, "lines skipped")
            await until_seen(bench, LITERAL)
            slowest = 0.0
            for key in ("w", "w", "k", "G") * 3:
                started = time.process_time()
                await bench.press(key)
                slowest = max(slowest, time.process_time() - started)
            await said(bench, running, "the flood is over")
            assert len(bench.log.lines) <= KEPT_LINES and max(map(len, bench.log.lines)) < 5000
            assert psutil.Process().memory_info().rss - before < MOST_GROWTH
            assert not any(char in line for line in bench.picture() for char in "\x1b\x07")
            assert slowest < 2.0, "CPU seconds for one key: it would feel dead"

    asyncio.run(play())
    assert running.embed().status == 200


def test_every_line_of_a_flood_is_shown_or_counted(running: Running) -> None:
    """Spec 14: what came too fast is said, where it is missing; nothing is left out in silence."""

    async def play() -> None:
        heard, source = Heard(), ControlSource(str(running.runtime.control))
        source.start(heard)
        await heard.until(lambda: heard.count(InventoryRead) > 0)
        source.follow_log(RowKey("stub", "stub/0", 1))
        await asyncio.to_thread(running.faults, "stub/0", say="it is read\n")
        await heard.until(lambda: bool(heard.lines))
        before = len(heard.lines)
        await asyncio.to_thread(running.faults, "stub/0", say="flood\n", say_times=FLOOD)
        await heard.until(lambda: len(heard.lines) - before + heard.skipped >= FLOOD, LONG_S)
        assert len(heard.lines) - before + heard.skipped == FLOOD and 0 < heard.skipped < FLOOD
        await source.stop()

    asyncio.run(play())


def test_details_of_a_killed_replica_tell_its_signal(running: Running) -> None:
    async def play() -> None:
        app = Dashboard(ControlSource(str(running.runtime.control)))
        async with app.run_test(size=(120, 40)) as pilot:
            bench = Bench(app, FakeSource(), pilot, Clock())
            await until_seen(bench, "stub/1")
            await bench.go_to("stub/0")
            await bench.press("enter")
            await until_seen(bench, "#1 ● ready")
            await until_seen(bench, "0 of 3 timeouts in a row")
            await bench.press("K", "y")
            await until_seen(bench, "#2 ● ready")
            assert "SIGKILL" in bench.picture_of("↻ restarting")
            await bench.press("escape")

    asyncio.run(play())


def test_one_that_is_killed_is_missed_one_that_stops_has_ended_and_the_next_is_found(
    running: Running,
) -> None:
    async def play() -> None:
        app = Dashboard(ControlSource(str(running.runtime.control)))
        async with app.run_test(size=(120, 30)) as pilot:
            bench = Bench(app, FakeSource(), pilot, Clock())
            await until_seen(bench, "2 of 2 ready")
            await asyncio.to_thread(running.kill)
            await until_seen(bench, "disconnected, retrying")
            await asyncio.to_thread(running.launch)
            await until_seen(bench, "● live")
            await until_seen(bench, "2 of 2 ready")
            await asyncio.to_thread(running.stop)
            await until_seen(bench, "■ ended")
            assert bench.picture_of(f"start it again: stoker serve -c {running.config} --name test")
            await asyncio.to_thread(running.launch)
            await until_seen(bench, "● live")
            await until_seen(bench, "2 of 2 ready")
            await asyncio.to_thread(running.stop)
            await until_seen(bench, "■ ended")
            await bench.press("q")
            assert app.return_value is QuitChoice.DETACH

    asyncio.run(play())
