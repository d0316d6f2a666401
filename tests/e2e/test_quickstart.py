"""A new user's session of docs/quickstart.md, "The same from the dashboard", typed into tmux: a real model."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import LONG_S, kill_all, processes_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
TITLE = "## The same from the dashboard"

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")


class Session:
    """A tmux server of its own with one window. `see` waits for text on a pane."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = str(folder / "tmux.sock")
        environ = {
            "STOKER_RUNTIME_DIR": str(folder / "run"),
            "XDG_STATE_HOME": str(folder / "state"),
            "LC_ALL": "C.UTF-8",
            "PS1": "$ ",
        }
        words = [f"{name}={value}" for name, value in environ.items()]
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", *self._shell(words))
        self._tmux("split-window", "-v", "-l", "10", *self._shell(words))

    def type(self, pane: int, *keys: str) -> None:
        """Keys as tmux names them."""
        self._tmux("send-keys", "-t", str(pane), *keys)

    def command(self, pane: int, line: str) -> None:
        """A command line, and Enter. `stoker` is that of this environment."""
        program = f"{shlex.quote(sys.executable)} -m ui.cli.main"
        self._tmux("send-keys", "-t", str(pane), "-l", line.replace("stoker ", f"{program} ", 1))
        self.type(pane, "Enter")

    def see(self, pane: int, *texts: str) -> str:
        """Wait until all of it is on that pane; the whole picture."""
        deadline = time.monotonic() + LONG_S
        while not all(text in (picture := self.picture(pane)) for text in texts):
            assert time.monotonic() < deadline, f"expected {texts}, seen:\n{picture}"
            time.sleep(0.05)  # tmux tells nobody that a pane was drawn
        return picture

    def picture(self, pane: int) -> str:
        """What a person sees on that pane now."""
        return self._tmux("capture-pane", "-p", "-t", str(pane))

    def close(self) -> None:
        """End what still runs in it."""
        self._tmux("kill-server", check=False)
        kill_all(processes_of(self.folder / "run"))

    def _shell(self, environ: list[str]) -> list[str]:
        return ["-c", str(ROOT), "env", *environ, "sh"]

    def _tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *words], capture_output=True, text=True, check=check)
        return done.stdout


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    try:
        yield session
    finally:
        session.close()


def promised() -> list[str]:
    """The commands of that part of the page, in order."""
    text = PAGE.read_text().split(TITLE, 1)[1].split("\n## ", 1)[0]
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def test_a_new_users_session_goes_as_the_quickstart_says(session: Session) -> None:
    two_again, top = promised()
    assert two_again == "stoker scale minilm 2 --wait" and top == "stoker top"
    config = session.folder / "stoker.yaml"
    sample = (ROOT / "sample-configs" / "minilm.yaml").read_text()
    config.write_text(sample.replace("127.0.0.1:8100", "127.0.0.1:0"))  # tests run side by side

    session.command(0, f"stoker serve --daemon -c {config}")
    session.see(0, "it runs in the background")
    session.command(0, "stoker scale minilm 3 --wait")  # what the page did before
    session.see(0, "minilm: 3 of 3 ready")
    session.command(0, two_again)
    session.see(0, "minilm: 2 of 2 ready")
    session.command(0, top)
    session.see(0, "2 of 2 ready", "minilm/1")
    session.type(0, "+")
    session.see(0, "3 of 3 ready")
    assert config.read_text().count("- device: cpu") == 3, "what was changed is in the file"

    session.command(1, "stoker bench --duration 10")
    session.see(1, "clients")
    session.type(0, "G", "d")
    session.see(0, "stopped")
    session.type(0, "l")
    session.see(0, "minilm/2#1")
    session.type(0, "l")
    measured = session.see(1, "FAILED", "ms\n").splitlines()
    at = next(index for index, line in enumerate(measured) if "FAILED" in line)
    header, figures = measured[at], measured[at + 2]
    requests, failed = figures.split()[0], figures[header.index("FAILED") :].strip()
    assert int(requests.replace(",", "")) > 0 and failed == "", "the drain lost nothing"

    session.type(0, "q")
    session.see(0, "detach")
    session.type(0, "d")
    session.see(0, "$")
    assert processes_of(session.folder / "run"), "the fleet goes on"
    session.command(0, top)
    session.see(0, "minilm", "stopped")
    session.type(0, "q")
    session.see(0, "stop all")
    session.type(0, "s")
    session.see(0, "is gone\n$")
    assert {process.name() for process in processes_of(session.folder / "run")} == {"sh"}, "the panes' own shells"
    assert os.listdir(session.folder / "run") == []
