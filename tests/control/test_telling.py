"""Events on standard error and in a file: whoever does not read holds nobody up (spec 12)."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from supervisor.control.events import EventLog, Warned
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
