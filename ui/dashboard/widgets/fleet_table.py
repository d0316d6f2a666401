"""The table of deployments and replicas: rows keyed by incarnation, drawn line by line, only where something changed.

Textual's DataTable has no column that takes what is left, no row across the columns and no order of its own, and it
measures every cell it is given; this table draws the few lines that are visible. The cursor belongs to a slot, not to a
line: rows may come, go and change places around it. Where its own row goes, the cursor has to stand on another one;
`jumped_at` says when that happened, so that a key meant for the one does not act on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ui.dashboard import keymap, words
from ui.dashboard.columns import Layout
from ui.dashboard.keymap import Place
from ui.dashboard.paint import Ground, Painter, Piece, Tone
from ui.dashboard.rows import Order, Row, RowKey

TITLE_ROWS = 1


class FleetTable(Painter, ScrollView, can_focus=True, inherit_bindings=False):
    """Shows rows under a layout. Messages: `CursorMoved`, `Opened`, `TitleClicked`."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.TABLE)]

    class CursorMoved(Message):
        """The cursor stands on another row."""

        def __init__(self, key: RowKey | None) -> None:
            super().__init__()
            self.key = key

    class Opened(Message):
        """Somebody wants to see everything about a row."""

        def __init__(self, key: RowKey) -> None:
            super().__init__()
            self.key = key

    class TitleClicked(Message):
        """A column's title was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, now: Callable[[], float], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._now = now
        self._layout_of_columns = Layout((), 1, 0)
        self._order = Order()
        self._rows: list[Row] = []
        self._cursor = 0
        self._key: RowKey | None = None
        self.marks: set[RowKey] = set()
        self.jumped_at = float("-inf")

    # ----------------------------------------------------------------------------------------------- contents

    @property
    def cursor(self) -> RowKey | None:
        """The row under the cursor."""
        return self._key

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    def show(self, rows: list[Row], layout: Layout, order: Order) -> None:
        """Take new rows; draws what differs from what is there."""
        if layout != self._layout_of_columns or order != self._order:
            self._layout_of_columns, self._order = layout, order
            self.refresh()
        before, self._rows = self._rows, rows
        if [row.key for row in before] != [row.key for row in rows]:
            self._rearrange()
            return
        for index, (old, new) in enumerate(zip(before, rows, strict=True)):
            if old.cells != new.cells:
                self._refresh_row(index)

    def _rearrange(self) -> None:
        """Rows came, went or changed places: the cursor goes with its slot."""
        keys = {row.key for row in self._rows}
        self.marks &= keys
        self.virtual_size = Size(0, len(self._rows) + TITLE_ROWS)
        self.refresh()
        if not self._rows:
            self._stand_on(0)
            return
        if self._key is None:
            self._stand_on(_first_replica(self._rows))
            return
        slots = {row.key.slot: index for index, row in enumerate(self._rows)}
        at = slots.get(self._key.slot)
        if at is None or self._key not in keys:
            self.jumped_at = self._now()
        self._stand_on(min(self._cursor, len(self._rows) - 1) if at is None else at)

    # ------------------------------------------------------------------------------------------------- cursor

    def move_to(self, index: int) -> None:
        """Put the cursor on a row, as near as there is one."""
        if self._rows:
            self._stand_on(max(0, min(index, len(self._rows) - 1)))

    def _stand_on(self, index: int) -> None:
        before, self._cursor = self._cursor, index
        key = self._rows[index].key if index < len(self._rows) else None
        moved, self._key = key != self._key, key
        self._refresh_row(before)
        self._refresh_row(index)
        self._scroll_to_cursor()
        if moved:
            self.post_message(self.CursorMoved(key))

    def _scroll_to_cursor(self) -> None:
        visible = max(self.size.height - TITLE_ROWS, 1)
        top = self.scroll_offset.y
        if self._cursor < top:
            top = self._cursor
        elif self._cursor >= top + visible:
            top = self._cursor - visible + 1
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False, force=True)

    def on_resize(self) -> None:
        self._scroll_to_cursor()

    def action_cursor_down(self) -> None:
        self.move_to(self._cursor + 1)

    def action_cursor_up(self) -> None:
        self.move_to(self._cursor - 1)

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.move_to(len(self._rows) - 1)

    def action_page_down(self) -> None:
        self.move_to(self._cursor + max(self.size.height - TITLE_ROWS - 1, 1))

    def action_page_up(self) -> None:
        self.move_to(self._cursor - max(self.size.height - TITLE_ROWS - 1, 1))

    def action_details(self) -> None:
        if self._key is not None:
            self.post_message(self.Opened(self._key))

    # -------------------------------------------------------------------------------------------------- marks

    def action_mark(self) -> None:
        """Mark or unmark the row, and go on to the next."""
        if self._key is None:
            return
        if self._key.is_replica:
            self.set_marks(self.marks ^ {self._key})
        else:
            own = {row.key for row in self._rows if row.key.is_replica and row.key.deployment == self._key.deployment}
            self.set_marks(self.marks - own if own <= self.marks else self.marks | own)
        self.action_cursor_down()

    def set_marks(self, marks: Iterable[RowKey]) -> None:
        """Mark those rows and no others."""
        changed = self.marks ^ set(marks)
        self.marks = set(marks)
        for index, row in enumerate(self._rows):
            if row.key in changed:
                self._refresh_row(index)
        self.post_message(self.CursorMoved(self._key))

    @property
    def marked(self) -> tuple[RowKey, ...]:
        """The marked rows in the order in which they are shown."""
        return tuple(row.key for row in self._rows if row.key in self.marks)

    # -------------------------------------------------------------------------------------------------- mouse

    def on_click(self, event: events.Click) -> None:
        if event.y < TITLE_ROWS:
            if (column := self._layout_of_columns.column_at(event.x)) is not None and column.letter:
                self.post_message(self.TitleClicked(column.name))
            return
        index = event.y - TITLE_ROWS + self.scroll_offset.y
        if index < len(self._rows):
            self.move_to(index)
            if event.chain == 2:
                self.action_details()

    # ------------------------------------------------------------------------------------------------ drawing

    def _refresh_row(self, index: int) -> None:
        y = index + TITLE_ROWS - self.scroll_offset.y
        if TITLE_ROWS <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def watch_has_focus(self, focused: bool) -> None:
        super().watch_has_focus(focused)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y < TITLE_ROWS:
            return self._draw_titles(width)
        index = y - TITLE_ROWS + self.scroll_offset.y
        if index >= len(self._rows):
            return self.paint((), width)
        return self._draw_row(index, width)

    def _draw_titles(self, width: int) -> Strip:
        """The titles; the arrow of the column that is sorted by may stand in the gap before it."""
        line: list[Piece] = []
        gap = 1
        for placed in self._layout_of_columns.placed:
            column = placed.column
            if column.name != self._order.column:
                line.append((" " * gap + words.fit(column.title, placed.width, column.right), Tone.TITLE))
            elif column.right:
                title = ("▼" if self._order.falls else "▲") + column.title
                line.append((words.fit(title, placed.width + gap, right=True), Tone.KEY))
            else:
                title = column.title + ("▼" if self._order.falls else "▲")
                line.append((" " * gap + words.fit(title, placed.width), Tone.KEY))
            gap = self._layout_of_columns.gap
        return self.paint(line, width)

    def _draw_row(self, index: int, width: int) -> Strip:
        row = self._rows[index]
        ground = Ground.PLAIN if row.key.is_replica else Ground.GROUP
        ground = Ground.CURSOR if index == self._cursor else ground
        gap = " " * self._layout_of_columns.gap
        segments = [Segment("▌" if row.key in self.marks else " ", self.look(Tone.MARK, ground))]
        blank = self.look(Tone.TEXT, ground)
        used = 1
        for placed, (text, tone) in zip(self._layout_of_columns.placed, row.cells, strict=False):
            if used >= width:
                break
            cells = min(placed.width, width - used)
            segments.append(Segment(words.fit(text, cells, placed.column.right), self.look(tone, ground)))
            segments.append(Segment(gap, blank))
            used += cells + len(gap)
        return Strip(segments).adjust_cell_length(width, blank)


def _first_replica(rows: list[Row]) -> int:
    return next((index for index, row in enumerate(rows) if row.key.is_replica), 0)
