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
    picture = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for index in kept:
        column = table.columns[index]
        last = index == kept[-1]
        picture.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    symbols = takes_symbols(sys.stdout)
    for row in table.rows:
        picture.add_row(*(Text(_with_glyph(row[index], symbols), style=row[index].style) for index in kept))
    return picture


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
