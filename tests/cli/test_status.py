"""`stoker status`: plain lines in a pipe, a table on a terminal, JSON for programs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec

from supervisor.control.messages import Inventory
from tests.cli.conftest import Stoker, command
from tests.cli.fake import FakeSupervisor
from tests.cli.rows import deployment, inventory, replica
from tests.cli.terminal import Terminal

FLEET = inventory(
    deployment(
        replica("primary/0", in_flight=3),
        replica("primary/1", "draining", in_flight=2, in_state_s=18.0, drain_left_s=12.0, reason="drained by hand"),
        replica("primary/2", "failed", pid=None, reason="SIGKILL; [bold]not markup[/]"),
        replica("primary/3", "ejected", ejected_s=9.0),
        desired=4,
    )
)


def test_a_pipe_gets_one_aligned_line_a_row(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root, FLEET):
        ran = stoker("status")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) == 6
    assert lines[0].split()[:4] == ["NAME", "STATE", "DEVICE", "PID"]
    assert lines[1].split()[:2] == ["primary", "degraded"]
    assert lines[1].endswith("1 of 4 ready")
    assert lines[3].endswith("drained by hand; 2 left, 18s of 30s")
    assert lines[4].endswith("SIGKILL; [bold]not markup[/]")
    assert lines[5].endswith("back in 9.0s")
    assert (
        len({line.index(word) for line, word in zip(lines[1:], ("degraded", "ready", "draining"), strict=False)}) == 1
    )


def test_a_replica_without_a_process_has_no_figures_of_one(root: Path, stoker: Stoker) -> None:
    fleet = inventory(
        deployment(
            replica("primary/0", "failed", pid=None, rss_bytes=0, cpu_percent=0.0, age_s=0.0, p99_ms=None),
            replica("primary/1", pid=None, managed=False, rss_bytes=0, cpu_percent=0.0, age_s=125.0),
            replica("primary/2", rss_bytes=0, cpu_percent=0.0, age_s=0.0),
        )
    )
    with FakeSupervisor(root, fleet):
        head, _, *rows = (line.split() for line in stoker("status").out.splitlines())
    shown = [tuple(row[head.index(title)] for title in ("CPU", "MEMORY", "AGE")) for row in rows]
    assert shown == [("-", "-", "-"), ("-", "-", "2m05s"), ("0%", "0B", "0.0s")]


def test_json_is_exactly_the_inventory(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root, FLEET) as fake:
        ran = stoker("status", "--json")
        expected = fake.stamped(FLEET)
    assert ran.code == 0
    assert ran.err == ""
    assert msgspec.json.decode(ran.out, type=Inventory) == expected


def test_warnings_are_words_on_standard_error(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root, msgspec.structs.replace(FLEET, warnings=["too many threads"])):
        ran = stoker("status")
    assert "too many threads" not in ran.out
    assert ran.err == "warning: too many threads\n"


def test_a_terminal_gets_glyphs_and_colours(root: Path) -> None:
    with FakeSupervisor(root, FLEET), Terminal(command("status"), columns=140) as terminal:
        assert terminal.wait() == 0
    assert "● ready" in terminal.text
    assert "✗ failed" in terminal.text
    assert "[bold]not markup[/]" in terminal.text
    assert "\x1b[32m" in terminal.raw


def test_no_color_leaves_the_glyphs(root: Path) -> None:
    plain = os.environ | {"NO_COLOR": "1"}
    with FakeSupervisor(root, FLEET), Terminal(command("status"), columns=140, environ=plain) as terminal:
        assert terminal.wait() == 0
    assert "● ready" in terminal.text
    assert "\x1b[3" not in terminal.raw


def test_a_narrow_terminal_gets_fewer_columns(root: Path) -> None:
    with FakeSupervisor(root, FLEET), Terminal(command("status"), columns=60) as terminal:
        assert terminal.wait() == 0
    assert "IN-FLIGHT" in terminal.text
    assert "RESTARTS" not in terminal.text
    assert all(len(line) <= 60 for line in terminal.text.splitlines())


def test_escape_sequences_in_a_reason_are_shown_and_not_obeyed(root: Path) -> None:
    fleet = inventory(deployment(replica("primary/0", "failed", reason="\x1b]0;title\x07 gone")))
    with FakeSupervisor(root, fleet), Terminal(command("status"), columns=140) as terminal:
        assert terminal.wait() == 0
    assert "\\x1b]0;title\\x07 gone" in terminal.text
    assert "\x1b]0;" not in terminal.raw


def test_watch_survives_a_restart_of_the_supervisor(root: Path) -> None:
    with FakeSupervisor(root):
        terminal = Terminal(command("status", "--watch"), columns=100)
        terminal.wait_for("2 of 2 ready")
    with terminal:
        terminal.wait_for("trying again each second")
        with FakeSupervisor(root, FLEET):
            terminal.wait_for("1 of 4 ready")
            terminal.interrupt()
            assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    assert terminal.raw.count("\x1b[?25h") == terminal.raw.count("\x1b[?25l"), "the cursor is shown again"


def test_watch_in_a_pipe_is_a_json_object_a_line(root: Path) -> None:
    with FakeSupervisor(root, FLEET):
        with subprocess.Popen(command("status", "--watch", "--json"), stdout=subprocess.PIPE) as watching:
            assert watching.stdout is not None
            lines = [watching.stdout.readline() for _ in range(2)]
            watching.send_signal(signal.SIGINT)
        assert watching.returncode == 130
    assert [msgspec.json.decode(line, type=Inventory).supervisor.name for line in lines] == ["default"] * 2
