"""Numbers, escapes and tables as text."""

from __future__ import annotations

import io

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from supervisor.control import events
from ui.cli.picture import COLOURS
from ui.cli.tables import Cell, Column, Table, drawn, plain
from ui.cli.units import count, duration, milliseconds, rate, share, size
from ui.literal import literal
from ui.looks import DEPLOYMENT_LOOKS, EVENT_GLYPHS, REPLICA_LOOKS, TROUBLE, Mood, event_mood


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size(None), ""),
        (size(0), "0B"),
        (size(999), "999B"),
        (size(1000), "1.0KiB"),
        (size(512 * 1024**2), "512MiB"),
        (size(24 * 1024**3), "24GiB"),
        (duration(-1), "0.0s"),
        (duration(9.94), "9.9s"),
        (duration(59.9), "59s"),
        (duration(125), "2m05s"),
        (duration(3600), "1h00m"),
        (duration(90_000), "1d01h"),
        (milliseconds(None), ""),
        (milliseconds(0.134), "0.13ms"),
        (milliseconds(8.25), "8.2ms"),
        (milliseconds(950.4), "950ms"),
        (rate(0), "0"),
        (rate(3.25), "3.2"),
        (rate(1203.7), "1204"),
        (share(None), ""),
        (share(0.374), "37%"),
        (count(1, "replica"), "1 replica"),
        (count(2, "replica"), "2 replicas"),
    ],
)
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


@given(st.text())
def test_printable_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = literal(text)
    assert not set(shown) & {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u202a\u202e\u2066"} - {"\t"}
    assert literal(shown) == shown
    shown.encode()


cells = st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=12)


@given(st.lists(st.tuples(cells, cells, cells), max_size=6))
def test_columns_start_at_the_same_place_in_every_line(rows: list[tuple[str, str, str]]) -> None:
    table = Table((Column("A"), Column("B", right=True), Column("C")), [[Cell(text) for text in row] for row in rows])
    lines = plain(table)
    assert len(lines) == len(rows) + 1
    start = lines[0].index("C")
    for line, row in zip(lines[1:], rows, strict=True):
        assert line[start - 2 : start] == "  "
        assert line[start:] == (" ".join(row[2].split()) or "-")


@pytest.mark.parametrize("width", [30, 40, 80])
def test_on_a_narrow_terminal_a_word_is_cut_and_never_a_number(width: int) -> None:
    columns = (
        Column("DEVICE"),
        Column("NAME"),
        Column("MEMORY", right=True),
        Column("USED", right=True, least_width=60),
    )
    table = Table(columns, [[Cell("cuda:0"), Cell("a card with a name that is long"), Cell("1024GiB"), Cell("1.5GiB")]])
    console = rich.console.Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as shown:
        console.print(drawn(table, width))
    assert "1024GiB" in shown.get()
    assert ("1.5GiB" in shown.get()) == (width >= 60)
    assert all(len(line) <= width for line in shown.get().splitlines())


def test_every_event_has_a_mood_and_those_of_trouble_a_glyph_of_their_own() -> None:
    assert event_mood(events.Warned(message="x")) is Mood.WARN
    assert event_mood(events.DrainEnded(replica="a/0", incarnation=1, seconds=1.0, cut=0)) not in TROUBLE
    assert event_mood(events.DrainEnded(replica="a/0", incarnation=1, seconds=1.0, cut=3)) in TROUBLE
    assert len({EVENT_GLYPHS[mood] for mood in TROUBLE}) == len(TROUBLE)


def test_every_state_of_a_life_has_a_look() -> None:
    from supervisor.core.lifecycle import State

    assert set(REPLICA_LOOKS) == {*State, "backoff", "ejected"}
    assert set(DEPLOYMENT_LOOKS) == {"ready", "degraded", "unavailable"}
    assert set(COLOURS) == set(Mood)
