"""The words of events: right for one of a thing as for several."""

from __future__ import annotations

import pytest

from supervisor.control.events import (
    AnyEvent,
    BadFrames,
    DrainEnded,
    EjectionWithheld,
    ReplicaEjected,
    ThreadsAdopted,
    ThreadsLearned,
    ThreadsRetired,
)

WHO = {"replica": "stub/0", "incarnation": 1}
EVENTS: list[tuple[AnyEvent, AnyEvent, str, str]] = [
    (
        BadFrames(where="engines", count=1, example="x"),
        BadFrames(where="engines", count=2, example="x"),
        "dropped 1 bad frame on",
        "dropped 2 bad frames on",
    ),
    (
        DrainEnded(**WHO, seconds=1.0, cut=1),
        DrainEnded(**WHO, seconds=1.0, cut=2),
        "1 exchange was cut",
        "2 exchanges were cut",
    ),
    (
        EjectionWithheld(**WHO, reason="alone", timeouts=1),
        EjectionWithheld(**WHO, reason="alone", timeouts=3),
        "after 1 timeout: alone",
        "after 3 timeouts: alone",
    ),
    (
        ReplicaEjected(**WHO, seconds=30.0, timeouts=1),
        ReplicaEjected(**WHO, seconds=30.0, timeouts=3),
        "after 1 timeout in a row",
        "after 3 timeouts in a row",
    ),
    (
        ThreadsLearned(**WHO, range="< 32", count=1, gain=0.0),
        ThreadsLearned(**WHO, range="< 32", count=2, gain=0.0),
        "learned 1 thread for",
        "learned 2 threads for",
    ),
    (
        ThreadsAdopted(**WHO, range="< 32", count=1, gain=0.0),
        ThreadsAdopted(**WHO, range="< 32", count=2, gain=0.0),
        "with 1 thread from now on",
        "with 2 threads from now on",
    ),
    (
        ThreadsRetired(**WHO, range="< 32", count=1, shape="rows"),
        ThreadsRetired(**WHO, range="< 32", count=2, shape="rows"),
        "with 1 thread",
        "with 2 threads",
    ),
]


@pytest.mark.parametrize(("one", "several", "of_one", "of_several"), EVENTS, ids=lambda each: type(each).__name__)
def test_one_is_said_as_one(one: AnyEvent, several: AnyEvent, of_one: str, of_several: str) -> None:
    assert one.sentence().partition(of_one)[1] and not one.sentence().endswith(f"{of_one}s")
    assert of_several in several.sentence()
