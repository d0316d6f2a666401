"""The main screen: header, table, events and log, keys. It decides what is shown where, and draws nothing itself."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from supervisor.control.events import AnyEvent
from ui.dashboard import keymap, words
from ui.dashboard.charts import View, charts_about
from ui.dashboard.columns import Layout, lay_out
from ui.dashboard.desk import Desk
from ui.dashboard.keymap import Group, Needs, Place
from ui.dashboard.lines import event_line, log_lines, missed_line
from ui.dashboard.orders import Target
from ui.dashboard.paint import Tone, rule
from ui.dashboard.rows import Order, RowKey, build_rows
from ui.dashboard.screens.acting import ActingScreen
from ui.dashboard.screens.details import DetailsScreen
from ui.dashboard.screens.scale import ScaleScreen
from ui.dashboard.screens.threads import ThreadsScreen
from ui.dashboard.source import LinesWritten
from ui.dashboard.widgets.bottom_line import BottomLine
from ui.dashboard.widgets.facts import Facts, facts_about
from ui.dashboard.widgets.fleet_table import FleetTable
from ui.dashboard.widgets.line_view import LineView
from ui.dashboard.widgets.masthead import Around, Masthead

JUMP_S = 0.6
"""After the row under the cursor went, a key that acts is not obeyed for so long: it was meant for that row, seconds.
"""
SIDE_BY_SIDE_FROM = 140
TALL_FROM = 30
INSPECTOR_FROM_WIDTH, INSPECTOR_FROM_HEIGHT = 160, 45
CHARTS_AND_PANES_FROM = 45
"""Terminal height from which charts and panes are shown together."""
LOWEST_PANE, NARROWEST_PANE = 4, 2
"""Lines that the events keep under a table that scrolls, and those to which they shrink so that it need not."""
ROW_STEP = 4
"""The table's height goes in steps of so many rows, so that a replica more does not move everything below it."""


