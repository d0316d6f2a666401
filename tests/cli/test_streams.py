"""`stoker logs` and `stoker events`: literal lines, one JSON object a line, and streams that outlive a
supervisor.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from supervisor.control.events import DrainEnded, ReloadFailed, ReplicaReady, Warned
from supervisor.control.messages import (
    Answer,
    AnyCommand,
    Events,
    GetEvents,
    GetLogs,
    LogLine,
    LogNotice,
    Missed,
    Subscribe,
)
from tests.cli.conftest import Stoker, command
from tests.cli.fake import FakeSupervisor
from tests.cli.terminal import Terminal

READY = ReplicaReady(replica="primary/0", incarnation=1, seconds=0.25, how="spawn")


def line(text: str, time: float = 1_700_000_000.125, replica: str = "primary/0") -> LogLine:
    return LogLine(time=time, replica=replica, incarnation=2, text=text)


class Following:
    """A command that follows; its output is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self._out, self._err = process.stdout, process.stderr

    def line(self) -> str:
        return self._out.readline().rstrip("\n")

    def word(self) -> str:
        return self._err.readline().rstrip("\n")


@contextmanager
def following(*words: str) -> Iterator[Following]:
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Following(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.communicate()


# ------------------------------------------------------------------------------------ without --follow


def test_events_are_sentences_with_time_and_number(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        ran = stoker("events")
    assert ran == (0, "2023-11-14T22:13:20.000Z #1 primary/0#1 ready after 0.250 s (spawn)\n", "")


def test_events_as_json_are_an_object_a_line(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        fake.keep(Warned(message="too\nmany"))
        ran = stoker("events", "--json", "--since", "1")
    assert [msgspec.json.decode(row) for row in ran.out.splitlines()] == [
        {"event": "warning", "seq": 2, "time": 1_700_000_000.0, "message": "too\nmany"}
    ]


def test_events_that_are_kept_no_more_are_counted_where_they_were_asked_for(root: Path, stoker: Stoker) -> None:
    def some(command: AnyCommand) -> Answer | None:
        return Events(events=[], missed=12) if isinstance(command, GetEvents) else None

    with FakeSupervisor(root, handler=some):
        assert stoker("events").err == ""
        assert stoker("events", "--since", "0").err == "12 events were missed\n"


def test_logs_of_a_pipe_are_as_they_were_printed(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.lines = [line("earlier"), line("\x1b[31mred\x1b[0m [bold]x[/]")]
        ran = stoker("logs", "primary/0", "-n", "1")
        assert fake.asked == [GetLogs(replica="primary/0", lines=1)]
    assert ran == (0, "2023-11-14T22:13:20.125Z primary/0#2 \x1b[31mred\x1b[0m [bold]x[/]\n", "")


def test_logs_as_json(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.lines = [line('a "quoted"\tword')]
        ran = stoker("logs", "--json")
    assert [msgspec.json.decode(row, type=LogLine) for row in ran.out.splitlines()] == [line('a "quoted"\tword')]


def test_on_a_terminal_control_characters_are_shown_and_not_obeyed(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.lines = [line("\x1b]0;title\x07 \x9b31m \u202e back\rward [bold]")]
        with Terminal(command("logs"), columns=200) as terminal:
            assert terminal.wait() == 0
    assert "\\x1b]0;title\\x07 \\x9b31m \\u202e back\\x0dward [bold]" in terminal.text


def test_json_on_a_terminal_stays_json_and_is_not_obeyed(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.lines = [line("\x1b[31m \x9b31m \u202e")]
        with Terminal(command("logs", "--json"), columns=200) as terminal:
            assert terminal.wait() == 0
    assert "\x9b" not in terminal.raw
    assert msgspec.json.decode(terminal.raw, type=LogLine).text == "\x1b[31m \x9b31m \u202e"


def test_logs_of_a_deployment_are_those_of_all_its_replicas(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.lines = [line("one")]
        ran = stoker("logs", "primary", "-n", "3")
        assert fake.asked == [GetLogs(deployment="primary", lines=3)]
    assert ran.code == 0 and ran.out.endswith("one\n")


def test_an_event_of_several_lines_stays_one_line(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(ReloadFailed(problem="a.yaml:1: one\na.yaml:2: two"))
        ran = stoker("events")
    assert ran.out.endswith("as before: a.yaml:1: one | a.yaml:2: two\n") and ran.out.count("\n") == 1


def test_of_all_events_those_of_trouble_can_be_had(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        fake.keep(Warned(message="low"))
        fake.keep(DrainEnded(replica="primary/0", incarnation=1, seconds=1.0, cut=0))
        fake.keep(DrainEnded(replica="primary/1", incarnation=1, seconds=1.0, cut=2))
        ran = stoker("events", "--trouble", "--json")
    assert [msgspec.json.decode(row)["seq"] for row in ran.out.splitlines()] == [2, 4]


def test_on_a_terminal_events_have_a_glyph_a_colour_and_the_day_where_it_is_another(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(Warned(message="low"))
        with Terminal(command("events"), columns=200) as terminal:
            assert terminal.wait() == 0
    assert re.match(r"11-1[45] \d\d:\d\d:20\.000 #1 ▲ warning: low\n", terminal.text)
    assert "\x1b[33m▲ warning: low" in terminal.raw


# ------------------------------------------------------------------------------------------- following


def test_new_events_come_as_they_happen(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        with following("events", "-f") as stream:
            fake.wait_for(Subscribe)
            fake.publish(Warned(message="new"))
            assert stream.line().endswith("#2 warning: new")


def test_kept_events_come_first_where_they_are_asked_for(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        with following("events", "-f", "--since", "0", "--json") as stream:
            assert msgspec.json.decode(stream.line())["event"] == "replica_ready"
            fake.publish(Warned(message="new"))
            assert msgspec.json.decode(stream.line())["seq"] == 2


@pytest.mark.parametrize("notice", [None, Missed(2)])
def test_events_that_a_slow_reader_missed_are_asked_for_again(root: Path, notice: Missed | None) -> None:
    with FakeSupervisor(root) as fake, following("events", "-f", "--json") as stream:
        fake.wait_for(Subscribe)
        fake.keep(Warned(message="one"))
        fake.keep(Warned(message="two"))
        if notice is not None:
            fake.tell(notice)
        fake.publish(Warned(message="three"))
        assert [msgspec.json.decode(stream.line())["seq"] for _ in range(3)] == [1, 2, 3]


def test_events_that_cannot_be_had_any_more_are_counted(root: Path) -> None:
    def forgetful(command: AnyCommand) -> Answer | None:
        return Events(events=fake.events[-1:], missed=2) if isinstance(command, GetEvents) else None

    with FakeSupervisor(root, handler=forgetful) as fake, following("events", "-f", "--json") as stream:
        fake.wait_for(Subscribe)
        fake.keep(Warned(message="one"))
        fake.keep(Warned(message="two"))
        fake.publish(Warned(message="three"))
        assert msgspec.json.decode(stream.line())["seq"] == 3
        assert stream.word() == "2 events were missed"


def test_a_restarted_supervisor_is_followed_from_its_first_event(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        with following("events", "-f", "--json") as stream:
            fake.wait_for(Subscribe)
            fake.__exit__()
            assert "waiting for it to come back" in stream.word()
            with FakeSupervisor(root, pid=4001) as successor:
                successor.keep(Warned(message="first"))
                assert stream.word() == "the supervisor is back"
                assert msgspec.json.decode(stream.line())["message"] == "first"


def test_a_restarted_supervisor_with_the_same_pid_is_seen_by_its_numbers(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        fake.keep(READY)
        with following("events", "-f", "--json") as stream:
            fake.wait_for(Subscribe)
            fake.__exit__()
            stream.word()
            with FakeSupervisor(root) as successor:
                successor.keep(Warned(message="first"))
                assert msgspec.json.decode(stream.line())["seq"] == 1


def test_a_reconnect_to_the_same_supervisor_goes_on_after_the_last_event(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.keep(READY)
        with following("events", "-f", "--json") as stream:
            fake.wait_for(Subscribe)
            fake.__exit__()
            assert "waiting" in stream.word()
            with FakeSupervisor(root) as again:
                again.keep(READY)
                again.keep(Warned(message="meanwhile"))
                assert stream.word() == "the supervisor is back"
                assert msgspec.json.decode(stream.line())["seq"] == 2


def test_logs_follow_without_showing_a_line_twice(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.lines = [line("one", 10.0), line("two", 11.0), line("three", 11.0)]
        with following("logs", "-f", "-n", "2") as stream:
            fake.wait_for(GetLogs)
            fake.tell(LogNotice([*fake.lines, line("four", 12.0)], 0))
            assert [stream.line().split()[-1] for _ in range(3)] == ["two", "three", "four"]


def test_lines_that_came_too_fast_are_counted(root: Path) -> None:
    with FakeSupervisor(root) as fake, following("logs", "-f", "-n", "0") as stream:
        fake.wait_for(Subscribe)
        fake.tell(LogNotice([line("kept")], 1234))
        assert stream.line().endswith("kept")
        assert stream.word() == "1234 log lines were missed"


def test_after_a_loss_logs_go_on_with_the_lines_that_are_new(root: Path) -> None:
    with FakeSupervisor(root) as fake:
        fake.lines = [line("old", 10.0)]
        with following("logs", "-f", "primary/0") as stream:
            assert stream.line().endswith("old")
            fake.__exit__()
            stream.word()
            with FakeSupervisor(root) as again:
                again.lines = [line("old", 10.0), line("new", 11.0)]
                assert stream.word() == "the supervisor is back"
                assert stream.line().endswith("new")
                assert again.asked[-1] == GetLogs(replica="primary/0", lines=2000)
