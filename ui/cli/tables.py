"""Rows of text as a table: aligned lines for a pipe, drawn by rich on a terminal (spec 13).

A table is data here (columns and rows of cells), so that both pictures show the same words.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ui.cli.say import emit, on_terminal, takes_symbols
from ui.literal import literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


GAP = 2
"""Blanks behind each column of a drawn table."""
LEAST_FOLDED = 12
"""Characters that a last column of words keeps; it folds."""


class Column(NamedTuple):
    """`least_width`: terminals narrower than this many columns leave it out."""

    title: str
    right: bool = False
    least_width: int = 0


class Cell(NamedTuple):
    """`glyph` and `style` are for terminals; the text alone says all."""

    text: str
    style: str = ""
    glyph: str = ""


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def plain(table: Table) -> list[str]:
    """Aligned lines, two blanks between columns, `-` where there is nothing to say."""
    texts = [[column.title for column in table.columns]]
    texts += [[" ".join(cell.text.split()) or "-" for cell in row] for row in table.rows]
    widths = [max(len(row[index]) for row in texts) for index in range(len(table.columns))]
    return ["  ".join(_aligned(row, widths, table.columns)).rstrip() for row in texts]


def show(table: Table, heading: str = "") -> None:
    """The table on standard output; `heading`: a line above it, on a terminal only."""
    if not on_terminal(sys.stdout):
        for line in plain(table):
            emit(line)
        return
    screen = console()
    if heading:
        screen.print(literal(heading))
    screen.print(drawn(table, screen.width))


def drawn(table: Table, width: int) -> RenderableType:
    """The table for a terminal `width` columns wide, with glyphs where it can show them."""
    import rich.box
    import rich.table
    from rich.text import Text

    kept = [index for index, column in enumerate(table.columns) if column.least_width <= width]
    symbols = takes_symbols(sys.stdout)
    columns = [table.columns[index] for index in kept]
    rows = [[Text(_with_glyph(row[index], symbols), style=row[index].style) for index in kept] for row in table.rows]
    needed = [max([len(column.title), *(row[at].cell_len for row in rows)]) for at, column in enumerate(columns)]
    picture = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for at, (column, most) in enumerate(zip(columns, _fitted(columns, needed, width), strict=True)):
        last = at == len(columns) - 1
        picture.add_column(
            column.title,
            justify="right" if column.right else "left",
            min_width=most if column.right else len(column.title),
            max_width=None if last else most,
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    for row in rows:
        picture.add_row(*row)
    return picture


def _fitted(columns: Sequence[Column], needed: Sequence[int], width: int) -> list[int]:
    """Widths where all do not fit: the widest word is cut, and never a number; a last column of words folds."""
    fitted = list(needed)
    if not columns[-1].right:
        fitted[-1] = min(fitted[-1], LEAST_FOLDED)
    words = [at for at, column in enumerate(columns[:-1]) if not column.right]
    excess = sum(fitted) + GAP * len(columns) - width
    if words and excess > 0:
        widest = max(words, key=lambda at: fitted[at])
        fitted[widest] = max(len(columns[widest].title), fitted[widest] - excess)
    return fitted


def console() -> Console:
    """Standard output as rich sees it: nothing in a text is markup, and NO_COLOR is respected."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _with_glyph(cell: Cell, symbols: bool) -> str:
    text = literal(cell.text)
    return f"{cell.glyph} {text}" if cell.glyph and symbols else text


def _aligned(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> list[str]:
    pairs = zip(row, widths, columns, strict=True)
    return [text.rjust(width) if column.right else text.ljust(width) for text, width, column in pairs]
