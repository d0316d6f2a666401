"""Everything about one row: what goes on, its numbers, its card and limits, its last exit, its events and its log."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from supervisor.control.events import AnyEvent
from ui.dashboard import keymap
from ui.dashboard.desk import Desk
from ui.dashboard.keymap import Place
from ui.dashboard.lines import event_line, log_line, skipped_line
from ui.dashboard.orders import Target, is_there
from ui.dashboard.paint import Line, Tone, spread
from ui.dashboard.rows import RowKey, key_of
from ui.dashboard.screens.acting import ActingScreen
from ui.dashboard.source import LinesWritten
from ui.dashboard.widgets.bottom_line import BottomLine
from ui.dashboard.widgets.facts import Facts, facts_about
from ui.dashboard.widgets.line_view import LineView
from ui.dashboard.widgets.masthead import link_chip

SIDE_BY_SIDE_FROM = 100


class DetailsScreen(ActingScreen, inherit_bindings=False):
    """Follows a slot. Its actions are for the incarnation that is on the screen when the key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.DETAILS)]

    def __init__(self, desk: Desk, key: RowKey) -> None:
        super().__init__(desk)
        self._key = key
        self._full = False

    def compose(self) -> ComposeResult:
        yield Facts(id="facts")
        with Horizontal(id="panes"):
            yield LineView("events", hang=12, wraps=True, id="history")
            yield LineView("log", hang=10, id="logs")
        yield BottomLine(id="bottom")

    def on_mount(self) -> None:
        self.query_one("#logs", LineView).focus()
        self.desk.read_log(self._key)
        self.add_events(self.desk.model.events, 0)
        self.show_model()
        offered = keymap.footer((Place.DETAILS, Place.LOGS, Place.APP), self.desk.readonly)
        no_replica = {action.name for action in offered if action.needs is keymap.Needs.REPLICA}
        self.query_one(BottomLine).offer(offered, frozenset() if self._key.is_replica else frozenset(no_replica))

    def on_resize(self) -> None:
        self.show_model()

    # ------------------------------------------------------------------------------------------------ drawing

    def show_model(self) -> None:
        if not self.query(Facts):  # news that came before the screen was composed; it is shown when it is
            return
        replica = self.desk.model.replica(self._key.replica)
        if replica is not None:
            self._key = key_of(replica)
        facts = self.query_one(Facts)
        facts.styles.height = facts.show(self._facts())
        facts.display = not self._full
        wide = self.size.width >= SIDE_BY_SIDE_FROM
        self.query_one("#history").display = self._key.is_replica and wide and not self._full

    def _facts(self) -> list[Line]:
        """The facts, under a first line that says at its right how the connection stands."""
        model, width = self.desk.model, self.size.width
        first, *rest = facts_about(self._key, model.inventory, width)
        return [spread(first, (*link_chip(model, self.desk.lost_for_s()), (" ", Tone.TEXT)), width), *rest]

    def forget_events(self) -> None:
        """Another supervisor's story begins."""
        self.query_one("#history", LineView).empty()

    def add_events(self, events: list[AnyEvent], missed: int) -> None:
        """New events, of which those of this replica are shown."""
        own = [event_line(event) for event in events if getattr(event, "replica", None) == self._key.replica]
        self.query_one("#history", LineView).append(own)

    def add_lines(self, message: LinesWritten) -> None:
        lines, skipped = message.mailbox.take()
        if message.of.slot != self._key.slot:
            return
        drawn = [log_line(line, not message.of.is_replica) for line in lines]
        self.query_one("#logs", LineView).append([skipped_line(skipped), *drawn] if skipped else drawn)

    # ------------------------------------------------------------------------------------------------- target

    def target(self) -> Target | None:
        if is_there(self._key, self.desk.model.newest):
            return Target((self._key,))
        self.tell(f"{self._key} is gone: nothing was done", Tone.WARN)
        return None

    async def run_named(self, name: str, target: Target | None) -> None:
        action = keymap.BY_NAME[name]
        if Place.DETAILS in action.places:
            await self.run_action(name)
        elif Place.APP in action.places:
            await self.app.run_action(name)
        elif Place.LOGS in action.places:
            await self.query_one("#logs", LineView).run_action(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = keymap.BY_NAME.get(action)
        return known is None or not (known.acts and self.desk.readonly)

    @on(LineView.FullAsked)
    def _full_asked(self) -> None:
        self._full = not self._full
        self.show_model()

    def action_next_pane(self) -> None:
        history, logs = self.query_one("#history", LineView), self.query_one("#logs", LineView)
        (history if self.focused is logs and history.display else logs).focus()

    def action_back(self) -> None:
        logs = self.query_one("#logs", LineView)
        if self._full:
            self._full_asked()
        elif logs.needle:
            logs.find("")
        else:
            self.dismiss(None)
