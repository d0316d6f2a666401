"""Charts: what is drawn of which samples, in exactly the room there is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.dashboard.bench import Bench, piloted
from tests.dashboard.fleet import FakeSource, deployment, fleet_of_twelve, inventory, many, replica, swayed
from ui.dashboard.charts import By, Chart, Scale, Series, View, bounds, charts_about, draw
from ui.dashboard.columns import sparkline
from ui.dashboard.model import KEPT_S, History, Model
from ui.dashboard.paint import Line, Tone, plain, to_ascii
from ui.dashboard.rows import RowKey


def a_model(seconds: int = 60) -> Model:
    model = Model()
    for moment in range(seconds):
        model.take_inventory(swayed(fleet_of_twelve(), moment))
    return model


def a_chart(points: list[tuple[int, float]], newest: int = 100, scale: Scale = Scale.LINEAR) -> Chart:
    return Chart("a", [Series("", Tone.LINE_1, points)], lambda value: f"{value:g}", scale, newest, 60)


def dots(lines: list[Line]) -> str:
    """The plot alone, without labels."""
    return "".join(char for line in lines for char in plain(line) if 0x2800 < ord(char) < 0x2900)


# ----------------------------------------------------------------------------------------------- what is kept


def test_a_series_has_one_sample_a_second_and_ten_minutes_of_them() -> None:
    history = History()
    for half in range(2 * (KEPT_S + 50)):
        history.add(inventory([deployment("primary", [replica("primary/0")])], uptime_s=half / 2))
    seconds = [sample.second for sample in history.of("primary/0")]
    assert seconds == list(range(50, KEPT_S + 50))


def test_a_younger_supervisor_begins_the_history_anew() -> None:
    history = History()
    history.add(inventory([deployment("primary", [replica("primary/0")])], uptime_s=500.0))
    history.add(inventory([deployment("primary", [replica("primary/0")])], uptime_s=2.0))
    assert [sample.second for sample in history.of("primary/0")] == [2]


def test_batches_are_those_of_the_last_minute_of_this_incarnation() -> None:
    history = History()

    def at(second: int, **work: object) -> None:
        history.add(inventory([deployment("primary", [replica("primary/0", **work)])], uptime_s=float(second)))

    at(0, forwards=900, rows=9_000, tokens=90_000, busy_s=500.0)
    at(1, incarnation=2, forwards=10, rows=20, tokens=200, busy_s=1.0)
    assert history.batches("primary/0") is None
    at(5, incarnation=2, forwards=30, rows=140, tokens=3_200, busy_s=3.0)
    found = history.batches("primary/0")
    assert found is not None
    assert (found.forwards, found.rows, found.tokens, found.busy, found.over_s) == (20, 6.0, 150.0, 0.5, 4)


# ----------------------------------------------------------------------------------------------- what is drawn


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 220), st.integers(0, 70), st.sampled_from(By), st.booleans())
def test_charts_fill_exactly_the_room_they_have(width: int, height: int, by: By, one: bool) -> None:
    key = RowKey("primary", "primary/0", 1) if one else RowKey("primary")
    lines = charts_about(key, A_MODEL, View(by=by), width, height)
    assert len(lines) == height
    assert all(cell_len(plain(line)) <= max(width, 24) for line in lines)


A_MODEL = a_model()


@settings(max_examples=60, deadline=None)
@example(points=[(0, 5e-324)], scale=Scale.LINEAR, width=10, height=4)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.floats(0, 1e9)), max_size=40),
    st.sampled_from(Scale),
    st.integers(10, 120),
    st.integers(4, 30),
)
def test_no_values_break_a_chart(points: list[tuple[int, float]], scale: Scale, width: int, height: int) -> None:
    points = sorted(dict(points).items())
    lines = draw(a_chart(points, newest=200, scale=scale), width, height)
    assert len(lines) == height and all(to_ascii(plain(line)).isascii() for line in lines)


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e12), min_size=1), st.sampled_from(Scale))
def test_bounds_are_round_and_hold_every_value(values: list[float], scale: Scale) -> None:
    low, high = bounds(values, scale)
    assert low <= min(values) * (1 + 1e-6) and high >= max(values) * (1 - 1e-6) and low < high


def test_a_second_without_a_sample_is_a_gap_and_never_a_zero() -> None:
    seconds = [*range(40, 60), *range(80, 101)]
    lines = draw(a_chart([(second, 5.0) for second in seconds]), 38, 8)
    bar = next(plain(line) for line in lines if dots([line]))
    drawn = [at for at, char in enumerate(bar) if ord(char) > 0x2800]
    holes = [at for at in range(drawn[0], drawn[-1]) if bar[at] == " "]
    assert len(holes) >= 8, bar
    assert sum(bool(dots([line])) for line in lines) == 1, "all at one height"


def test_latencies_of_milliseconds_and_of_seconds_are_both_seen() -> None:
    lines = draw(
        Chart(
            "latency",
            [
                Series("p50", Tone.LINE_3, [(second, 2.0) for second in range(41, 101)]),
                Series("p99", Tone.LINE_2, [(second, 30_000.0) for second in range(41, 101)]),
            ],
            lambda value: f"{value:g}",
            Scale.LOGARITHMIC,
            100,
            60,
        ),
        60,
        12,
    )
    rows = [index for index, line in enumerate(lines) if dots([line])]
    assert len(rows) == 2 and rows[1] - rows[0] > 5
    assert {tone for _, tone in lines[rows[0]] if tone in (Tone.LINE_2, Tone.LINE_3)} == {Tone.LINE_2}


def test_by_replica_the_highest_of_many_are_drawn_and_named_from_above() -> None:
    model = Model()
    for moment in range(20):
        model.take_inventory(many(64, 2 * moment))
    lines = charts_about(RowKey("primary"), model, View(by=By.REPLICA), 200, 20)
    legend = plain(lines[1])
    named = [word for word in legend.split("latency")[0].split() if word.startswith("/")]
    rates = {one.name: one.requests_per_s for one in model.inventory.deployments[0].replicas}  # type: ignore[union-attr]
    values = [rates[f"primary{name}"] for name in named]
    assert len(named) == 6 and values == sorted(values, reverse=True) and values[0] == max(rates.values())


def test_the_window_is_as_long_as_what_is_known_until_one_is_chosen() -> None:
    view = View()
    assert view.window_s(a_model(30).history) == 60
    history = History()
    for second in (0, 100):
        history.add(msgspec.structs.replace(inventory([], uptime_s=float(second))))
    assert view.window_s(history) == 120
    seen = []
    for _ in range(4):
        view = view.wider(history)
        seen.append(view.window_s(history))
    assert seen == [300, 600, 60, 120]


def test_ascii_charts_keep_their_shape() -> None:
    rising = draw(a_chart([(41 + at, at * 100 / 59) for at in range(60)]), 30, 10)
    simple = [to_ascii(plain(line)) for line in rising]
    marks = [set(line[9:]) & set("'-.:|") for line in simple[1:-1]]
    assert all(marks) and all(line.isascii() for line in simple)
    assert to_ascii(sparkline([1.0, 2.0], 2)).isascii()


# ----------------------------------------------------------------------------------------------- the keys


@piloted((80, 24))
async def test_c_shows_charts_of_the_row_and_again_closes_them(bench: Bench) -> None:
    await bench.press("c")
    assert bench.picture_of("─ charts of primary/0") and bench.picture_of("└-1m")
    assert "by replica" in bench.picture()[-1] and bench.has_focus(bench.table)
    await bench.press("j")
    assert bench.picture_of("─ charts of primary/1")
    await bench.press("c")
    assert not bench.picture_of("─ charts of") and "by replica" not in bench.picture()[-1]
    assert bench.picture_of("─ events")


@piloted((80, 24))
async def test_escape_closes_charts_and_keys_that_act_work_beside_them(bench: Bench) -> None:
    await bench.press("c", "d")
    assert len(bench.sent) == 1
    await bench.press("escape")
    assert not bench.picture_of("─ charts of")


@piloted((120, 40))
async def test_b_splits_by_replica_and_w_looks_farther_back(bench: Bench) -> None:
    await bench.press("g", "c", "b")
    assert bench.picture_of("1 min · by replica") and bench.picture_of("/4 44.0")
    await bench.press("w")
    assert bench.picture_of("2 min · by replica")
    await bench.press("b", "w")
    assert bench.picture_of("5 min · as a whole")
    await bench.press("c", "c")
    assert bench.picture_of("5 min · as a whole"), "it is remembered"


@piloted((80, 24))
async def test_f_gives_charts_the_whole_screen_and_escape_gives_it_back(bench: Bench) -> None:
    await bench.press("c", "f")
    assert bench.picture()[0].startswith("─ charts of primary/0") and not bench.picture_of("REPLICA")
    await bench.press("escape")
    assert bench.picture_of("REPLICA") and bench.picture_of("─ charts of primary/0")


@piloted((80, 24))
async def test_keys_of_charts_do_nothing_while_there_are_none(bench: Bench) -> None:
    before = bench.picture()
    await bench.press("b", "w", "f")
    assert bench.picture() == before


@piloted((80, 24))
async def test_a_log_takes_the_place_of_charts_where_there_is_room_for_one(bench: Bench) -> None:
    await bench.press("c", "l")
    assert bench.picture_of("─ log of primary/0") and not bench.picture_of("─ charts")
    await bench.press("tab", "c")
    assert bench.picture_of("─ charts of primary/0") and not bench.picture_of("─ log of")
    await bench.press("e")
    assert bench.picture_of("─ events") or bench.picture_of("─ log of")


@piloted((200, 60))
async def test_where_there_is_room_charts_stand_beside_events(bench: Bench) -> None:
    await bench.press("c")
    assert bench.picture_of("─ charts of primary/0") and bench.picture_of("─ events")


def many_replicas() -> FakeSource:
    return FakeSource(first=many(64))


@pytest.mark.parametrize("keys", [("g", "c"), ("g", "c", "b"), ("g", "c", "b", "f")])
def test_sixty_four_replicas_are_charted(keys: tuple[str, ...]) -> None:
    @piloted((200, 60), source=many_replicas)
    async def scenario(bench: Bench) -> None:
        for moment in range(1, 40):
            bench.source.push(many(64, 2 * moment))
        await bench.press(*keys)
        assert bench.picture_of("charts of primary") and any(ord(char) > 0x2800 for char in "".join(bench.picture()))

    scenario()
