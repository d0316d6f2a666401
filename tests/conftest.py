"""Fixtures that every room's tests may use: real supervisors that are proven to leave nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import Running, files_in

settings.register_profile("stoker", deadline=None)  # a machine under load is no failure
settings.load_profile("stoker")

Serve = Callable[..., Running]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start supervisors; each is stopped at the end, and no process and no file may be left."""
    started: list[Running] = []

    def start(config: str, name: str = "test", environ: Mapping[str, str] | None = None) -> Running:
        folder = tmp_path / f"s{len(started)}"
        folder.mkdir()
        started.append(Running(folder, config, name, environ))
        return started[-1]

    try:
        yield start
    finally:
        with contextlib.ExitStack() as stack:
            for running in started:
                stack.callback(running.close)
    for running in started:
        assert running.process.returncode != 0 or files_in(running.root) == [], "files left in the runtime folder"
