"""`stoker serve` with the real supervisor: in the foreground, and behind the dashboard in its own process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.host.runtime import RuntimeDir, running_supervisors
from tests.cli.conftest import Stoker, command
from tests.cli.terminal import Terminal

ANYWHERE = ("--listen", "127.0.0.1:0", "--platform", "cpu", "--name", "mine")


@contextmanager
def foreground(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`stoker serve` in the foreground, its control socket there; ended with the context."""
    process = subprocess.Popen(command("serve", *words), stderr=subprocess.PIPE, text=True)
    try:
        wait_until_running()
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        finally:
            process.kill()


def wait_until_running() -> None:
    """Return when a supervisor runs and listens."""
    deadline = time.monotonic() + 30
    while not (running_supervisors() and RuntimeDir("mine").control.exists()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_nothing_is_left(root: Path) -> None:
    """Return when a supervisor that ends has taken its files away; the lock goes last."""
    deadline = time.monotonic() + 30
    while left := list(root.glob("mine/*")):
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _nothing_is_left(root: Path) -> Iterator[None]:
    """Whatever a test does, its supervisor is gone afterwards, and so are its files in the runtime folder."""
    yield
    for running in running_supervisors(root):
        if running.holder is not None:
            os.kill(running.holder.pid, signal.SIGTERM)
    wait_until_nothing_is_left(root)


def test_headless_serves_until_it_is_told_to_stop(stoker: Stoker) -> None:
    with foreground("stub", "-dp", "2", "--headless", *ANYWHERE) as process:
        assert stoker("scale", "primary", "2", "--wait").code == 0
        rows = stoker("status").out.splitlines()
        assert [row.split()[:2] for row in rows[2:]] == [["primary/0", "ready"], ["primary/1", "ready"]]
        assert stoker("scale", "primary", "3", "--wait").err.endswith("primary: 3 of 3 ready\n")
        assert "drained in" in stoker("drain", "primary/1", "--wait").err
        assert stoker("restart", "primary/1", "--wait").err.endswith("1 replica restarted\n")
        assert "ready after" in stoker("events").out
        assert stoker("stop", "--wait").code == 0
        assert process.wait(10) == 0


def test_without_a_terminal_it_logs_events_as_lines(root: Path) -> None:
    with foreground("stub", *ANYWHERE) as process:
        assert process.stderr is not None
        assert "supervisor mine started" in process.stderr.readline()


def test_a_second_one_of_the_same_name_leaves_the_first_alone(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    with foreground("stub", "-c", str(file), "--headless", *ANYWHERE) as process:
        before = file.read_text()
        ran = stoker("serve", "stub", "-dp", "3", "-c", str(file), "--headless", *ANYWHERE)
        assert ran.code == 1
        assert re.search(rf"already running on 127\.0\.0\.1:[1-9]\d+ \(pid {process.pid}\)", ran.err)
        assert file.read_text() == before
        assert stoker("status", "--name", "mine").code == 0


def test_behind_the_dashboard_the_supervisor_is_a_process_of_its_own(stoker: Stoker) -> None:
    with Terminal(command("serve", "stub", *ANYWHERE), columns=120, lines=40) as terminal:
        terminal.wait_for("primary/0")
        holder = running_supervisors()[0].holder
        assert holder is not None
        assert holder.pid != terminal.pid
        assert os.getsid(holder.pid) == holder.pid
        terminal.press("q")
        terminal.wait_for("etach")
        terminal.press("d")
        assert terminal.wait() == 0
    assert "`stoker top --name mine` comes back to it" in terminal.text
    assert stoker("status").code == 0
    with Terminal(command("top"), columns=120, lines=40) as again:
        again.wait_for("primary/0")
        again.press("q")
        again.wait_for("etach")
        again.press("s")
        assert again.wait() == 0
    assert "the supervisor 'mine' is gone" in again.text
    assert stoker("status").code == 3


def test_a_closed_terminal_ends_only_the_dashboard(stoker: Stoker) -> None:
    with Terminal(command("serve", "stub", *ANYWHERE), columns=120, lines=40) as terminal:
        terminal.wait_for("primary/0")
        terminal.hang_up()
        terminal.wait()
    assert stoker("status").code == 0


def test_a_supervisor_that_does_not_start_says_its_last_words(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Terminal(command("serve", "stub", "--name", "mine", "--listen", address), columns=200) as terminal:
            assert terminal.wait() == 1
    assert "the supervisor ended with 1" in terminal.text
    assert address in terminal.text


def test_the_dashboard_needs_a_terminal(stoker: Stoker) -> None:
    with foreground("stub", "--headless", *ANYWHERE):
        ran = stoker("top")
    assert ran.code == 2
    assert "needs a terminal" in ran.err
