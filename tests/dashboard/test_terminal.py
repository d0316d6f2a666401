"""A real terminal: whatever ends the dashboard, the terminal is as it was before, and the supervisor goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ui.dashboard.terminal import HIGHEST

ROOT = Path(__file__).parents[2]
LEAVES_SCREEN = b"\x1b[?1049l"
SHOWS_CURSOR = b"\x1b[?25h"
PROGRAM = """
import os, sys
from ui.dashboard.app import run_dashboard
choice = run_dashboard(sys.argv[1], readonly=False, owns_supervisor=True)
try:
    print("ended:", choice.value, flush=True)
except OSError:
    os._exit(UNSEEN if choice.value == "terminated" else 1)
"""
UNSEEN = 41
"""Exit code of a dashboard that ended in order, and could tell nobody."""


class Terminal:
    """A dashboard in a pseudo-terminal of its own session, as a user has it."""

    def __init__(self, path: str, leads: bool = True, **environment: str) -> None:
        self.output = b""
        self.pid, self.fd = pty.fork() if leads else _fork_beside_a_terminal()
        if self.pid == 0:
            os.chdir(ROOT)
            os.environ.update({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment})
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM.replace("UNSEEN", str(UNSEEN)), path])
        self.before = termios.tcgetattr(self.fd)
        self.resize(80, 24)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, text: bytes, within_s: float = 20.0) -> bytes:
        """Read until `text` has been written since the last such call; what was written up to there."""
        deadline = time.monotonic() + within_s
        while text not in self.output:
            left = deadline - time.monotonic()
            assert left > 0, f"expected {text!r}, found {self.output[-600:]!r}"
            if select.select([self.fd], [], [], left)[0]:
                self.output += os.read(self.fd, 65536)
        at = self.output.index(text) + len(text)
        seen, self.output = self.output[:at], self.output[at:]
        return seen

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, within_s: float = 10.0) -> int:
        """The exit status, as waitpid says it."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return status
            if select.select([self.fd], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    self.output += os.read(self.fd, 65536)
        raise AssertionError("the dashboard did not end")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _fork_beside_a_terminal() -> tuple[int, int]:
    """As pty.fork, of a child whose session the terminal is not: nobody signals it."""
    ours, theirs = pty.openpty()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for number in (0, 1, 2):
            os.dup2(theirs, number)
        os.close(ours)
    os.close(theirs)
    return pid, ours


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A served fleet that all tests of this module attach to; it must outlive them all."""
    path = str(tmp_path_factory.mktemp("served") / "control")
    server = subprocess.Popen([sys.executable, "-m", "tests.dashboard.served", path], cwd=ROOT)
    yield path
    assert server.poll() is None
    server.terminate()
    server.wait()


@pytest.fixture
def terminal(control: str) -> Iterator[Terminal]:
    terminal = Terminal(control)
    terminal.until(b"primary/4")
    yield terminal
    terminal.close()


def assert_restored(terminal: Terminal, choice: str) -> None:
    seen = terminal.until(f"ended: {choice}".encode())
    assert LEAVES_SCREEN in seen and SHOWS_CURSOR in seen and b"\x1b[?1000l" in seen and b"\x1b[<u" in seen
    assert termios.tcgetattr(terminal.fd) == terminal.before
    assert terminal.wait() == 0


def test_detaching_restores_the_terminal(terminal: Terminal) -> None:
    terminal.type("q")
    terminal.until(b"Leave the dashboard?")
    terminal.type("d")
    assert_restored(terminal, "detach")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_restores_the_terminal(terminal: Terminal, number: signal.Signals) -> None:
    terminal.signal(number)
    assert_restored(terminal, "terminated")


@pytest.mark.parametrize("told", [True, False], ids=["by SIGHUP", "by nobody"])
def test_a_terminal_that_is_closed_ends_the_dashboard_in_order_and_not_by_its_watchdog(
    control: str, told: bool
) -> None:
    """The kernel's SIGHUP and SIGCONT go to the terminal's session, which may be another's."""
    terminal = Terminal(control, leads=told)
    try:
        terminal.until(b"primary/4")
        os.close(terminal.fd)
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(terminal.pid, os.WNOHANG)) == (0, 0):
            assert time.monotonic() < deadline, "it still runs"
            time.sleep(0.02)
        terminal.pid = 0
        assert os.waitstatus_to_exitcode(ended[1]) == UNSEEN
    finally:
        terminal.close()


def test_a_process_that_was_stopped_and_woken_from_outside_takes_the_terminal_anew(terminal: Terminal) -> None:
    terminal.signal(signal.SIGSTOP)
    os.waitpid(terminal.pid, os.WUNTRACED)
    terminal.signal(signal.SIGCONT)
    terminal.until(LEAVES_SCREEN)
    terminal.until(b"\x1b[?1049h")
    terminal.until(b"primary/4")
    terminal.type("qd")
    assert_restored(terminal, "detach")


def test_a_terminal_that_says_it_is_endless_is_drawn_on_as_if_it_had_an_end(terminal: Terminal) -> None:
    terminal.resize(65535, 65535)
    terminal.until(f"\x1b[{HIGHEST};1H".encode())
    terminal.type("qd")
    assert_restored(terminal, "detach")


def test_control_z_gives_the_terminal_back_and_fg_takes_it_again(terminal: Terminal) -> None:
    terminal.type("\x1a")
    terminal.until(LEAVES_SCREEN)
    deadline = time.monotonic() + 10
    while os.waitpid(terminal.pid, os.WNOHANG | os.WUNTRACED) == (0, 0):
        assert time.monotonic() < deadline, "it was not stopped"
        time.sleep(0.02)
    assert termios.tcgetattr(terminal.fd) == terminal.before
    terminal.signal(signal.SIGCONT)
    terminal.until(b"\x1b[?1049h")
    terminal.until(b"primary/4")
    terminal.type("qd")
    assert_restored(terminal, "detach")


def test_a_storm_of_sizes_is_survived(terminal: Terminal) -> None:
    for width, height in [(1, 1), (400, 100), (0, 0), (10, 3), (200, 60), (3, 100), (120, 40)] * 3:
        terminal.resize(width, height)
        terminal.type("j")
    terminal.until(b"MEMORY")
    terminal.type("qd")
    assert_restored(terminal, "detach")


def test_without_utf8_no_other_bytes_reach_the_terminal(control: str) -> None:
    terminal = Terminal(control, LC_ALL="C", LANG="C")
    try:
        seen = terminal.until(b"primary/4")
        terminal.type("qd")
        seen += terminal.until(b"ended: detach")
        assert seen.isascii()
    finally:
        terminal.close()
