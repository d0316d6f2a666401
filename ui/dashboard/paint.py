"""From words to cells: a line is a row of pieces, each with a tone, and a theme decides what a tone looks like.

All text of the dashboard goes this way instead of through markup, so nothing that is shown is ever parsed. A tone is a
meaning (good, bad, busy), never a colour: the theme gives each its colour, and each state has a glyph besides, so
the picture can be read without colour. `to_ascii` is the other half of that: the one place that knows what to draw on a
terminal that is not UTF-8.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.strip import Strip
from textual.widget import Widget


class Tone(enum.StrEnum):
    """What a piece of text means; how that looks is in `PAINTS`."""

    TEXT = "text"
    DIM = "dim"
    FAINT = "faint"
    STRONG = "strong"
    TITLE = "title"
    KEY = "key"
    GOOD = "good"
    BUSY = "busy"
    TREND = "trend"
    WARN = "warn"
    OUT = "out"
    BAD = "bad"
    MARK = "mark"
    MATCH = "match"
    LINE_1 = "line-1"
    LINE_2 = "line-2"
    LINE_3 = "line-3"
    LINE_4 = "line-4"
    LINE_5 = "line-5"
    LINE_6 = "line-6"


Piece = tuple[str, Tone]
Line = tuple[Piece, ...]


class Ground(enum.StrEnum):
    """What lies behind a row."""

    PLAIN = "plain"
    GROUP = "group"
    CURSOR = "cursor"


@dataclasses.dataclass(frozen=True, slots=True)
class Paint:
    """A colour of the theme, how much of it, and whether the text is bold."""

    color: str
    alpha: float = 1.0
    bold: bool = False


PAINTS: dict[Tone, Paint] = {
    Tone.TEXT: Paint("foreground"),
    Tone.DIM: Paint("foreground", 0.5),
    Tone.FAINT: Paint("foreground", 0.22),
    Tone.STRONG: Paint("foreground", bold=True),
    Tone.TITLE: Paint("foreground", 0.65, bold=True),
    Tone.KEY: Paint("primary", bold=True),
    Tone.GOOD: Paint("success"),
    Tone.BUSY: Paint("primary"),
    Tone.TREND: Paint("primary", 0.7),
    Tone.WARN: Paint("warning"),
    Tone.OUT: Paint("accent"),
    Tone.BAD: Paint("error", bold=True),
    Tone.MARK: Paint("accent", bold=True),
    Tone.MATCH: Paint("background", bold=True),
    Tone.LINE_1: Paint("primary"),
    Tone.LINE_2: Paint("accent"),
    Tone.LINE_3: Paint("success"),
    Tone.LINE_4: Paint("error"),
    Tone.LINE_5: Paint("foreground"),
    Tone.LINE_6: Paint("secondary", 0.6),
}
MATCH_GROUND = Paint("warning")
GROUNDS: dict[Ground, Paint] = {
    Ground.PLAIN: Paint("background", 0.0),
    Ground.GROUP: Paint("surface"),
    Ground.CURSOR: Paint("primary", 0.25),
}
CURSOR_WITHOUT_COLOR = Paint("foreground", 0.28)


class Painter(Widget):
    """A widget that draws lines of toned pieces.

    Tones are looked up in the theme once, and not by component classes: Textual would style some fifteen of them for
    every widget at each change of a style, which took a quarter of the processor's time at start.
    """

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._looks: dict[tuple[Tone, Ground], Style] = {}
        self._looks_of = ""

    def look(self, tone: Tone, ground: Ground = Ground.PLAIN) -> Style:
        """The style of a tone on a ground, over this widget's background."""
        if self._looks_of != self.app.theme:
            self._looks_of = self.app.theme
            self._looks.clear()
        style = self._looks.get((tone, ground))
        if style is None:
            style = self._looks[(tone, ground)] = self._mixed(tone, ground)
        return style

    def _mixed(self, tone: Tone, ground: Ground) -> Style:
        paint = PAINTS[tone]
        below = GROUNDS[ground]
        if tone is Tone.MATCH:
            below = MATCH_GROUND
        elif ground is Ground.CURSOR and self.app.no_color:
            below = CURSOR_WITHOUT_COLOR
        _, background = self.background_colors
        background += self._color(below)
        color = background + self._color(paint)
        return Style(color=color.rich_color, bgcolor=background.rich_color, bold=paint.bold)

    def _color(self, paint: Paint) -> Color:
        return Color.parse(self.app.theme_variables[paint.color]).multiply_alpha(paint.alpha)

    def notify_style_update(self) -> None:
        self._looks.clear()
        super().notify_style_update()

    def paint(self, line: Iterable[Piece], width: int) -> Strip:
        """The line as a strip of exactly `width` cells."""
        return paint(line, width, self.look)


