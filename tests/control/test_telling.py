"""Events on standard error and in a file: whoever does not read holds nobody up (spec 12)."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from supervisor.control.events import AnyEvent, EventLog, Warned
from supervisor.host.logs import LogThread, RotatingLog
from supervisor.telling import EventLines, EventRecords, Stream


def test_a_terminal_that_stands_still_holds_up_nobody_and_gets_the_lines_later() -> None:
    reader, writer = os.pipe()
    thread = LogThread(lambda _: None)
    events = EventLog()
    events.listen(EventLines(thread.sink(Stream(writer))))
    for number in range(5000):  # a pipe holds a tenth of it
        events.publish(Warned(message=f"number {number} " + "x" * 100))
    got: list[bytes] = []

    def read() -> None:
        while data := os.read(reader, 1 << 16):
            got.append(data)

    reading = threading.Thread(target=read)
    reading.start()
    assert thread.close(10)
    os.close(writer)
    reading.join()
    os.close(reader)
    lines = b"".join(got).decode().splitlines()
    assert len(lines) == 5000 and "number 4999" in lines[-1]


def test_a_path_that_is_no_utf_8_reaches_every_listener_in_words(tmp_path: Path) -> None:
    thread = LogThread(lambda _: None)
    events = EventLog()
    heard: list[AnyEvent] = []
    events.listen(EventRecords(thread.sink(RotatingLog(tmp_path / "events.jsonl", lambda _: None))))
    events.listen(heard.append)
    events.publish(Warned(message="caf\udce9/stoker.yaml"))
    assert thread.close(10)
    (row,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert row["message"] == "caf\\udce9/stoker.yaml"
    assert isinstance(heard[0], Warned) and heard[0].message == row["message"]


def test_a_stream_that_does_not_wait_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    block = b"x" * 400_000  # more than a pipe holds
    writing = threading.Thread(target=Stream(writer).write, args=(block, 0.0))
    writing.start()
    got = 0
    while got < len(block):
        got += len(os.read(reader, 1 << 16))
    writing.join()
    os.close(reader)
    os.close(writer)


def test_events_are_lines_of_json_in_a_file(tmp_path: Path) -> None:
    thread = LogThread(lambda _: None)
    events = EventLog()
    events.listen(EventRecords(thread.sink(RotatingLog(tmp_path / "events.jsonl", lambda _: None))))
    events.publish(Warned(message="one\nwith a line end"))
    events.publish(Warned(message="zwei: ü"))
    assert thread.close(10)
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(row["seq"], row["event"], row["message"]) for row in rows] == [
        (1, "warning", "one\nwith a line end"),
        (2, "warning", "zwei: ü"),
    ]
