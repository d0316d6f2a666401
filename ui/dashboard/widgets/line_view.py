"""A bounded list of lines under a title: the events, a log, a page of help. Draws only what is visible.

Lines arrive in batches. While it follows, the newest line is at the bottom; scrolling up stops that, so a line that is
being read stays where it is, also when old lines fall out at the top.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollTo, ScrollUp
from textual.strip import Strip

from ui.dashboard import keymap, words
from ui.dashboard.keymap import Place
from ui.dashboard.paint import Line, Painter, Piece, Tone, plain, rule, width_of

KEPT_LINES = 5000
NOTHING: Line = ((" nothing yet", Tone.DIM),)
MORE: Line = (("…", Tone.DIM),)
"""At the end of a line that goes on beyond the edge."""
TITLE_ROWS = 1
LEAST_TO_WRAP = 4
"""Lines below the title from which long ones are wrapped unasked: a lower pane would show the end of one line alone."""


class LineView(Painter, ScrollView, can_focus=True, inherit_bindings=False):
    """Lines of pieces, with follow, wrap and search.

    title: drawn in a rule above them. hang: cells by which the rest of a wrapped line is set in.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings(Place.LOGS)]

    class FullAsked(Message):
        """Somebody wants this pane on the whole screen, or back in its place."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

    class SearchAsked(Message):
        """Somebody wants to search in this pane."""

        def __init__(self, view: LineView) -> None:
            super().__init__()
            self.view = view

    def __init__(
        self, title: str, *, hang: int = 0, wraps: bool = False, keep: int = KEPT_LINES, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._hang = hang
        self._wrapped_at_first = wraps
        self._title = title
        self._keep = keep
        self._lines: collections.deque[Line] = collections.deque()
        self._heights: collections.deque[int] = collections.deque()
        self._drawn: list[Line] = []
        self._widest = 0
        self._wrapped_at = 0
        self.follows = True
        self.wraps = wraps
        self._was_asked = False
        self.needle = ""

    # ----------------------------------------------------------------------------------------------- contents

    @property
    def lines(self) -> list[str]:
        """The kept lines as words."""
        return [plain(line) for line in self._lines]

    def set_title(self, title: str) -> None:
        """Write another title."""
        if title != self._title:
            self._title = title
            self._refresh_title()

    def empty(self) -> None:
        """Begin anew."""
        self._lines.clear()
        self._heights.clear()
        self._drawn.clear()
        self._widest = 0
        self._settle()

    def show(self, lines: Iterable[Line]) -> None:
        """These lines in place of those before; what is being read stays where it is."""
        at = self.scroll_y
        self._lines.clear()
        self._heights.clear()
        self._drawn.clear()
        self._widest = 0
        self.append(lines)
        if not self.follows:
            self.scroll_to(y=min(at, self.max_scroll_y), animate=False, force=True)

    def append(self, lines: Iterable[Line]) -> None:
        """Add lines at the end; the oldest go where there are too many."""
        dropped = 0
        for line in lines:
            drawn = self._broken(line)
            self._lines.append(line)
            self._heights.append(len(drawn))
            self._drawn.extend(drawn)
            self._widest = max(self._widest, width_of(line))
        while len(self._lines) > self._keep:
            self._lines.popleft()
            dropped += self._heights.popleft()
        del self._drawn[:dropped]
        self._settle(dropped)

    @property
    def _breaks(self) -> bool:
        """Whether long lines are wrapped: as asked, and where nobody asked as there is room for it."""
        return self.wraps and (self._was_asked or self.size.height >= LEAST_TO_WRAP + TITLE_ROWS)

    def _broken(self, line: Line) -> list[Line]:
        return break_line(line, self._wrapped_at, self._hang) if self._wrapped_at > 0 else [line]

    def _rebreak(self) -> None:
        """Break every line again: the width or the wish has changed."""
        self._wrapped_at = self.size.width if self._breaks else 0
        self._drawn.clear()
        self._heights.clear()
        for line in self._lines:
            drawn = self._broken(line)
            self._heights.append(len(drawn))
            self._drawn.extend(drawn)
        self._settle()

    def _settle(self, dropped: int = 0) -> None:
        """Fit the scroll position to the contents: at the end while following, else where the reader is."""
        width = 0 if self._breaks else self._widest
        self.virtual_size = Size(width, len(self._drawn) + TITLE_ROWS)
        if self.follows:
            self.scroll_to(y=self.max_scroll_y, animate=False, force=True)
        elif dropped:
            self.scroll_to(y=max(self.scroll_y - dropped, 0), animate=False, force=True)
        self.refresh()

    def on_resize(self) -> None:
        if (self.size.width if self._breaks else 0) != self._wrapped_at:
            self._rebreak()
        else:
            self._settle()

    # ---------------------------------------------------------------------------------------------- scrolling

    def _set_follow(self, on: bool) -> None:
        self.follows = on
        if on:
            self._settle()
        self._refresh_title()

    def _scroll_by(self, rows: int) -> None:
        if rows < 0:
            self._set_follow(False)
        self.scroll_to(y=self.scroll_y + rows, animate=False, force=True)

    def action_cursor_down(self) -> None:
        self._scroll_by(1)

    def action_cursor_up(self) -> None:
        self._scroll_by(-1)

    def action_page_down(self) -> None:
        self._scroll_by(max(self.size.height - TITLE_ROWS - 1, 1))

    def action_page_up(self) -> None:
        self._scroll_by(-max(self.size.height - TITLE_ROWS - 1, 1))

    def action_first(self) -> None:
        self._set_follow(False)
        self.scroll_to(y=0, animate=False, force=True)

    def action_last(self) -> None:
        self._set_follow(True)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._set_follow(False)

    def on_scroll_up(self, event: ScrollUp) -> None:
        self._set_follow(False)

    def on_scroll_to(self, event: ScrollTo) -> None:
        """The scroll bar was dragged."""
        if event.y is not None:
            self._set_follow(event.y >= self.max_scroll_y)

    def on_key(self, event: events.Key) -> None:
        """Sideways, where lines are not wrapped."""
        if event.key in ("left", "right") and not self._breaks:
            step = max(self.size.width // 3, 1) * (1 if event.key == "right" else -1)
            self.scroll_to(x=max(self.scroll_x + step, 0), animate=False, force=True)
            event.stop()

    # ----------------------------------------------------------------------------------------------- switches

    def action_follow(self) -> None:
        self._set_follow(not self.follows)

    def action_wrap(self) -> None:
        self.wraps = not self._breaks
        self._was_asked = True
        self._rebreak()

    def action_full(self) -> None:
        self.post_message(self.FullAsked(self))

    def action_clear(self) -> None:
        self.empty()

    # ------------------------------------------------------------------------------------------------- search

    def action_search(self) -> None:
        self.post_message(self.SearchAsked(self))

    def find(self, needle: str) -> None:
        """Highlight every place that holds `needle`, and go to the last of them that is above or in view."""
        self.needle = needle.casefold()
        self.refresh()
        if self.needle and not self._find(range(self._bottom(), -1, -1)):
            self._find(range(max(self._bottom(), 0), len(self._drawn)))

    def action_next_match(self) -> None:
        self._find(range(self.scroll_offset.y + 1, len(self._drawn)))

    def action_previous_match(self) -> None:
        self._find(range(self.scroll_offset.y - 1, -1, -1))

    def _bottom(self) -> int:
        return min(self.scroll_offset.y + max(self.size.height - TITLE_ROWS, 1), len(self._drawn)) - 1

    def _find(self, candidates: Iterable[int]) -> bool:
        for index in candidates:
            if self.needle and self.needle in plain(self._drawn[index]).casefold():
                self._set_follow(False)
                self.scroll_to(y=index, animate=False, force=True)
                return True
        return False

    # ------------------------------------------------------------------------------------------------ drawing

    def _refresh_title(self) -> None:
        self.refresh()

    def watch_has_focus(self, focused: bool) -> None:
        super().watch_has_focus(focused)
        self._refresh_title()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y < TITLE_ROWS:
            return self.paint(self._draw_title(width), width)
        index = y - TITLE_ROWS + self.scroll_offset.y
        if index >= len(self._drawn):
            return self.paint(NOTHING if index == 0 else (), width)
        line = self._drawn[index]
        if self.needle:
            line = tuple(highlighted(line, self.needle))
        left = 0 if self._breaks else self.scroll_offset.x
        strip = self.paint(line, left + width).crop(left, left + width)
        if self._breaks or width_of(line) <= left + width:
            return strip
        return Strip.join([strip.crop(0, width - 1), self.paint(MORE, 1)])

    def _draw_title(self, width: int) -> Line:
        state = " · ".join(flag for flag in self.flags() if flag)
        return rule(self._title, width, Tone.KEY if self.has_focus else Tone.TITLE, state)

    def flags(self) -> list[str]:
        """What the title says beside the name."""
        return [
            f"/{words.literal(self.needle)}" if self.needle else "",
            "" if self.wraps is self._wrapped_at_first else ("wrapped" if self.wraps else "cut"),
            "" if self.follows else "held; s follows",
        ]


class Page(LineView, inherit_bindings=True):
    """Lines that are read from the top and do not grow."""

    def __init__(self, title: str, *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self.follows = False

    def flags(self) -> list[str]:
        return []


# ----------------------------------------------------------------------------------------------- pure helpers


def break_line(line: Line, width: int, hang: int = 0) -> list[Line]:
    """A line broken at words into lines of `width` cells at most, all but the first set in by `hang`."""
    hang = hang if hang < width // 2 else 0
    broken: list[list[Piece]] = [[]]
    room = width
    for text, tone in line:
        while text:
            head, rest = _split_words(text, room, width - hang)
            if not head and room == width - hang:
                break  # a wide character in a single cell: nothing would ever fit
            if head:
                broken[-1].append((head, tone))
                room -= cell_len(head)
            text = rest
            if text:
                broken.append([(" " * hang, Tone.TEXT)] if hang else [])
                room = width - hang
    return [tuple(pieces) for pieces in broken]


def _split_words(text: str, room: int, whole: int) -> tuple[str, str]:
    """What of `text` goes on this line, up to the last space unless that would waste half a line, and the rest."""
    head, rest = split_cells(text, room)
    if not rest or rest[0] == " ":
        return head, rest[1:]
    at = head.rfind(" ")
    if at >= 0 and room - at <= whole // 2:
        return head[:at], text[at + 1 :]
    return head, rest


def split_cells(text: str, cells: int) -> tuple[str, str]:
    """What of `text` fits in so many cells, and the rest."""
    if cells <= 0:
        return "", text
    if text.isascii():
        return text[:cells], text[cells:]
    if cell_len(text) <= cells:
        return text, ""
    head = set_cell_size(text, cells)
    if not text.startswith(head):
        head = head[:-1]  # a wide character was cut in half and became a space
    return head, text[len(head) :]


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int


def highlighted(line: Line, needle: str) -> list[Piece]:
    """The line with every place that holds `needle` (casefolded) in the tone of a match."""
    text = plain(line).casefold()
    if len(text) != len(plain(line)) or needle not in text:
        return list(line)
    spans = []
    at = text.find(needle)
    while at >= 0:
        spans.append(_Span(at, at + len(needle)))
        at = text.find(needle, at + len(needle))
    pieces: list[Piece] = []
    offset = 0
    for part, tone in line:
        at = offset
        end = offset + len(part)
        for span in spans:
            start, stop = max(span.start, at), min(span.end, end)
            if start < stop:
                pieces += [
                    (part[at - offset : start - offset], tone),
                    (part[start - offset : stop - offset], Tone.MATCH),
                ]
                at = stop
        pieces.append((part[at - offset :], tone))
        offset = end
    return [piece for piece in pieces if piece[0]]
