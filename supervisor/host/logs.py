"""Keeps what engines print: whole lines, in memory and in files, whatever becomes of the disk (spec 12).

    bytes of a pipe -> LineSplitter -> LogRing (the last lines)
                                    -> subscribers (dashboard, `stoker logs -f`)
                                    -> LogThread -> RotatingLog (files)

A child that prints must never wait for us, and the event loop must never wait for a disk. So reading only
splits and remembers (about 1 µs a line), and one thread for all replicas does the writing: a write that the
kernel holds up, as it does on a saturated disk, delays nobody. What cannot be written is counted, reported
once when it begins and once when it is over, and stays in the ring meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol
from urllib.parse import quote

MAX_LINE_BYTES = 64 * 1024
CUT_MARK = " [line longer than 64 KiB, cut here]"
"""Ends each piece of a line that was too long, except its last; nothing of the line is lost."""

RING_LINES = 2000
RING_BYTES = 4 * 1024 * 1024

FILE_BYTES = 10 * 1024 * 1024
FILES = 5

RETRY_S = 5.0
"""Seconds between two tries to write after a failed one."""

WAITING_BYTES = 8 * 1024 * 1024
"""Output that may wait for a slow disk; beyond it lines are left out of the files until the disk has caught
up.
"""


class LogLine(NamedTuple):
    """One line of a replica's output. `time`: wall clock, seconds since the epoch."""

    time: float
    replica: str
    incarnation: int
    text: str

    def __str__(self) -> str:
        """As in the files: `2026-11-29T12:00:00.123Z primary/0#2 text`."""
        return f"{_prefix(self.time, self.replica, self.incarnation)}{self.text}"


class LogSink(Protocol):
    """Takes blocks of whole lines; never raises and never blocks its caller. `now`: monotonic seconds."""

    def write(self, data: bytes, now: float) -> None: ...

    def close(self) -> None: ...


