"""What engines print and leave behind: whole lines, last words, groups that are empty at the end (spec 8, 12)."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import psutil
import pytest

from supervisor.control.events import ReplicaExited, ReplicaReady, ReplicaState, Warned
from supervisor.control.messages import DrainReplica, GetLogs, LogNotice, Restart, Subscribe
from tests.conftest import Serve
from tests.support import Running, stub_config


def one(serve: Serve) -> Running:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    return running


def log_file(running: Running) -> Path:
    directory = running.inventory().supervisor.log_dir
    assert directory is not None
    return Path(directory) / "stub-0.log"


def written(running: Running) -> str:
    """What is in the log file, which is made by the first line that a thread writes there."""
    file = log_file(running)
    return file.read_text() if file.exists() else ""


def lines(running: Running, count: int = 1000) -> list[str]:
    return [line.text for line in running.ask(GetLogs(replica="stub/0", lines=count)).lines]


def until(holds: object, limit_s: float = 20.0) -> None:
    """Wait for something that only files and logs tell."""
    deadline = time.monotonic() + limit_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def say(running: Running, text: str, times: int = 1) -> None:
    running.faults("stub/0", say=text, say_times=times)


def test_lines_are_in_ring_file_and_stream_with_time_replica_and_incarnation(serve: Serve) -> None:
    running = one(serve)
    with running.client() as client:
        client.ask(Subscribe(events=False, logs=True))
        say(running, "hello from the engine\n")
        (notice,) = (n for n in [next(client.notices(timeout_s=10))] if isinstance(n, LogNotice))
    assert [(line.replica, line.incarnation, line.text) for line in notice.lines] == [
        ("stub/0", 1, "hello from the engine")
    ]
    assert lines(running)[-1] == "hello from the engine"
    until(lambda: " stub/0#1 hello from the engine\n" in written(running))


def test_the_last_words_of_a_crash_without_a_line_end_are_in_ring_file_and_event(serve: Serve) -> None:
    running = one(serve)
    say(running, "half a line, and then")
    until(lambda: running.replica("stub/0").pid is not None)
    running.faults("stub/0", leave=True)
    exited = running.wait_event(ReplicaExited)
    assert exited.reason == "exit code 0"
    assert exited.last_lines[-1] == "half a line, and then" == lines(running)[-1]
    until(lambda: "half a line, and then" in written(running))


def test_a_log_is_appended_to_across_incarnations(serve: Serve) -> None:
    running = one(serve)
    say(running, "in the first life\n")
    until(lambda: lines(running)[-1:] == ["in the first life"])  # it has come: a process told to leave says no more
    running.accepted(Restart(target="stub/0"))
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    say(running, "in the second life\n")
    until(lambda: "#2 in the second life" in written(running))
    assert "#1 in the first life" in written(running)


def test_a_flood_of_lines_delays_neither_the_child_nor_a_request(serve: Serve) -> None:
    running = one(serve)
    say(running, "x" * 80 + "\n", times=100_000)
    for _ in range(20):
        assert running.embed(timeout_ms=5000).status == 200
    until(lambda: (say(running, "after the flood\n"), lines(running, 1) == ["after the flood"])[1], limit_s=60)
    assert len(lines(running, 100_000)) <= 2000


def test_a_line_of_sixteen_mebibytes_is_cut_and_marked_and_the_next_one_is_whole(serve: Serve) -> None:
    running = one(serve)
    say(running, "y" * (200 * 1024) + "\nnext\n")
    until(lambda: lines(running)[-1:] == ["next"])
    cut = [line for line in lines(running) if line.endswith("cut here]")]
    assert cut and all(len(line) < 70_000 for line in cut)


def test_a_deleted_log_file_and_an_unusable_folder_never_block_the_child_and_are_told_once(serve: Serve) -> None:
    running = one(serve)
    say(running, "before\n")
    until(lambda: log_file(running).exists() and "before" in written(running))
    log_file(running).unlink()
    say(running, "after the deletion\n")
    until(lambda: log_file(running).exists() and "after the deletion" in written(running))
    folder = log_file(running).parent
    shutil.rmtree(folder)
    folder.write_text("a file where the folder was")
    for number in range(5):
        say(running, f"nowhere to go {number}\n")
    told = running.wait_event(Warned, lambda event: "stub-0.log" in event.message)
    assert running.embed().status == 200
    assert "nowhere to go 4" in lines(running)
    folder.unlink()
    until(lambda: (say(running, "again\n"), log_file(running).exists())[1], limit_s=15)
    outages = [event for event in running.events(Warned) if "cannot write" in event.message]
    assert [event for event in outages if "stub-0.log" in event.message] == [told]
    assert len(outages) <= 2, "the file of events, which is there, too"


def test_control_characters_and_markup_are_kept_literally(serve: Serve) -> None:
    running = one(serve)
    say(running, "[bold]not bold[/bold] \x1b[31mred\x1b[0m \x1b]0;title\n")
    until(lambda: any("[bold]not bold[/bold]" in line for line in lines(running)))


@pytest.mark.parametrize("how", ["drain", "leave"])
def test_children_that_ignore_sigterm_are_gone_before_it_is_called_stopped(serve: Serve, how: str) -> None:
    running = one(serve)
    pid = running.replica("stub/0").pid
    running.faults("stub/0", children=2)
    until(lambda: lines(running).count("child up") == 2)
    children = psutil.Process(pid).children(recursive=True)
    assert len(children) == 2
    started = time.monotonic()
    if how == "leave":
        running.faults("stub/0", leave=True)
        exited = running.wait_event(ReplicaExited)
        assert time.monotonic() - started < 1.0, "its exit waited for a pipe that a child holds open"
        assert exited.reason == "exit code 0"
    else:
        running.accepted(DrainReplica(replica="stub/0"))
    for child in children:
        child.kill() if how == "leave" else None
    if how == "drain":
        state = running.replica("stub/0").state
        assert state == "stopping", "two children still run"
        for child in children:
            child.kill()
        running.wait_event(ReplicaState, lambda event: event.after == "stopped")
    else:
        running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
