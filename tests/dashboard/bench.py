"""How a dashboard test is written: an async scenario that gets a running dashboard over a fake source."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from textual import events
from textual.keys import key_to_character
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from supervisor.control.messages import AnyCommand, Inventory
from tests.dashboard.fleet import FakeSource
from ui.dashboard.app import Dashboard
from ui.dashboard.desk import QuitChoice
from ui.dashboard.rows import RowKey
from ui.dashboard.screens.main import MainScreen
from ui.dashboard.widgets.bottom_line import BottomLine
from ui.dashboard.widgets.fleet_table import FleetTable
from ui.dashboard.widgets.line_view import LineView

ROUNDS = 3
"""Times that every widget is waited for: app, screen, focused widget, and what it tells."""


@dataclasses.dataclass
class Clock:
    """Time that only tests move."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


@dataclasses.dataclass
class Bench:
    """A dashboard that runs, and the hands and eyes of a user."""

    app: Dashboard
    source: FakeSource
    pilot: Pilot[QuitChoice]
    clock: Clock

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until all that follows from them has happened."""
        for key in keys:
            await press(self.pilot, key)
        await self.settle()

    async def settle(self) -> None:
        await self.app.workers.wait_for_complete()
        await rounds(self.pilot)
        await self.pilot.pause()

    async def push(self, inventory: Inventory) -> None:
        """The supervisor says that the fleet looks like this now."""
        self.source.push(inventory)
        await self.settle()

    async def go_to(self, name: str) -> None:
        """Put the cursor on a row by its name."""
        names = [row.key.replica or row.key.deployment for row in self.table.rows]
        self.table.move_to(names.index(name))
        await self.settle()

    def shows(self, kind: type[Screen[Any]]) -> bool:
        """Whether the topmost screen is of that kind."""
        return isinstance(self.app.screen, kind)

    def has_focus(self, widget: Widget) -> bool:
        """Whether keys go to that widget."""
        return self.app.focused is widget

    @property
    def sent(self) -> list[AnyCommand]:
        return self.source.sent

    @property
    def main(self) -> MainScreen:
        screen = self.app.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    @property
    def table(self) -> FleetTable:
        return self.main.query_one(FleetTable)

    @property
    def cursor(self) -> RowKey | None:
        return self.table.cursor

    @property
    def news(self) -> str:
        """What the bottom line tells at the moment."""
        return self.app.screen.query_one(BottomLine).news

    @property
    def log(self) -> LineView:
        return self.app.screen.query_one("#logs", LineView)

    def picture(self) -> list[str]:
        """The screen as lines of text."""
        width, height = self.app.size
        lines = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in line)[:width] for line in lines[:height]]

    def picture_of(self, text: str) -> str:
        """The first line of the screen that holds `text`."""
        return next((line for line in self.picture() if text in line), "")


async def press(pilot: Pilot[Any], key: str) -> None:
    """A key, and all that follows from it at once. `Pilot.press` waits 60 ms to be sure."""
    character = key if len(key) == 1 else key_to_character(key)
    pilot.app.post_message(events.Key(key, character))
    await rounds(pilot)


async def rounds(pilot: Pilot[Any]) -> None:
    """A message may lead to another in another widget, and that to a third."""
    for _ in range(ROUNDS):
        await pilot.pause(0)


Scenario = Callable[[Bench], Awaitable[None]]


def piloted(
    size: tuple[int, int] = (80, 24),
    *,
    source: Callable[[], FakeSource] = FakeSource,
    readonly: bool = False,
    owns_supervisor: bool = False,
    ascii_only: bool = False,
) -> Callable[[Scenario], Callable[[], None]]:
    """Turn an async scenario into a test."""

    def decorate(scenario: Scenario) -> Callable[[], None]:
        async def play() -> None:
            clock, fake = Clock(), source()
            app = Dashboard(
                fake,
                readonly=readonly,
                owns_supervisor=owns_supervisor,
                ascii_only=ascii_only,
                now=clock,
                wall=clock,
            )
            async with app.run_test(size=size) as pilot:
                bench = Bench(app, fake, pilot, clock)
                await bench.settle()
                await scenario(bench)

        def test() -> None:
            asyncio.run(play())

        test.__name__ = scenario.__name__
        test.__doc__ = scenario.__doc__
        return test

    return decorate
