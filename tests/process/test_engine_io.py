"""An engine process by itself: it computes and talks on one thread, and yet a long forward holds nothing else up."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.messages import (
    Answer,
    Ask,
    Cancel,
    Chunk,
    End,
    ExitCode,
    Heartbeat,
    LoadFailed,
    Route,
)
from tests.lone_engine import LONG_S, LoneEngine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LoneEngine]:
    with LoneEngine(tmp_path) as engine:
        yield engine


def await_in_flight(engine: LoneEngine, count: int) -> Heartbeat:
    """Until a heartbeat says that so many exchanges are open."""
    while True:
        engine.tell(Ask())
        if (beat := engine.await_one(Heartbeat)).in_flight == count and beat.forward_age_s > 0:
            return beat


def hang(engine: LoneEngine) -> None:
    """A forward that does not end."""
    engine.faults(hang=True)
    engine.ask()
    await_in_flight(engine, 1)


# ------------------------------------------------------------------------------------------------- in a long forward


def test_heartbeats_go_on_in_a_forward_that_hangs_and_tell_its_age(engine: LoneEngine) -> None:
    hang(engine)
    ages = [said.forward_age_s for said, _ in engine.hear_for(3.5) if isinstance(said, Heartbeat)]
    assert 3 <= len(ages) <= 4
    assert ages == sorted(ages) and ages[-1] - ages[0] > 1.5


def test_ask_is_answered_at_once_in_a_forward_that_hangs(engine: LoneEngine) -> None:
    hang(engine)
    engine.await_one(Heartbeat)  # the next one that comes by itself is a second away
    for _ in range(20):
        engine.tell(Ask())
        assert engine.await_one(Heartbeat, limit_s=0.9).forward_age_s > 0


def test_what_arrives_in_a_long_forward_is_kept_and_what_is_cancelled_is_not_computed(engine: LoneEngine) -> None:
    hang(engine)
    dropped, kept = engine.ask(), engine.ask()
    await_in_flight(engine, 3)
    engine.tell(Cancel(dropped))
    assert await_in_flight(engine, 2).cancelled_rows == 0, "told when the forward is over"
    engine.faults()
    assert [answer.exchange for answer in engine.answers(2)] == [1, kept]
    engine.tell(Ask())
    beat = engine.await_one(Heartbeat)
    assert (beat.cancelled_rows, beat.in_flight, beat.rows) == (1, 0, 2)


def test_sigterm_ends_it_in_the_middle_of_a_forward(engine: LoneEngine) -> None:
    hang(engine)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(LONG_S) == ExitCode.LEFT


def test_the_end_of_its_lifeline_ends_it_in_the_middle_of_a_forward(engine: LoneEngine) -> None:
    hang(engine)
    engine.lifeline.close()
    assert engine.process.wait(LONG_S) == ExitCode.ORPHANED


def test_sigterm_and_the_lifeline_end_it_at_rest(tmp_path: Path) -> None:
    with LoneEngine(tmp_path) as engine:
        engine.hear_for(1.5)  # long enough for everybody in it to sleep
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(LONG_S) == ExitCode.LEFT
    with LoneEngine(tmp_path) as engine:
        engine.lifeline.close()
        assert engine.process.wait(LONG_S) == ExitCode.ORPHANED


# ------------------------------------------------------------------------------------------------- before it serves


def test_heartbeats_come_while_it_loads(tmp_path: Path) -> None:
    engine = LoneEngine(tmp_path, load_ms=1500)
    engine.await_one(Heartbeat)
    with engine:  # it registers after that
        asked = engine.ask()
        assert next(engine.answers(1)).exchange == asked


def test_the_reason_of_a_failed_load_is_its_last_word(tmp_path: Path) -> None:
    engine = LoneEngine(tmp_path, dim="many")
    try:
        reason = engine.await_one(LoadFailed)
        assert reason.final and "dim" in reason.reason
        assert engine.process.wait(LONG_S) == ExitCode.LOAD_FINAL
    finally:
        engine.close()


# ------------------------------------------------------------------------------------------------- at rest, in a flood


@pytest.mark.skipif(sys.platform != "linux", reason="wake-ups are counted by Linux's /proc")
def test_an_idle_engine_wakes_up_for_its_heartbeats_and_nothing_else(engine: LoneEngine) -> None:
    for _ in range(50):
        engine.ask()
    list(engine.answers(50))
    engine.hear_for(2.0)  # traffic is remembered for a second
    woken, cpu = engine.wake_ups(), engine.cpu_s()
    beats = [said for said, _ in engine.hear_for(4.0) if isinstance(said, Heartbeat)]
    assert 3 <= len(beats) <= 5
    assert engine.wake_ups() - woken <= 12 * len(beats), "looking each 20 ms would be 200"
    assert engine.cpu_s() - cpu < 0.08


def test_heartbeats_come_each_second_in_a_flood(engine: LoneEngine) -> None:
    under_way, beats, answers = 16, 0, 0
    for _ in range(under_way):
        engine.ask()
    while beats < 3:
        said = engine.hear()
        assert said is not None
        beats += isinstance(said[0], Heartbeat)
        if isinstance(said[0], Answer):
            answers += 1
            engine.ask()
    assert answers > 100


def test_chunks_of_many_streams_come_whole_and_in_order(tmp_path: Path) -> None:
    with LoneEngine(tmp_path, tokens=60, token_ms=1) as engine:
        body = b'{"model":"stub","prompt":"x","stream":true,"max_tokens":60}'
        streams = {engine.ask(body, Route.COMPLETIONS, stream=True): b"" for _ in range(40)}
        ended = 0
        while ended < len(streams):
            said = engine.hear()
            assert said is not None
            if isinstance(said[0], Chunk):
                streams[said[0].exchange] += said[1] or b""
            ended += isinstance(said[0], End)
    expected = "".join(f"token {number} " for number in range(60))
    for stream in streams.values():
        assert stream.endswith(b"data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in stream.decode().split("\n\n") if line.startswith("data: {")]
        assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == expected


def test_forwards_of_any_length_and_cancels_at_any_time_lose_no_answer_and_give_none_twice(engine: LoneEngine) -> None:
    chance = random.Random(8)
    waiting: set[int] = set()
    left: set[int] = set()
    answered: Counter[int] = Counter()
    asked = 0
    while asked < 600 or waiting:
        if asked < 600 and len(waiting) < 24:
            engine.faults(slow_ms=chance.choice((0, 0, 0, 1, 15, 19, 20, 21, 25, 40, 50)))
            for _ in range(chance.randint(1, 8)):
                waiting.add(engine.ask())
                asked += 1
        if waiting and chance.random() < 0.3:
            gone = chance.choice(sorted(waiting))
            waiting.discard(gone)
            left.add(gone)
            engine.tell(Cancel(gone))
        said = engine.hear(0.001 if asked < 600 else LONG_S)
        assert said is not None or asked < 600, f"lost: {waiting}"
        if said is not None and isinstance(said[0], Answer):
            answered[said[0].exchange] += 1
            waiting.discard(said[0].exchange)
    engine.tell(Ask())
    while (beat := engine.await_one(Heartbeat)).in_flight:
        engine.tell(Ask())
    assert set(answered.values()) == {1}
    assert set(answered) | left == set(range(1, asked + 1))
    assert beat.rows + beat.cancelled_rows == asked
