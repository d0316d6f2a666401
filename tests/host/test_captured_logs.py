"""What engines print is kept, whatever they print and whatever becomes of the disk (spec 12)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.logs import (
    CUT_MARK,
    MAX_LINE_BYTES,
    RETRY_S,
    RING_LINES,
    LineSplitter,
    LogLine,
    LogRing,
    LogThread,
    ReplicaLog,
    RotatingLog,
    log_file,
)

NOON = 1_795_953_600.123
STAMP = "2026-11-29T12:00:00.123Z"


# --- lines -------------------------------------------------------------------------------------


def split(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.flush()


def expected_lines(data: bytes) -> list[str]:
    """The rule, said slowly: LF and CRLF end a line, a bare CR ends one that is not empty."""
    lines: list[str] = []
    for text, end in re.findall(rb"([^\r\n]*)(\r\n|\n|\r|$)", data):
        if text or end in (b"\n", b"\r\n"):
            lines.append(text.decode("utf-8", "backslashreplace"))
    return lines


def test_whole_lines_come_out_and_the_rest_waits() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntwo\nthr") == ["one", "two"]
    assert splitter.feed(b"") == []
    assert splitter.feed(b"ee\n") == ["three"]
    assert splitter.flush() == []


def test_the_last_words_need_no_line_end() -> None:
    assert split(b"Segmentation fault") == ["Segmentation fault"]


def test_empty_lines_are_kept() -> None:
    assert split(b"a\n\n\r\nb\n") == ["a", "", "", "b"]


def test_a_progress_bar_is_shown_step_by_step() -> None:
    assert split(b"\r 10%|#", b"   |\r 20%|##  |", b"\r", b"\n") == [" 10%|#   |", " 20%|##  |"]


def test_bytes_that_are_no_utf8_are_shown() -> None:
    assert split(b"caf\xc3\xa9 \xff\xfe\n\xe2\x82\n") == ["café \\xff\\xfe", "\\xe2\\x82"]


def test_a_character_cut_between_two_reads_is_whole() -> None:
    assert split(b"\xe2\x82", b"\xac\n") == ["€"]


@given(data=st.lists(st.sampled_from([b"a", b"\r", b"\n", "é€😀".encode(), b"\xff", b"\x00", b" "])).map(b"".join))
def test_lines_are_those_of_the_rule(data: bytes) -> None:
    assert split(data) == expected_lines(data)


@given(
    data=st.lists(st.sampled_from([b"ab", b"\r", b"\n", b"\r\n", "€".encode(), b"x" * MAX_LINE_BYTES])).map(b"".join),
    cuts=st.lists(st.integers(0, 400_000)),
)
def test_how_the_bytes_arrive_does_not_matter(data: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(data)) for cut in [0, *cuts, len(data)]})
    assert split(*(data[a:b] for a, b in pairwise(places))) == split(data)


def test_a_long_line_is_cut_marked_and_nothing_of_it_is_lost() -> None:
    line = "a" + "é" * MAX_LINE_BYTES + "!"
    pieces = split(line.encode() + b"\nnext\n")
    assert pieces.pop() == "next"
    assert all(piece.endswith(CUT_MARK) for piece in pieces[:-1])
    assert all(len(piece.removesuffix(CUT_MARK).encode()) <= MAX_LINE_BYTES for piece in pieces)
    assert "".join(piece.removesuffix(CUT_MARK) for piece in pieces) == line


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_of_exactly_64_kib_is_not_cut(end: bytes) -> None:
    line = b"x" * MAX_LINE_BYTES
    bytewise = (end[i : i + 1] for i in range(len(end)))
    assert split(line + end) == split(line, end) == split(line, *bytewise) == [line.decode()]


def test_a_line_without_end_is_shown_before_it_ends_and_uses_no_more_memory() -> None:
    splitter = LineSplitter()
    shown = [line for _ in range(64) for line in splitter.feed(b"y" * 16384)]
    assert len(shown) >= 15
    assert len(splitter.flush()[0]) <= MAX_LINE_BYTES


# --- ring --------------------------------------------------------------------------------------


def line(text: str) -> LogLine:
    return LogLine(NOON, "primary/0", 2, text)


def test_the_ring_keeps_the_last_lines() -> None:
    ring = LogRing()
    ring.extend([line(str(number)) for number in range(RING_LINES + 5)])
    ring.extend([line("last")])
    assert [kept.text for kept in ring.tail(2)] == [str(RING_LINES + 4), "last"]
    assert len(ring.tail(10**6)) == RING_LINES
    assert ring.tail(0) == ring.tail(-1) == []


@given(st.lists(st.text(max_size=30), max_size=50), st.integers(1, 20), st.integers(1, 100))
def test_the_ring_is_bounded_in_lines_and_in_bytes(texts: list[str], lines: int, size: int) -> None:
    ring = LogRing(lines, size)
    for number, text in enumerate(texts, 1):
        ring.extend([line(text)])
        kept = [one.text for one in ring.tail(10**6)]
        assert len(kept) <= lines
        assert ring.size_bytes == sum(len(one.encode()) for one in kept) <= size
        assert kept == texts[number - len(kept) : number]


# --- files -------------------------------------------------------------------------------------


class Problems(list[str]):
    def __call__(self, message: str) -> None:
        self.append(message)


@pytest.fixture
def problems() -> Problems:
    return Problems()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs/primary-0.log"


@pytest.fixture
def log(path: Path, problems: Problems) -> Iterator[RotatingLog]:
    rotating = RotatingLog(path, problems)
    yield rotating
    rotating.close()


def test_each_line_has_time_replica_and_incarnation(log: RotatingLog, path: Path) -> None:
    replica = ReplicaLog("primary/0", log, incarnation=2)
    replica.feed(b"text\n  more", NOON, 1.0)
    replica.close()
    assert path.read_text() == f"{STAMP} primary/0#2 text\n{STAMP} primary/0#2   more\n"
    assert [str(kept) for kept in replica.tail(1)] == [f"{STAMP} primary/0#2   more"]


def test_incarnations_follow_each_other_in_one_file(log: RotatingLog, path: Path) -> None:
    replica = ReplicaLog("primary/0", log)
    replica.feed(b"out of mem", NOON, 1.0)
    replica.begin(2)
    replica.feed(b"hello\n", NOON, 2.0)
    assert path.read_text() == f"{STAMP} primary/0#1 out of mem\n{STAMP} primary/0#2 hello\n"
    assert [(kept.incarnation, kept.text) for kept in replica.tail(9)] == [(1, "out of mem"), (2, "hello")]


def test_a_new_supervisor_appends_and_ends_a_torn_line(path: Path, problems: Problems) -> None:
    path.parent.mkdir()
    path.write_bytes(b"whole\ntorn by a ki")
    RotatingLog(path, problems).write(b"new\n", 0.0)
    assert path.read_bytes() == b"whole\ntorn by a ki\nnew\n"


def test_files_are_for_this_user_alone(log: RotatingLog, path: Path) -> None:
    log.write(b"x\n", 0.0)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@given(sizes=st.lists(st.integers(1, 60), max_size=60), files=st.integers(1, 5))
def test_rotation_keeps_the_newest_blocks_whole_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], files: int
) -> None:
    path = tmp_path_factory.mktemp("rotate") / "x.log"
    log = RotatingLog(path, pytest.fail, max_bytes=100, files=files)
    written = b""
    for number, size in enumerate(sizes):
        block = b"%d" % (number % 10) * size + b"\n"
        log.write(block, 0.0)
        written += block
    log.close()
    parts = [path, *(Path(f"{path}.{number}") for number in range(1, files + 2))]
    contents = [part.read_bytes() for part in parts if part.exists()]
    assert len(contents) <= files and all(len(content) <= 100 for content in contents)
    assert written.endswith(b"".join(reversed(contents)))
    assert sum(map(len, contents)) > min(len(written) - 1, 100 * (files - 1) - 61 * files)


@pytest.mark.parametrize("how", ["deleted", "moved", "folder deleted"])
def test_a_file_that_was_taken_away_is_made_anew(log: RotatingLog, path: Path, problems: Problems, how: str) -> None:
    log.write(b"before\n", 0.0)
    if how == "moved":
        path.rename(path.with_suffix(".old"))
    elif how == "deleted":
        path.unlink()
    else:
        shutil.rmtree(path.parent)
    log.write(b"after\n", 0.0)
    assert path.read_bytes() == b"after\n"
    assert problems == []


def test_an_outage_is_reported_once_and_so_is_its_end(log: RotatingLog, path: Path, problems: Problems) -> None:
    path.mkdir(parents=True)
    for second in range(12):
        log.write(b"one\ntwo\n", float(second))
    path.rmdir()
    log.write(b"three\n", 14.0)
    assert len(problems) == 1 and f"cannot write {path}: Is a directory" in problems[0]
    log.write(b"four\n", 15.0)
    log.write(b"five\n", 15.1)
    assert problems[1:] == [f"{path} is written again after 15 s; 25 lines are missing in it"]
    assert path.read_bytes() == b"four\nfive\n"


def test_a_broken_file_is_tried_at_a_bounded_rate(
    log: RotatingLog, path: Path, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def refuse(*args: object) -> int:
        tried.append("open")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", refuse)
    for tick in range(1000):
        log.write(b"x\n", tick * RETRY_S / 100)
    assert len(tried) == 10
    assert len(problems) == 1 and "Input/output error" in problems[0]


def test_an_error_while_writing_closes_the_file_and_loses_only_what_was_not_written(
    log: RotatingLog, path: Path, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, room = os.write, [9]

    def little_room(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(5, "Input/output error")
        count = really(descriptor, data[: room[0]])
        room[0] -= count
        return count

    open_files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    monkeypatch.setattr(os, "write", little_room)
    log.write(b"one\ntwo\nthree\nfour\n", 0.0)
    if open_files:
        assert len(os.listdir("/proc/self/fd")) == open_files
    monkeypatch.undo()
    log.write(b"five\n", RETRY_S)
    assert path.read_bytes() == b"one\ntwo\nt\nfive\n"
    assert "2 lines are missing" in problems[1]


def test_a_pipe_in_the_place_of_the_file_does_not_block(log: RotatingLog, path: Path, problems: Problems) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    for _ in range(100):
        log.write(b"x" * 4095 + b"\n", 0.0)
    assert len(problems) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "stoker-test", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_problem_and_writing_goes_on_when_there_is_room(
    small_disk: Path, problems: Problems
) -> None:
    log = RotatingLog(small_disk / "x.log", problems)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"b" * 40_000)
    now = 0.0
    for now in range(60):
        log.write(b"x" * 999 + b"\n", float(now))
    assert len(problems) == 1 and "No space left on device" in problems[0]
    ballast.unlink()
    log.write(b"room again\n", now + RETRY_S)
    log.close()
    lines = (small_disk / "x.log").read_bytes().split(b"\n")
    assert len(problems) == 2 and "is written again" in problems[1]
    assert lines[-2:] == [b"room again", b""]
    assert {len(full) for full in lines[:-3]} == {999}


def test_a_folder_made_read_only_is_one_problem(small_disk: Path, problems: Problems) -> None:
    log = RotatingLog(small_disk / "x.log", problems)
    log.write(b"before\n", 0.0)
    log.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for now in range(4):
        log.write(b"lost\n", float(now))
    assert len(problems) == 1 and "Read-only file system" in problems[0]
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    log.write(b"after\n", 10.0)
    log.close()
    assert (small_disk / "x.log").read_bytes() == b"before\nafter\n"


@pytest.mark.parametrize(
    ("replica", "name"),
    [("primary/0", "primary-0.log"), ("a-1/12", "a-1-12.log"), ("../x y/3", "..%2Fx%20y-3.log")],
)
def test_a_replica_has_a_file_of_its_own_inside_the_folder(tmp_path: Path, replica: str, name: str) -> None:
    assert log_file(tmp_path, replica) == tmp_path / name


# --- the thread --------------------------------------------------------------------------------


class HeldUpDisk:
    """A sink whose writes wait until the test opens the gate, as a saturated disk makes them."""

    def __init__(self) -> None:
        self.gate, self.arrived = threading.Event(), threading.Event()
        self.data: list[bytes] = []
        self.closed = False

    def write(self, data: bytes, now: float) -> None:
        self.arrived.set()
        self.gate.wait()
        self.data.append(data)

    def close(self) -> None:
        self.closed = True


def test_the_thread_writes_in_order_and_ends_when_told(path: Path, problems: Problems) -> None:
    thread = LogThread(problems)
    sink = thread.sink(RotatingLog(path, problems))
    for number in range(1000):
        sink.write(b"%d\n" % number, 0.0)
    sink.close()
    assert thread.close(10)
    assert path.read_bytes().split() == [b"%d" % number for number in range(1000)]
    assert problems == []


def test_a_held_up_disk_holds_up_nobody_and_costs_bounded_memory(problems: Problems) -> None:
    disk, thread = HeldUpDisk(), LogThread(problems, max_waiting_bytes=1000)
    sink = thread.sink(disk)
    replica = ReplicaLog("primary/0", sink)
    for _ in range(500):
        replica.feed(b"a line\n", NOON, 0.0)
    assert len(problems) == 1 and "fall behind" in problems[0]
    assert [kept.text for kept in replica.tail(1000)] == ["a line"] * 500
    disk.gate.set()
    replica.close()
    assert thread.close(10) and disk.closed
    sink.write(b"after\n", 1.0)
    lost = int(re.search(r"(\d+) lines are missing", problems[1])[1])
    assert len(problems) == 2 and lost + len(disk.data) == 500
    assert sum(map(len, disk.data)) <= 1000


def test_a_disk_that_never_answers_does_not_hold_up_the_end(problems: Problems) -> None:
    disk, thread = HeldUpDisk(), LogThread(problems)
    thread.sink(disk).write(b"x\n", 0.0)
    disk.arrived.wait(10)
    assert not thread.close(0.01)
    disk.gate.set()
    assert thread.close(10)


# --- subscribers, floods -----------------------------------------------------------------------


def test_subscribers_get_each_line_once_in_order() -> None:
    heard: list[LogLine] = []
    replica = ReplicaLog("primary/0", on_lines=heard.extend)
    for chunk in (b"a\nb", b"", b"c\n", b"d"):
        replica.feed(chunk, NOON, 1.0)
    replica.close()
    assert heard == replica.tail(9)
    assert [kept.text for kept in heard] == ["a", "bc", "d"]


def test_a_flood_costs_microseconds_a_line(path: Path, problems: Problems) -> None:
    """100 000 lines/s may take at most half of the event loop (5 µs each); measured here: about 1 µs."""
    thread = LogThread(problems, max_waiting_bytes=64 << 20)
    replica = ReplicaLog("primary/0", thread.sink(RotatingLog(path, problems)), on_lines=len)
    chunk = b"INFO engine.process: forward of 32 rows took 12.3 ms, queue 5 rows, busy 0.93\n" * 800
    replica.feed(chunk, NOON, 0.0)
    started = time.thread_time()
    for _ in range(50):
        replica.feed(chunk, NOON, 0.0)
    cost = (time.thread_time() - started) / (50 * 800)
    assert thread.close(30)
    assert cost < 5e-6
    assert problems == []