def paint(line: Iterable[Piece], width: int, look: Callable[[Tone], Style]) -> Strip:
    """The line as a strip of exactly `width` cells; what does not fit is cut."""
    segments: list[Segment] = []
    left = width
    for text, tone in line:
        if left <= 0:
            break
        cells = cell_len(text)
        if cells > left:
            text, cells = set_cell_size(text, left), left
        if text:
            segments.append(Segment(text, look(tone)))
        left -= cells
    if left > 0:
        segments.append(Segment(" " * left, look(Tone.TEXT)))
    return Strip(segments, max(width, 0))


def width_of(line: Iterable[Piece]) -> int:
    """Cells that a line takes."""
    return sum(cell_len(text) for text, _ in line)


def plain(line: Iterable[Piece]) -> str:
    """The words of a line."""
    return "".join(text for text, _ in line)


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` at the left edge and `right` at the right edge; where both do not fit, the left one is cut."""
    room = width - width_of(right)
    kept: list[Piece] = []
    for text, tone in left:
        cells = cell_len(text)
        if cells > room:
            kept.append((set_cell_size(text, max(room, 0)), tone))
            room = 0
            break
        kept.append((text, tone))
        room -= cells
    return (*kept, (" " * max(room, 0), Tone.TEXT), *right)


def rule(title: str, width: int, tone: Tone = Tone.TITLE, state: str = "") -> Line:
    """A line across, with a title at its left and a state at its right."""
    left: Line = (("─ ", Tone.FAINT), (title, tone), (" ", Tone.FAINT))
    right: Line = ((f" {state} ", Tone.WARN), ("─", Tone.FAINT)) if state else (("─", Tone.FAINT),)
    middle = "─" * max(width - width_of(left) - width_of(right), 0)
    return spread((*left, (middle, Tone.FAINT)), right, width)


# --------------------------------------------------------------------------------------------- without UTF-8

_PAIRS = (
    ("●◌◍◐◒○◔⊘↻✗▲≠", "*.:~vo%/@x^#"),  # states
    ("─━│┃╴╶╸╺═┄┈", "-=||--===.."),  # rules and bars
    ("┌┐└┘├┤┬┴┼╭╮╰╯", "+" * 13),
    ("▁▂▃▄▅▆▇█", "_.:-=+*#"),  # sparklines
    ("▌▐▎▏▕▔▀", "|||||--"),
    ("▾▸→←↑↓↵✓", "v>><^v<+"),
    ("…·•≤≥×−‹›␣", ".-*<>x-<>_"),
)
_BRAILLE = 0x2800
_BRAILLE_ROWS = (0x01 | 0x08, 0x02 | 0x10, 0x04 | 0x20, 0x40 | 0x80)


def _dots_as_ascii(dots: int) -> str:
    """A cell of a chart: a mark at the height of its dots, or a stroke where they reach over the most of it."""
    rows = [index for index, bits in enumerate(_BRAILLE_ROWS) if dots & bits]
    if not rows:
        return " "
    if len(rows) > 2:
        return "|"
    return ("'", "-", "-", ".")[round(sum(rows) / len(rows))] if len(rows) == 1 else ("'", ":", ".", ".")[rows[0]]


_ASCII = {ord(fancy): simple for pair in _PAIRS for fancy, simple in zip(*pair, strict=True)}
_ASCII |= {_BRAILLE + dots: _dots_as_ascii(dots) for dots in range(256)}


class _Ascii(dict[int, str]):
    def __missing__(self, code: int) -> str:
        shown = chr(code) if code < 0x80 else "?" * max(cell_len(chr(code)), 0)
        self[code] = shown
        return shown


_TO_ASCII = _Ascii(_ASCII)


def to_ascii(text: str) -> str:
    """`text` in as many cells, drawn with ASCII alone."""
    return text if text.isascii() else text.translate(_TO_ASCII)


class AsciiFilter(LineFilter):
    """The last step before the terminal where that is not UTF-8: nothing else has to know."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(to_ascii(segment.text), segment.style, segment.control)
            for segment in segments
        ]