class MainScreen(ActingScreen, inherit_bindings=False):
    """The fleet at a glance."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.MAIN)]

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._order = Order()
        self._needle = ""
        self._searched: LineView | None = None
        self._log_of: RowKey | None = None
        self._shows_events = True
        self._view: View | None = None
        self._last_view = View()
        self._full: LineView | Facts | None = None
        self._head = 3

    def compose(self) -> ComposeResult:
        yield Masthead(id="masthead")
        yield FleetTable(self.desk.now, id="fleet")
        yield Facts(id="charts")
        with Horizontal(id="panes"):
            yield LineView("events", hang=12, wraps=True, id="events")
            yield LineView("logs", hang=10, id="logs")
            yield Facts(id="inspector")
        yield BottomLine(id="bottom")
        yield Input(id="needle", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        self._needle_field.display = False
        self._needle_field.cursor_blink = False
        self._logs.display = False
        self.table.focus()
        self.show_model()

    @property
    def table(self) -> FleetTable:
        return self.query_one("#fleet", FleetTable)

    @property
    def _events(self) -> LineView:
        return self.query_one("#events", LineView)

    @property
    def _logs(self) -> LineView:
        return self.query_one("#logs", LineView)

    @property
    def _charts(self) -> Facts:
        return self.query_one("#charts", Facts)

    @property
    def _needle_field(self) -> Input:
        return self.query_one("#needle", Input)

    # ------------------------------------------------------------------------------------------------ drawing

    def show_model(self) -> None:
        model = self.desk.model
        layout = self._layout_of_columns()
        self.table.show(
            build_rows(model.inventory, layout, model.history, self._needle, self._order), layout, self._order
        )
        self.set_class(model.is_stale, "-stale")
        self._show_head()
        self._show_keys()
        self._share_height()
        self._inspect()
        self._draw_charts()

    def _layout_of_columns(self) -> Layout:
        table = self.table
        return lay_out(self.desk.model.inventory, table.scrollable_content_region.width or self.size.width)

    def _show_head(self) -> None:
        model = self.desk.model
        desk = self.desk
        around = Around(desk.readonly, self._needle, len(self.table.marks), desk.lost_for_s(), desk.stops_in_s())
        head = self.query_one(Masthead)
        self._head = head.show(model, around, self.size.width, self.size.height >= TALL_FROM)
        head.styles.height = self._head

    def _show_keys(self) -> None:
        in_lines = isinstance(self.focused, LineView)
        places = (Place.LOGS, Place.APP) if in_lines else (Place.TABLE, Place.MAIN, Place.APP)
        offered = keymap.footer(places, self.desk.readonly)
        if self._view is None:
            offered = [action for action in offered if action.group is not Group.CHARTS]
        cursor = self.table.cursor
        on_replica = (cursor is not None and cursor.is_replica) or bool(self.table.marks)
        idle = {action.name for action in offered if action.needs is Needs.REPLICA and not on_replica}
        self.query_one(BottomLine).offer(offered, frozenset(idle))

    def _share_height(self) -> None:
        """Give the table what its rows need, in steps, and the panes the rest."""
        panes, charts = self.query_one("#panes"), self._charts
        table = self.table
        together = self._view is None or (self.size.height >= CHARTS_AND_PANES_FROM and self._full is None)
        panes.display = together and (self._shows_events or self._log_of is not None)
        charts.display = self._view is not None and self._full in (None, charts)
        side_by_side = self.size.width >= SIDE_BY_SIDE_FROM
        alone = self._full
        self._logs.display = self._log_of is not None and alone in (None, self._logs)
        events_fit = self._shows_events and (side_by_side or self._log_of is None)
        self._events.display = events_fit if alone is None else alone is self._events
        self.query_one(Masthead).display = table.display = alone is None
        panes.display = panes.display or isinstance(alone, LineView)
        panes.styles.height = charts.styles.height = "1fr"
        if alone is not None:
            return
        room = max(self.size.height - self._head - 1, 0)
        if charts.display:
            share = room * 2 // 3 if panes.display else room // 2
        else:
            share = room // 2 if self._log_of is not None else self._share_of_events(room)
        wanted = -(-(len(table.rows) + 1) // ROW_STEP) * ROW_STEP
        table.styles.height = min(wanted, room - share) if panes.display or charts.display else "1fr"

    def _share_of_events(self, room: int) -> int:
        left = room - len(self.table.rows) - 1
        lowest = left if NARROWEST_PANE <= left < LOWEST_PANE else LOWEST_PANE
        return min(lowest, room // 3)

    def _draw_charts(self) -> None:
        """Charts of the row under the cursor, in the size that the pane has."""
        if self._view is not None and self._charts.display:
            size = self._charts.size
            self._charts.show(charts_about(self.table.cursor, self.desk.model, self._view, size.width, size.height))

    def on_resize(self, event: events.Resize) -> None:
        self.show_model()
        self.call_after_refresh(self.show_model)

    def on_descendant_focus(self) -> None:
        self._show_keys()

    @on(FleetTable.CursorMoved)
    def _cursor_moved(self) -> None:
        self._show_keys()
        self._show_head()
        self._inspect()
        self._draw_charts()

    def _inspect(self) -> None:
        """Where there is room, the facts of the row under the cursor beside the events."""
        inspector = self.query_one("#inspector", Facts)
        big = self.size.width >= INSPECTOR_FROM_WIDTH and self.size.height >= INSPECTOR_FROM_HEIGHT
        key = self.table.cursor
        inspector.display = big and self._log_of is None and self._full is None and key is not None
        if inspector.display and key is not None:
            width = self.size.width // (2 if self._shows_events else 1)
            title = rule(words.literal(key.replica or key.deployment), width)
            inspector.show([title, *facts_about(key, self.desk.model, width, self.size.height)])

    # ------------------------------------------------------------------------------------------------- news

    def forget_events(self) -> None:
        """Another supervisor's story begins."""
        self._events.empty()

    def add_events(self, events: list[AnyEvent], missed: int) -> None:
        """New events; `missed` ones before them are lost."""
        lines = [event_line(event) for event in events]
        self._events.append([missed_line(missed), *lines] if missed else lines)

    def add_lines(self, message: LinesWritten) -> None:
        """New log lines, if they are still of the log that is open."""
        written, lost = message.mailbox.take()
        if self._log_of is not None and message.of.slot == self._log_of.slot:
            self._logs.append(log_lines(written, not message.of.is_replica, lost))

    # ------------------------------------------------------------------------------------------------- target

    def target(self) -> Target | None:
        since = self.desk.now() - self.table.jumped_at
        if since < JUMP_S:
            self.tell("the row under the cursor has just gone: nothing was done", Tone.WARN)
            return None
        if marked := self.table.marked:
            return Target(marked, marked=True)
        return Target((self.table.cursor,)) if self.table.cursor is not None else Target()

    async def run_named(self, name: str, target: Target | None) -> None:
        action = keymap.BY_NAME[name]
        if name == "scale" and target is not None:
            self._ask_scale(target)
        elif Place.TABLE in action.places:
            await self.table.run_action(name)
        elif Place.APP in action.places:
            await self.app.run_action(name)
        else:
            await self.run_action(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that act are not there in a read-only dashboard, nor while the cursor of the table is not in use."""
        known = keymap.BY_NAME.get(action)
        if known is not None and known.group is Group.CHARTS:
            return self._view is not None
        if known is None or not known.acts:
            return True
        return not self.desk.readonly and not isinstance(self.focused, LineView)

    # ------------------------------------------------------------------------------------------------ actions

    def action_more(self) -> None:
        self.act("more")

    def action_fewer(self) -> None:
        self.act("fewer")

    def action_scale(self) -> None:
        if (target := self.target()) is not None:
            self._ask_scale(target)

    def _ask_scale(self, target: Target) -> None:
        status = self.desk.model.deployment(target.deployment)
        if status is None:
            self.tell("nothing is under the cursor", Tone.WARN)
            return

        def answered(number: int | None) -> None:
            if number is not None:
                self.desk.scale_to(status.name, number)

        self.app.push_screen(ScaleScreen(status), answered)

    def action_sort(self, column: str) -> None:
        self._order = self._order.by(column)
        self.show_model()

    @on(FleetTable.TitleClicked)
    def _title_clicked(self, message: FleetTable.TitleClicked) -> None:
        self.action_sort(message.column)

    @on(FleetTable.Opened)
    def _opened(self, message: FleetTable.Opened) -> None:
        self.app.push_screen(DetailsScreen(self.desk, message.key), self._details_closed)

    def action_threads(self) -> None:
        self.app.push_screen(ThreadsScreen(self.desk))

    def action_events(self) -> None:
        if self._view is not None and not self.query_one("#panes").display:
            self._close_charts()
            self._shows_events = False
        self._shows_events = not self._shows_events
        if not self._shows_events and self.focused is self._events:
            self.table.focus()
        self._share_height()

    def action_next_pane(self) -> None:
        views = [view for view in (self.table, self._events, self._logs) if view.display]
        at = views.index(self.focused) if self.focused in views else -1
        views[(at + 1) % len(views)].focus()

    def action_back(self) -> None:
        """One step back: full screen, log, filter, marks, in this order."""
        self.query_one(BottomLine).hush()
        if self._full is not None:
            self._set_full(None)
        elif self._view is not None and not isinstance(self.focused, LineView):
            self._close_charts()
        elif isinstance(self.focused, LineView) and self.focused.needle:
            self.focused.find("")
        elif self._log_of is not None:
            self._close_log()
        elif self._needle:
            self._set_needle("")
        elif self.table.marks:
            self.table.set_marks(())
        if self._full is None:
            self.table.focus()

    # ------------------------------------------------------------------------------------------------ charts

    def action_charts(self) -> None:
        """Open the charts of what is under the cursor, or close them."""
        if self._view is not None:
            self._close_charts()
            return
        self._view = self._last_view
        if self.size.height < CHARTS_AND_PANES_FROM:
            self._full = None
            self.table.focus()
        self._show_charts()

    def _close_charts(self) -> None:
        if self._view is not None:
            self._last_view = self._view
        self._view = None
        self._full = None
        self._show_charts()

    def _show_charts(self) -> None:
        self._show_keys()
        self._share_height()
        self._inspect()
        self.call_after_refresh(self._draw_charts)

    def _look(self, view: View) -> None:
        self._view = view
        self._draw_charts()

    def action_split(self) -> None:
        if self._view is not None:
            self._look(self._view.turned())

    def action_window(self) -> None:
        if self._view is not None:
            self._look(self._view.wider(self.desk.model.history))

    def action_enlarge(self) -> None:
        if self._view is not None:
            self._full = None if self._full is not None else self._charts
            self._show_charts()

    # ------------------------------------------------------------------------------------------------- logs

    def action_logs(self) -> None:
        """Open the log of what is under the cursor; asked for the one that is open, close it."""
        key = self.table.cursor
        if self._log_of is not None and (
            isinstance(self.focused, LineView) or key is None or key.slot == self._log_of.slot
        ):
            self._close_log()
        elif key is not None:
            self._open_log(key)

    def _open_log(self, key: RowKey) -> None:
        if self.size.height < CHARTS_AND_PANES_FROM:
            self._close_charts()
        self._log_of = key
        self._logs.empty()
        self._logs.find("")
        self._logs.action_last()
        self._logs.set_title(f"log of {words.literal(key.replica or key.deployment)}")
        self.desk.read_log(key)
        self._share_height()
        self._logs.focus()

    def _close_log(self) -> None:
        self._log_of = None
        self._full = None
        self.desk.read_log(None)
        self._share_height()
        self.table.focus()

    def _details_closed(self, _: object) -> None:
        """They have read another log meanwhile."""
        self._logs.empty()
        self.desk.read_log(self._log_of)

    @on(LineView.FullAsked)
    def _full_asked(self, message: LineView.FullAsked) -> None:
        self._set_full(None if self._full is not None else message.view)

    def _set_full(self, view: LineView | None) -> None:
        self._full = view
        self._show_charts()

    # ----------------------------------------------------------------------------------------- filter, search

    def action_filter(self) -> None:
        self._searched = None
        self._ask_needle(self._needle)

    @on(LineView.SearchAsked)
    def _search_asked(self, message: LineView.SearchAsked) -> None:
        self._searched = message.view
        self._ask_needle(message.view.needle)

    def _ask_needle(self, present: str) -> None:
        field = self._needle_field
        field.placeholder = "filter the rows" if self._searched is None else "search the lines"
        field.value = present
        field.display = True
        self.query_one(BottomLine).display = False
        field.focus()

    def _close_needle(self) -> None:
        self._needle_field.display = False
        self._needle_field.cursor_blink = False
        self.query_one(BottomLine).display = True
        (self._searched or self.table).focus()

    def _set_needle(self, needle: str) -> None:
        self._needle = needle
        self.show_model()

    @on(Input.Changed, "#needle")
    def _needle_changed(self, event: Input.Changed) -> None:
        if self._searched is None:
            self._set_needle(event.value)
        else:
            self._searched.find(event.value)

    @on(Input.Submitted, "#needle")
    def _needle_given(self) -> None:
        self._close_needle()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" and self.focused is self._needle_field:
            event.stop()
            event.prevent_default()
            self._needle_field.value = ""
            if self._searched is None:
                self._set_needle("")
            self._close_needle()
