"""Pictures of every screen, frozen. After a change that is meant: `pytest tests/dashboard --snapshot-update`, and
look at them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from tests.dashboard.bench import Clock, press, rounds
from tests.dashboard.fleet import FakeSource, fleet_of_twelve, fleet_that_learns, swayed
from ui.dashboard.app import Dashboard
from ui.dashboard.source import SupervisorLost

Compare = Callable[..., bool]
SIZES = [(80, 24), (120, 40), (200, 60)]


def dashboard(**options: bool) -> Dashboard:
    """A dashboard of the fleet of twelve with a minute of history."""
    app = Dashboard(FakeSource(), now=Clock(), **options)
    for moment in range(60):
        app.model.history.add(swayed(fleet_of_twelve(), moment))
    return app


def pressing(*keys: str) -> Callable[[Pilot[object]], Awaitable[None]]:
    async def before(pilot: Pilot[object]) -> None:
        await rounds(pilot)
        for key in keys:
            await press(pilot, key)

    return before


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_main(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(dashboard(), terminal_size=size, run_before=pressing("j"))


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        pytest.param(("question_mark",), (80, 24), id="help"),
        pytest.param(("K",), (80, 24), id="confirm"),
        pytest.param(("space", "space", "d"), (80, 24), id="confirm-many"),
        pytest.param(("q",), (80, 24), id="quit"),
        pytest.param(("s", "up"), (80, 24), id="scale"),
        pytest.param(("colon", "d", "r"), (80, 24), id="palette"),
        pytest.param(("slash", "c", "u", "d", "a"), (80, 24), id="filter"),
        pytest.param(("l",), (80, 24), id="logs"),
        pytest.param(("l",), (200, 60), id="logs-wide"),
        pytest.param(("enter",), (120, 40), id="details"),
        pytest.param(("G", *("k",) * 5, "enter"), (80, 24), id="details-of-a-failed-one"),
        pytest.param(("g", "enter"), (120, 40), id="details-of-a-deployment"),
        pytest.param(("R", "space", "p"), (120, 40), id="sorted-marked-paused"),
        pytest.param(("c",), (80, 24), id="charts-80x24"),
        pytest.param(("g", "c", "b"), (120, 40), id="charts-120x40"),
        pytest.param(("g", "c"), (200, 60), id="charts-200x60"),
        pytest.param(("c", "f"), (80, 24), id="charts-full"),
        pytest.param(("enter",), (80, 24), id="details-80x24"),
        pytest.param(("enter",), (200, 60), id="details-200x60"),
        pytest.param(("t",), (80, 24), id="threads-off"),
    ],
)
def test_screen(snap_compare: Compare, keys: tuple[str, ...], size: tuple[int, int]) -> None:
    assert snap_compare(dashboard(), terminal_size=size, run_before=pressing(*keys))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_threads(snap_compare: Compare, size: tuple[int, int]) -> None:
    app = Dashboard(FakeSource(first=fleet_that_learns()), now=Clock())
    assert snap_compare(app, terminal_size=size, run_before=pressing("t"))


def test_details_with_threads(snap_compare: Compare) -> None:
    app = Dashboard(FakeSource(first=fleet_that_learns()), now=Clock())
    assert snap_compare(app, terminal_size=(120, 40), run_before=pressing("enter", "t"))


def test_charts_in_ascii(snap_compare: Compare) -> None:
    app = dashboard(ascii_only=True)
    assert snap_compare(app, terminal_size=(120, 40), run_before=pressing("c"))


def test_charts_without_color(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(dashboard(), terminal_size=(80, 24), run_before=pressing("c"))


def test_disconnected(snap_compare: Compare) -> None:
    app = dashboard()

    async def lose(pilot: Pilot[object]) -> None:
        await pilot.pause()
        app.post_message(SupervisorLost("no supervisor is running there", gone=True))
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=lose)


def test_readonly(snap_compare: Compare) -> None:
    assert snap_compare(dashboard(readonly=True), terminal_size=(80, 24), run_before=pressing())


def test_ascii(snap_compare: Compare) -> None:
    assert snap_compare(dashboard(ascii_only=True), terminal_size=(80, 24), run_before=pressing())


def test_light(snap_compare: Compare) -> None:
    app = dashboard()
    app.theme = "stoker-light"
    assert snap_compare(app, terminal_size=(120, 40), run_before=pressing())
