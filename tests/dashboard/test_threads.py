"""The threads view: the budget, what was learned, and how to switch learning on."""

from __future__ import annotations

from tests.dashboard.bench import Bench, piloted
from tests.dashboard.fleet import FakeSource, fleet_of_twelve, fleet_that_learns, inventory
from ui.dashboard.paint import plain
from ui.dashboard.screens.main import MainScreen
from ui.dashboard.screens.threads import ThreadsScreen
from ui.dashboard.threads import budget_line, thread_lines


def learning() -> FakeSource:
    return FakeSource(first=fleet_that_learns())


def test_what_was_learned_is_told_by_range() -> None:
    text = [plain(line) for line in thread_lines(fleet_that_learns())]
    row = next(line for line in text if line.startswith("   < 32"))
    assert row.split() == [
        "<",
        "32",
        "serving",
        "412",
        "1",
        "40%",
        "1:",
        "4.1",
        "ms",
        "(12)",
        "2:",
        "6.8",
        "ms",
        "(12)",
    ]
    assert any("primary/0  2 threads on cores 0-1" in line for line in text)
    assert any(
        "retired" in line and "3 x 17 to 44 tokens had other bits with 1 thread than with 2" in line for line in text
    )
    assert any("uncertified: run `stoker threads certify`" in line for line in text)
    assert not any("Nothing adapts" in line for line in text)


def test_where_nothing_adapts_it_says_how_to_switch_it_on() -> None:
    text = " ".join(plain(line) for line in thread_lines(fleet_of_twelve()))
    assert "Nothing adapts" in text and "cpu: {adaptive: 1}" in text and "STOKER_CPU_ADAPTIVE_THREADS=1" in text


def test_more_threads_than_the_budget_are_said() -> None:
    over = plain(budget_line(inventory([], cpu_threads_used=24, cpu_budget=16)))
    assert "24 of 16 threads given out: they take turns" in over
    assert "take turns" not in plain(budget_line(inventory([])))


@piloted(source=learning)
async def test_t_shows_the_threads_and_t_or_escape_leaves(bench: Bench) -> None:
    await bench.press("t")
    assert bench.shows(ThreadsScreen) and bench.picture_of("12 of 16 threads given out") and bench.picture_of("< 128")
    await bench.press("t")
    assert bench.shows(MainScreen)
    await bench.press("t", "escape")
    assert bench.shows(MainScreen)


@piloted((80, 24), source=learning)
async def test_the_threads_scroll_and_follow_the_fleet(bench: Bench) -> None:
    await bench.press("t", "j", "j")
    assert not bench.picture_of("given out")
    await bench.push(fleet_of_twelve())
    assert not bench.picture_of("given out"), "what is being read stays where it is"
    await bench.press("g")
    assert bench.picture_of("12 of 16 threads given out") and bench.picture_of("STOKER_CPU_ADAPTIVE_THREADS=1")
    await bench.press("G")
    assert bench.picture_of("chat/2") and bench.picture_of("learning off")


@piloted((80, 24), source=learning)
async def test_a_lost_supervisor_is_said_in_the_threads_view(bench: Bench) -> None:
    await bench.press("t")
    bench.source.lose()
    await bench.settle()
    assert "disconnected, retrying" in bench.picture()[0]
