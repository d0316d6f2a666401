"""The picture of a running supervisor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.errors import StokerError
from tests.dashboard.fleet import fleet_of_twelve
from tests.dashboard.served import Served, serving
from ui.dashboard.picture import take_picture


def test_a_picture_shows_the_fleet_that_is_served(tmp_path: Path) -> None:
    async def play() -> str:
        path = str(tmp_path / "control")
        async with serving(path, Served(fleet_of_twelve())):
            return await take_picture(path, width=120, height=40, press=["j"], refreshes=2)

    picture = asyncio.run(play())
    assert picture.startswith("<svg") and "primary/3" in picture and "draining," in picture


def test_without_a_supervisor_there_is_a_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="no supervisor is running there"):
        asyncio.run(take_picture(str(tmp_path / "nobody"), width=80, height=24))