class LineSplitter:
    """Makes lines of the bytes of a pipe, however they were cut on the way. Pure.

    A line ends with LF, CRLF, or a bare CR, by which progress bars overwrite themselves; the blank lines
    that these leave are dropped. Bytes that are not UTF-8 are shown as `\\xff`.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        block = self._pending + data if self._pending else data
        end = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
        lines = _lines(block[:end]) if end else []
        pieces = _pieces(block[end:])
        self._pending = pieces.pop()
        return lines + [_decode(piece) + CUT_MARK for piece in pieces] if pieces else lines

    def flush(self) -> list[str]:
        """The last words: what came without a line end, if anything."""
        rest, self._pending = self._pending.removesuffix(b"\r"), b""
        return [_decode(rest)] if rest else []


class LogRing:
    """The last lines of a replica: bounded in number and in bytes of text."""

    def __init__(self, max_lines: int = RING_LINES, max_bytes: int = RING_BYTES) -> None:
        self._lines: deque[LogLine] = deque()
        self._max_lines, self._max_bytes = max_lines, max_bytes
        self.size_bytes = 0

    def extend(self, lines: Sequence[LogLine]) -> None:
        for line in lines[-self._max_lines :]:
            self._lines.append(line)
            self.size_bytes += _size(line.text)
            while self.size_bytes > self._max_bytes or len(self._lines) > self._max_lines:
                self.size_bytes -= _size(self._lines.popleft().text)

    def tail(self, count: int) -> list[LogLine]:
        """The last `count` lines, oldest first."""
        return list(self._lines)[-count:] if count > 0 else []


class ReplicaLog:
    """The output of one replica slot, over all its incarnations: splits, remembers, passes on."""

    def __init__(
        self,
        replica: str,
        sink: LogSink | None = None,
        on_lines: Callable[[list[LogLine]], None] | None = None,
        incarnation: int = 1,
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self._sink, self._on_lines = sink, on_lines
        self._splitter, self._ring = LineSplitter(), LogRing()
        self._last_wall = self._last_mono = 0.0

    def begin(self, incarnation: int) -> None:
        """The next process of this slot starts: what the last one left unfinished stays its own."""
        self._take(self._splitter.flush())
        self.incarnation = incarnation

    def feed(self, data: bytes, now_wall: float, now_mono: float) -> None:
        """Takes what was read from the pipe, with the time it was read at."""
        self._last_wall, self._last_mono = now_wall, now_mono
        self._take(self._splitter.feed(data))

    def close(self) -> None:
        """The slot is gone: keeps its last words, closes its file. `tail` still answers."""
        self._take(self._splitter.flush())
        if self._sink:
            self._sink.close()

    def tail(self, count: int) -> list[LogLine]:
        """The last `count` lines, oldest first."""
        return self._ring.tail(count)

    def _take(self, texts: list[str]) -> None:
        if not texts:
            return
        time, replica, incarnation = self._last_wall, self.replica, self.incarnation
        wanted = texts if self._on_lines else texts[-RING_LINES:]
        lines = [LogLine(time, replica, incarnation, text) for text in wanted]
        self._ring.extend(lines)
        if self._sink:
            prefix = _prefix(time, replica, incarnation)
            block = prefix + f"\n{prefix}".join(texts) + "\n"
            self._sink.write(block.encode("utf-8"), self._last_mono)
        if self._on_lines:
            self._on_lines(lines)


@dataclass(slots=True)
class _Outage:
    """The file cannot be written since `since`; not tried again before `retry_at` (monotonic seconds)."""

    since: float
    retry_at: float
    lost_lines: int = 0


class RotatingLog:
    """A log file appended to for ever; its last `files` × `max_bytes` are kept (`x.log`, `x.log.1` …).

    Nothing that happens to the disk, the folder or the file reaches the caller: a file that was deleted or
    moved is made anew, everything else ends in one report by `on_problem`, a try each 5 s, and one report
    when it is over. A block of lines is never divided between two files.
    """

    def __init__(
        self,
        path: Path,
        on_problem: Callable[[str], None],
        max_bytes: int = FILE_BYTES,
        files: int = FILES,
    ) -> None:
        self.path = path
        self._on_problem = on_problem
        self._max_bytes, self._files = max_bytes, files
        self._descriptor: int | None = None
        self._outage: _Outage | None = None

    def write(self, data: bytes, now: float) -> None:
        """Appends a block of whole lines; `now` (monotonic) limits how often a broken file is tried."""
        if self._outage and now < self._outage.retry_at:
            self._outage.lost_lines += data.count(b"\n")
            return
        written = 0
        try:
            descriptor = self._file_for(len(data))
            while written < len(data):
                written += os.write(descriptor, data[written:] if written else data)
        except OSError as error:
            self._fail(error, data.count(b"\n", written), now)
        else:
            self._recover(now)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def _file_for(self, more: int) -> int:
        """An open file at the path with room for `more` bytes."""
        descriptor = self._current()
        size = os.fstat(descriptor).st_size
        if not size or size + more <= self._max_bytes:
            return descriptor
        self.close()
        self._rotate()
        return self._current()

    def _current(self) -> int:
        """The open file, opened anew where the path no longer leads to it."""
        if self._descriptor is not None and not self._is_in_place(self._descriptor):
            self.close()
        if self._descriptor is None:
            self._descriptor = self._open()
        return self._descriptor

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            there, here = os.stat(self.path), os.fstat(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # a folder that cannot be searched: the open file still takes lines
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def _open(self) -> int:
        """Opens without waiting (a pipe may lie there), and ends a line that an earlier writer left torn."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _rotate(self) -> None:
        paths = [self.path, *(Path(f"{self.path}.{number}") for number in range(1, self._files))]
        for newer, older in reversed(list(pairwise(paths))):
            with suppress(FileNotFoundError):
                newer.replace(older)
        if self._files == 1:
            self.path.unlink(missing_ok=True)

    def _fail(self, error: OSError, lost_lines: int, now: float) -> None:
        self.close()
        if self._outage is None:
            self._outage = _Outage(now, now)
            self._on_problem(
                f"cannot write {self.path}: {error.strerror or error}; engine output stays in memory, "
                f"the file is tried again each {RETRY_S:g} s"
            )
        self._outage.retry_at = now + RETRY_S
        self._outage.lost_lines += lost_lines

    def _recover(self, now: float) -> None:
        outage, self._outage = self._outage, None
        if outage:
            self._on_problem(
                f"{self.path} is written again after {now - outage.since:.0f} s; {_missing(outage.lost_lines)} in it"
            )


