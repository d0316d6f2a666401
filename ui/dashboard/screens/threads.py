"""The threads of the whole fleet: the budget, and what each replica learned about its own."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ui.dashboard import keymap
from ui.dashboard.desk import Desk, FleetScreen
from ui.dashboard.keymap import Place
from ui.dashboard.paint import Line, Tone, spread
from ui.dashboard.threads import thread_lines
from ui.dashboard.widgets.bottom_line import BottomLine
from ui.dashboard.widgets.facts import Facts
from ui.dashboard.widgets.line_view import Page
from ui.dashboard.widgets.masthead import link_chip


class ThreadsScreen(FleetScreen, inherit_bindings=False):
    """The page behind `t`. It shows the fleet as it goes on, and acts on nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.THREADS)]

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk
        self._shown: list[Line] = []

    def compose(self) -> ComposeResult:
        yield Facts(id="facts")
        yield Page("threads", id="thread-lines")
        yield BottomLine(id="bottom")

    def on_mount(self) -> None:
        self.query_one(Page).focus()
        self.query_one(BottomLine).offer(keymap.footer((Place.THREADS, Place.APP), self.desk.readonly), frozenset())
        self.show_model()
        self.query_one(Page).action_first()

    def on_resize(self) -> None:
        self.show_model()

    def show_model(self) -> None:
        if not self.query(Facts):  # news that came before the screen was composed
            return
        model, width = self.desk.model, self.size.width
        name = model.inventory.supervisor.name if model.inventory is not None else ""
        chip = (*link_chip(model, self.desk.lost_for_s(), self.desk.stops_in_s()), (" ", Tone.TEXT))
        facts = self.query_one(Facts)
        facts.styles.height = facts.show([spread(((" stoker ", Tone.KEY), (name, Tone.STRONG)), chip, width)])
        lines = thread_lines(model.inventory)
        if lines != self._shown:
            self._shown = lines
            self.query_one(Page).show(lines)

    def action_back(self) -> None:
        self.dismiss(None)

    action_threads = action_back
    """The key that opened it closes it."""

    async def action_do(self, name: str) -> None:
        """A key's label was clicked."""
        place = keymap.BY_NAME[name].places
        await (self.app if Place.APP in place else self).run_action(name)
