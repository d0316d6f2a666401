"""Everything about one row: what goes on, its numbers, its card and limits; its history, its events, its threads, its
log.

Where there is room, its log stands beside one of the other panes; a narrow terminal shows one at a time.
"""

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
from ui.dashboard.lines import event_line, history_lines, log_lines
from ui.dashboard.orders import Target, is_there
from ui.dashboard.paint import Line, Tone, spread
from ui.dashboard.rows import RowKey, key_of
from ui.dashboard.screens.acting import ActingScreen
from ui.dashboard.source import LinesWritten
from ui.dashboard.threads import replica_thread_lines
from ui.dashboard.widgets.bottom_line import BottomLine
from ui.dashboard.widgets.facts import SIDE_BY_SIDE_FROM, Facts, card_lines, facts_about
from ui.dashboard.widgets.line_view import LineView, Page
from ui.dashboard.widgets.masthead import link_chip

LOWEST_PANE = 7
"""Lines that the panes keep; facts that take more than what is left are shown without the card, which has a pane."""
PANES = ("logs", "history", "events", "threads", "card")
"""The panes in the order of Tab."""
TITLES = {"logs": "log", "history": "history, newest last", "events": "events", "threads": "threads", "card": "card"}


class DetailsScreen(ActingScreen, inherit_bindings=False):
    """Follows a slot. Its actions are for the incarnation that is on the screen when the key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.DETAILS)]

    def __init__(self, desk: Desk, key: RowKey) -> None:
        super().__init__(desk)
        self._key = key
        self._full = False
        self._beside = "history"
        self._alone = "logs"
        self._shown: dict[str, list[Line]] = {}

    def compose(self) -> ComposeResult:
        yield Facts(id="facts")
        with Horizontal(id="panes"):
            yield LineView("history", hang=16, wraps=True, id="history")
            yield LineView("events", hang=12, wraps=True, id="events")
            yield Page("threads", id="threads")
            yield Page("card", id="card")
            yield LineView("log", hang=10, id="logs")
        yield BottomLine(id="bottom")

    def on_mount(self) -> None:
        self._pane("logs").focus()
        self.desk.read_log(self._key)
        self.desk.look_at(self._key.replica or None)
        self.add_events(self.desk.model.events, 0)
        self.show_model()
        offered = keymap.footer((Place.DETAILS, Place.LOGS, Place.APP), self.desk.readonly)
        no_replica = {action.name for action in offered if action.needs is keymap.Needs.REPLICA}
        self.query_one(BottomLine).offer(offered, frozenset() if self._key.is_replica else frozenset(no_replica))

    def on_resize(self) -> None:
        self.show_model()

    @property
    def _is_wide(self) -> bool:
        return self.size.width >= SIDE_BY_SIDE_FROM

    def _pane(self, name: str) -> LineView:
        return self.query_one(f"#{name}", LineView)

    # ------------------------------------------------------------------------------------------------ drawing

    def show_model(self) -> None:
        if not self.query(Facts):  # news that came before the screen was composed; it is shown when it is
            return
        replica = self.desk.model.replica(self._key.replica)
        if replica is not None:
            self._key = key_of(replica)
            details = self.desk.model.details_of(replica.name)
            self._fill("history", history_lines(details.history if details is not None else []))
            self._fill("threads", replica_thread_lines(replica, self.desk.model.inventory))
            self._fill("card", card_lines(replica, self.size.width))
        facts = self.query_one(Facts)
        facts.styles.height = facts.show(self._facts())
        facts.display = not self._full
        self.set_class(self.desk.model.is_stale, "-stale")
        self._arrange()

    def _fill(self, pane: str, lines: list[Line]) -> None:
        """Show other lines in a pane, if they are others."""
        if self._shown.get(pane) != lines:
            self._shown[pane] = lines
            self._pane(pane).show(lines)

    def _arrange(self) -> None:
        """Which panes are seen: the log beside another one, or one of them."""
        if self._full:
            seen = {self.focused.id if isinstance(self.focused, LineView) else "logs"}
        elif not self._key.is_replica:
            seen = {"logs"}
        elif self._is_wide:
            seen = {"logs", self._beside}
        else:
            seen = {self._alone}
        for name, after in zip(PANES, (*PANES[1:], PANES[0]), strict=True):
            pane = self._pane(name)
            pane.display = name in seen
            alone = self._key.is_replica and not self._is_wide and not self._full
            pane.set_title(f"{TITLES[name]} · tab: {after}" if alone else TITLES[name])

    def _facts(self) -> list[Line]:
        """The facts, under a first line that says at its right how the connection stands."""
        model, width = self.desk.model, self.size.width
        first, *rest = facts_about(self._key, model, width, self.size.height - LOWEST_PANE)
        chip = link_chip(model, self.desk.lost_for_s(), self.desk.stops_in_s())
        return [spread(first, (*chip, (" ", Tone.TEXT)), width), *rest]

    def forget_events(self) -> None:
        """Another supervisor's story begins."""
        self._pane("events").empty()

    def add_events(self, events: list[AnyEvent], missed: int) -> None:
        """New events, of which those of this replica are shown."""
        own = [event_line(event) for event in events if getattr(event, "replica", None) == self._key.replica]
        self._pane("events").append(own)

    def add_lines(self, message: LinesWritten) -> None:
        written, lost = message.mailbox.take()
        if message.of.slot == self._key.slot:
            self._pane("logs").append(log_lines(written, not message.of.is_replica, lost))

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
            await self._pane("logs").run_action(name)
        else:
            self.tell(f"{action.label}: on the main screen; Esc leads there", Tone.WARN)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        known = keymap.BY_NAME.get(action)
        return known is None or not (known.acts and self.desk.readonly)

    # -------------------------------------------------------------------------------------------------- panes

    @on(LineView.FullAsked)
    def _full_asked(self) -> None:
        self._full = not self._full
        self.show_model()

    def _open(self, pane: str) -> None:
        """See a pane, and give it the keys."""
        if not self._key.is_replica and pane != "logs":
            return
        self._full = False
        self._alone = pane
        if pane != "logs":
            self._beside = pane
        self.show_model()
        self._pane(pane).focus()

    def action_logs(self) -> None:
        self._open("logs")

    def action_states(self) -> None:
        self._open("history")

    def action_events(self) -> None:
        self._open("events")

    def action_threads(self) -> None:
        self._open("threads")

    def action_next_pane(self) -> None:
        at = PANES.index(self.focused.id) if isinstance(self.focused, LineView) and self.focused.id else 0
        if not self._is_wide:
            self._open(PANES[(at + 1) % len(PANES)])
        else:
            self._pane(self._beside if at == 0 and self._key.is_replica else "logs").focus()

    def action_back(self) -> None:
        logs = self._pane("logs")
        if self._full:
            self._full_asked()
        elif logs.needle:
            logs.find("")
        else:
            self.desk.look_at(None)
            self.dismiss(None)