class LogThread:
    """Writes the files of all replicas: a disk that makes a write wait holds up this thread and nobody else.

    `sink` wraps a RotatingLog; its `on_problem` is then called on this thread (so it hands over to the loop
    and does not raise), the thread's own on the caller's. What waits is bounded: past that, lines are left
    out until everything waiting has been written.
    """

    def __init__(self, on_problem: Callable[[str], None], max_waiting_bytes: int = WAITING_BYTES) -> None:
        self._on_problem = on_problem
        self._max_waiting = max_waiting_bytes
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._queued = self._done = 0  # bytes; each is written by one thread only
        self._lost_lines = 0
        self._thread = threading.Thread(target=self._run, name="stoker-logs", daemon=True)
        self._thread.start()

    def sink(self, log: LogSink) -> LogSink:
        """`log`, written by this thread."""
        return _Queued(self, log)

    def submit(self, log: LogSink, data: bytes, now: float) -> None:
        waiting = self._queued - self._done
        if waiting + len(data) > self._max_waiting or (self._lost_lines and waiting):
            self._leave_out(data)
            return
        if self._lost_lines:
            self._on_problem(f"log files have caught up; {_missing(self._lost_lines)} in them")
            self._lost_lines = 0
        self._queued += len(data)
        self._jobs.put(lambda: self._write(log, data, now))

    def submit_close(self, log: LogSink) -> None:
        self._jobs.put(log.close)

    def close(self, timeout_s: float) -> bool:
        """Writes what waits and ends the thread; False where the disk did not let it in `timeout_s`."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _leave_out(self, data: bytes) -> None:
        if not self._lost_lines:
            self._on_problem("log files fall behind the output: lines are left out until they catch up")
        self._lost_lines += data.count(b"\n")

    def _write(self, log: LogSink, data: bytes, now: float) -> None:
        try:
            log.write(data, now)
        finally:
            self._done += len(data)

    def _run(self) -> None:
        while job := self._jobs.get():
            job()


@dataclass(frozen=True, slots=True)
class _Queued:
    thread: LogThread
    log: LogSink

    def write(self, data: bytes, now: float) -> None:
        self.thread.submit(self.log, data, now)

    def close(self) -> None:
        self.thread.submit_close(self.log)


def log_file(folder: Path, replica: str) -> Path:
    """The log file of `primary/0` in `folder`: `primary-0.log`; what a file name cannot hold is %-quoted."""
    deployment, _, number = replica.rpartition("/")
    return folder / f"{quote(deployment, safe='')}-{quote(number, safe='')}.log"


def iso_utc(time: float) -> str:
    """`2026-11-29T12:00:00.123Z` for seconds since the epoch."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _missing(lines: int) -> str:
    return f"{lines} {'line is' if lines == 1 else 'lines are'} missing"


def _prefix(time: float, replica: str, incarnation: int) -> str:
    return f"{iso_utc(time)} {replica}#{incarnation} "


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8"))


def _lines(block: bytes) -> list[str]:
    """The lines of a block that ends with a line end; short lines with LF, the usual, are decoded at once."""
    if b"\r" not in block:
        lines = _decode(block).split("\n")
        lines.pop()
        if len(block) <= MAX_LINE_BYTES or 4 * max(map(len, lines)) <= MAX_LINE_BYTES:
            return lines
    return [text for raw in _raw_lines(block) for text in _texts(raw)]


def _raw_lines(block: bytes) -> list[bytes]:
    rows = block.replace(b"\r\n", b"\n").split(b"\n")
    lines: list[bytes] = []
    for row in rows[:-1]:
        *overwritten, last = row.split(b"\r")
        lines += [part for part in overwritten if part]
        lines.append(last)
    return lines + [part for part in rows[-1].split(b"\r") if part]


def _texts(raw: bytes) -> list[str]:
    *cut, last = _pieces(raw)
    return [*(_decode(piece) + CUT_MARK for piece in cut), _decode(last)]


def _pieces(raw: bytes) -> list[bytes]:
    """Cuts a line, or the beginning of one, into pieces of at most 64 KiB, never inside a character of UTF-8.

    A CR at the end is not counted: it may turn out to belong to the line end.
    """
    pieces: list[bytes] = []
    start, end = 0, len(raw) - raw.endswith(b"\r")
    while end - start > MAX_LINE_BYTES:
        stop = _character_start(raw, start + MAX_LINE_BYTES)
        pieces.append(raw[start:stop])
        start = stop
    return [*pieces, raw[start:]]


def _character_start(raw: bytes, position: int) -> int:
    """`position`, or up to 3 bytes before it where it is inside a character."""
    for back in range(4):
        if raw[position - back] & 0xC0 != 0x80:
            return position - back
    return position
