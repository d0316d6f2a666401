"""Fixtures: a runtime folder of the test's own, and the command line run in this process or in one of its
own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ui.cli.main import main


class Ran(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


Stoker = Callable[..., Ran]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty runtime folder that every command of the test uses; no name, no colours from outside."""
    folder = tmp_path / "run"
    monkeypatch.setenv("STOKER_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in ("STOKER_NAME", "NO_COLOR", "FORCE_COLOR", "STOKER_SIMULATE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    return folder


@pytest.fixture
def stoker(root: Path, capfd: pytest.CaptureFixture[str]) -> Stoker:
    """Runs a command line in this process."""

    def run(*arguments: str) -> Ran:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def process(root: Path) -> Stoker:
    """Runs a command line in a process of its own."""

    def run(*arguments: str, **options: object) -> Ran:
        done = subprocess.run(
            command(*arguments), capture_output=True, text=True, timeout=30, env=os.environ.copy(), **options
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


def command(*arguments: str) -> list[str]:
    """The words that start `stoker` in a process of its own."""
    return [sys.executable, "-P", "-m", "ui.cli.main", *arguments]
