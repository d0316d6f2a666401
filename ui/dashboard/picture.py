"""Pictures of a running supervisor's dashboard, for the README and the docs: made from the program itself.

    python -m ui.dashboard.picture CONTROL_SOCKET OUT.svg --size 120x40 --press l

The dashboard runs without a terminal, lets some refreshes pass so that its trends have a shape, presses the keys it is
given, and saves what it shows.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from engine.errors import StokerError
from supervisor.control.client import check_listening
from ui.dashboard.app import Dashboard
from ui.dashboard.source import POLL_S, ControlSource

REFRESHES = 8
WAIT_S = 30.0
"""How long the refreshes may take at most besides their own half second each, seconds."""
LOOK_S = 0.02


class NoPicture(StokerError):
    """There was nothing to take a picture of."""


async def take_picture(
    control_path: str,
    *,
    width: int,
    height: int,
    press: Sequence[str] = (),
    refreshes: int = REFRESHES,
    theme: str | None = None,
) -> str:
    """The dashboard as SVG in `width` × `height` cells. press: Textual's names of keys. Raises StokerError."""
    check_listening(control_path)
    app = Dashboard(ControlSource(control_path), readonly=False)
    async with app.run_test(size=(width, height)) as pilot:
        if theme is not None:
            app.theme = theme
        try:
            async with asyncio.timeout(WAIT_S + refreshes * POLL_S):
                while app.model.refreshes < refreshes:
                    await pilot.pause(LOOK_S)
        except TimeoutError:
            raise NoPicture(f"the supervisor at {control_path} did not answer within {WAIT_S:g} s") from None
        for key in press:
            await pilot.press(key)
            await pilot.pause()
        await pilot.pause(LOOK_S)
        return app.export_screenshot()


def save_picture(
    control_path: str,
    out: Path,
    *,
    width: int,
    height: int,
    press: Sequence[str] = (),
    refreshes: int = REFRESHES,
    theme: str | None = None,
) -> None:
    """Write the picture of `take_picture` to a file."""
    picture = take_picture(control_path, width=width, height=height, press=press, refreshes=refreshes, theme=theme)
    out.write_text(asyncio.run(picture), encoding="utf-8")


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description="Save a picture of a running supervisor's dashboard.")
    parser.add_argument("control", help="path of the control socket")
    parser.add_argument("out", type=Path, help="the SVG file to write")
    parser.add_argument("--size", default="120x40", help="columns x rows (default: %(default)s)")
    parser.add_argument("--press", default="", help="keys to press before, separated by commas: g,enter")
    parser.add_argument("--refreshes", type=int, default=REFRESHES, help="refreshes to wait for")
    parser.add_argument("--theme", default=None, help="another theme, for example stoker-light")
    given = parser.parse_args()
    width, _, height = given.size.partition("x")
    if not (width.isdigit() and height.isdigit()):
        parser.error(f"--size: expected COLUMNSxROWS, found {given.size!r}")
    save_picture(
        given.control,
        given.out,
        width=int(width),
        height=int(height),
        press=[key for key in given.press.split(",") if key],
        refreshes=given.refreshes,
        theme=given.theme,
    )


if __name__ == "__main__":
    main()
