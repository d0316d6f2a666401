"""Text from outside is shown, never obeyed; numbers are short, aligned and in units."""

from __future__ import annotations

import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from supervisor.control.messages import LogLine
from tests.dashboard.fleet import EPOCH, fleet_of_twelve, story
from ui.dashboard import words
from ui.dashboard.lines import LONGEST_LINE, event_line, level_of, log_line, missed_line, skipped_line
from ui.dashboard.model import Model
from ui.dashboard.paint import Tone, paint, plain, spread, to_ascii
from ui.dashboard.widgets.line_view import break_line, highlighted, split_cells
from ui.dashboard.widgets.masthead import Around, masthead

ANYTHING = st.text(alphabet=st.characters(), max_size=80)


@given(ANYTHING)
def test_no_character_that_a_terminal_obeys_survives(text: str) -> None:
    for char in words.literal(text):
        assert unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


@given(st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert words.literal(text) == text


@pytest.mark.parametrize(
    ("wild", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("[bold]not bold[/bold]", "[bold]not bold[/bold]"),
        ("a\rb\x08c\x7f", "a\\x0db\\x08c\\x7f"),
        ("\x9b2J", "\\x9b2J"),
        ("tab\there", "tab    here"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("lone \ud800", "lone \\ud800"),
        ("\u26a0\ufe0f careful", "\u26a0 careful"),
        ("größer 東京", "größer 東京"),
    ],
)
def test_wild_text_is_shown_literally(wild: str, shown: str) -> None:
    assert words.literal(wild) == shown


@given(ANYTHING, st.integers(0, 60), st.booleans())
def test_fit_takes_exactly_its_cells(text: str, width: int, right: bool) -> None:
    assert cell_len(words.fit(words.literal(text), width, right)) == width


def test_a_part_of_which_only_a_scrap_would_be_left_is_left_out() -> None:
    text = "3 of 5 ready, 1 failed · embed · artifact"
    assert words.clip(text, 22) == words.clip(text, 25) == "3 of 5 ready, 1 failed"
    assert words.clip(text, 34) == words.clip(text, 40) == "3 of 5 ready, 1 failed · embed"
    assert words.clip(text + " of long", 41) == "3 of 5 ready, 1 failed · embed · artifac…"
    assert words.clip(text, 21) == "3 of 5 ready, 1 fail…"
    assert words.clip(text, 41) == text


@given(ANYTHING)
def test_ascii_takes_as_many_cells(text: str) -> None:
    shown = words.literal(text)
    assert to_ascii(shown).isascii()
    assert cell_len(to_ascii(shown)) == cell_len(shown)


@given(st.lists(st.tuples(ANYTHING, st.sampled_from(Tone)), max_size=6), st.integers(0, 90))
def test_a_painted_line_is_as_wide_as_asked(pieces: list[tuple[str, Tone]], width: int) -> None:
    line = tuple((words.literal(text), tone) for text, tone in pieces)
    strip = paint(line, width, lambda tone: Style())
    assert strip.cell_length == width == sum(segment.cell_length for segment in strip)
    assert cell_len(plain(spread(line, (), width))) == width


@given(ANYTHING, st.integers(0, 40))
def test_splitting_loses_nothing(text: str, cells: int) -> None:
    text = words.literal(text)
    head, rest = split_cells(text, cells)
    assert head + rest == text
    assert cell_len(head) <= cells


@given(ANYTHING, st.integers(2, 40), st.integers(0, 12))
def test_wrapping_keeps_every_word_and_the_width(text: str, width: int, hang: int) -> None:
    text = words.literal(text)
    lines = break_line(((text, Tone.TEXT),), width, hang)
    assert all(cell_len(plain(line)) <= width for line in lines)
    assert "".join(plain(line) for line in lines).replace(" ", "") == text.replace(" ", "")


@given(ANYTHING, st.text(min_size=1, max_size=3))
def test_highlighting_changes_no_letter(text: str, needle: str) -> None:
    line = ((words.literal(text[:5]), Tone.DIM), (words.literal(text[5:]), Tone.TEXT))
    assert plain(highlighted(line, needle.casefold())) == plain(line)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (words.size(0), "0"),
        (words.size(812), "812 B"),
        (words.size(1229), "1.2 KiB"),
        (words.size(64 * 1024**2), "64 MiB"),
        (words.size(1.5 * 1024**3), "1.5 GiB"),
        (words.size(None), ""),
        (words.rate(0.01), "0"),
        (words.rate(41.24), "41.2"),
        (words.rate(412.4), "412"),
        (words.rate(12_400), "12.4k"),
        (words.milliseconds(None), ""),
        (words.milliseconds(0.82), "0.82 ms"),
        (words.milliseconds(8.24), "8.2 ms"),
        (words.milliseconds(812), "812 ms"),
        (words.milliseconds(1_210), "1.2 s"),
        (words.milliseconds(30_000), "30 s"),
        (words.duration(0.42), "0.4 s"),
        (words.duration(12), "12 s"),
        (words.duration(192), "3m12s"),
        (words.duration(8054), "2h14m"),
        (words.duration(3 * 86400 + 4 * 3600), "3d4h"),
        (words.grouped(128_410), "128 410"),
    ],
)
def test_units(shown: str, expected: str) -> None:
    assert shown == expected


@given(st.floats(0, 1e15))
def test_numbers_stay_within_their_columns(value: float) -> None:
    assert len(words.size(value)) <= 8
    if value < 999_000:
        assert len(words.rate(value)) <= 5
    if value < 99_000_000:
        assert len(words.milliseconds(value)) <= 7
        assert len(words.duration(value)) <= 6


def test_a_log_line_is_literal_and_bounded() -> None:
    wild = LogLine(time=EPOCH, replica="primary/3", incarnation=1, text="\x1b[2J[red]" + "x" * 70_000)
    text = plain(log_line(wild, with_replica=True))
    assert text.startswith(" 08:53:20 /3 \\x1b[2J[red]xxx")
    assert "more characters in the log file" in text and len(text) < LONGEST_LINE + 200


def test_one_is_no_plural() -> None:
    assert [words.plural(count, "row") for count in (0, 1, 2, 12_480)] == ["0 rows", "1 row", "2 rows", "12 480 rows"]
    assert plain(skipped_line(1)).strip().startswith("··· 1 line skipped")
    assert plain(missed_line(1)).strip() == "··· 1 event is not kept any more"
    small = msgspec.structs.replace(fleet_of_twelve().supervisor, cpu_budget=1, cpu_threads_used=1)
    model = Model()
    model.take_inventory(msgspec.structs.replace(fleet_of_twelve(), supervisor=small))
    assert "1 of 1 thread " in plain(masthead(model, Around(), 200, False)[1])


def test_levels_are_seen_near_the_start() -> None:
    assert level_of("2026-01-01 ERROR no") is Tone.BAD
    assert level_of("WARNING slow") is Tone.WARN
    assert level_of("ValueError: no") is Tone.BAD
    assert level_of("all is well, no error") is Tone.TEXT


def test_every_event_becomes_one_line_with_its_time() -> None:
    for event in story():
        text = plain(event_line(event))
        assert event.sentence() in text and text[1:9].count(":") == 2
