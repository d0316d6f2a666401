"""What the device thread makes of generations: places, turns, and errors of one that spare the others."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.backends import answers, requests
from engine.backends.base import Backend, Generation, Job, Row
from engine.device_thread import DeviceThread, Outgoing, Work
from engine.messages import Answer, Card, Chunk, End, Register, Route
from tests.engine.conftest import launch
from tests.engine.memory_wire import MemoryWire

LONG_S = 20.0


class _Count(Generation):
    """Counts to a number; `bad`: at its first step it turns out that it cannot go on."""

    def __init__(self, length: int, bad: bool) -> None:
        self.tokens = 1
        self.length = length
        self.bad = bad
        self.at = 0

    def take(self) -> bytes | None:
        return str(self.at).encode()

    def answer(self) -> bytes:
        return json.dumps(self.at).encode()


class _Counter(Backend):
    """Notes who was stepped with whom and who was released."""

    max_num_seqs = 2
    max_num_batched_tokens = 8

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.released: list[int] = []
        self.vector = [1.0]
        self.lost = False

    def load(self) -> None: ...

    def card(self) -> Card:
        return Card(
            artifact="m",
            engine="x",
            task="t",
            device="cpu",
            dtype="d",
            threads=1,
            max_num_seqs=2,
            max_num_batched_tokens=8,
        )

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        if route is Route.EMBEDDINGS:
            return _Vectors(self.vector)
        asked = json.loads(body)
        if "leave" in asked:
            raise _Leave
        return _Count(asked["length"], asked.get("bad", False))

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        return [row.data for row in rows]

    def step(self, generations: Sequence[Generation]) -> None:
        self.steps.append([one.length for one in generations if isinstance(one, _Count)])
        for one in generations:
            assert isinstance(one, _Count)
            one.at += 1
            one.done = one.at == one.length
            if one.bad:
                one.error = answers.NotFiniteError("the model gave NaN or infinity")

    def gpu_bytes(self) -> int:
        if self.lost:
            raise RuntimeError("the card is gone")
        return 7_000_000

    def release(self, generation: Generation) -> None:
        assert isinstance(generation, _Count)
        self.released.append(generation.length)


class _Leave(BaseException):
    """What user code may raise to get past `except Exception`."""


class _Vectors(Job):
    def __init__(self, vector: list[float]) -> None:
        self.rows = [Row(1, vector)]

    def answer(self, outputs: Sequence[Any]) -> bytes:
        if self.rows[0].data == []:
            raise _Leave
        return answers.embeddings_answer(requests.EmbeddingsRequest(inputs=["x"]), outputs, 1, "m")


class Bench:
    """A device thread that was given all its work before it starts, and what it said."""

    def __init__(self) -> None:
        self.backend = _Counter()
        self.wire = MemoryWire()
        self.thread = DeviceThread(launch(), self.wire, self.backend)

    def ask(self, exchange: int, route: Route = Route.COMPLETIONS, *, stream: bool = False, **body: Any) -> None:
        data = json.dumps(body).encode()
        self.wire.arrive(Work(exchange, route, stream, data, time.monotonic() + LONG_S))

    def cancel(self, exchange: int) -> None:
        self.wire.arrive(exchange)

    @property
    def said(self) -> list[Outgoing]:
        return [one for one in self.wire.said if not isinstance(one[0], Register)]

    def run_until(self, holds: Callable[[], bool]) -> None:
        if not self.thread.is_alive():
            self.thread.start()
        with self.wire.changed:
            assert self.wire.changed.wait_for(holds, LONG_S), self.said

    def run_until_ended(self, count: int) -> None:
        """Until that many exchanges have ended."""
        self.run_until(lambda: sum(isinstance(message, Answer | End) for message, _ in self.said) >= count)

    def answers(self) -> dict[int, tuple[int, Any]]:
        return {
            message.exchange: (message.status, json.loads(body or b"null"))
            for message, body in self.said
            if isinstance(message, Answer)
        }


def test_more_than_there_are_places_wait_and_the_first_come_is_served_first() -> None:
    bench = Bench()
    for exchange, length in ((1, 3), (2, 2), (3, 5), (4, 1)):
        bench.ask(exchange, length=length)
    bench.run_until_ended(4)
    assert bench.backend.steps == [[3, 2], [3, 2], [3, 5], [5, 1], [5], [5], [5]]
    assert bench.answers() == {1: (200, 3), 2: (200, 2), 3: (200, 5), 4: (200, 1)}
    assert sorted(bench.backend.released) == [1, 2, 3, 5]


def test_one_that_was_left_gives_its_place_to_the_next() -> None:
    bench = Bench()
    bench.ask(1, length=10**9)
    bench.ask(2, length=10**9 + 1, stream=True)
    bench.ask(3, length=2)
    bench.run_until(lambda: any(isinstance(message, Chunk) for message, _ in bench.said))
    assert bench.backend.released == []
    bench.cancel(1)
    bench.cancel(2)
    bench.run_until_ended(1)
    assert bench.answers() == {3: (200, 2)}
    assert sorted(bench.backend.released) == [2, 10**9, 10**9 + 1]
    assert bench.thread.gauges.cancelled_rows == 2


def test_one_that_cannot_go_on_is_a_500_and_the_other_is_not_touched() -> None:
    bench = Bench()
    bench.ask(1, length=3, bad=True)
    bench.ask(2, length=3, stream=True)
    bench.run_until_ended(2)
    status, body = bench.answers()[1]
    assert (status, body["error"]["type"]) == (500, "server_error")
    assert "NaN or infinity" in body["error"]["message"]
    assert [body for message, body in bench.said if isinstance(message, Chunk)] == [b"1", b"2", b"3"]
    assert bench.thread.gauges.nan_outputs == 1
    assert bench.thread.is_alive()


def test_nan_in_a_vector_is_a_500_that_is_counted_and_the_thread_lives() -> None:
    bench = Bench()
    bench.backend.vector = [math.nan]
    bench.ask(1, Route.EMBEDDINGS)
    bench.run_until_ended(1)
    bench.backend.vector = [0.5]
    bench.ask(2, Route.EMBEDDINGS)
    bench.run_until_ended(2)
    assert bench.answers()[1][0] == 500
    assert bench.answers()[2][1]["data"][0]["embedding"] == [0.5]
    assert bench.thread.gauges.nan_outputs == 1


def test_what_no_except_exception_sees_is_a_500_too_and_the_thread_lives() -> None:
    bench = Bench()
    bench.ask(1, leave=True)
    bench.backend.vector = []
    bench.ask(2, Route.EMBEDDINGS)
    bench.ask(3, length=2)
    bench.run_until_ended(3)
    assert {exchange: status for exchange, (status, _) in bench.answers().items()} == {1: 500, 2: 500, 3: 200}
    assert bench.answers()[1][1]["error"]["message"] == "_Leave"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_wire_does_not_take_is_a_500_and_not_silence(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ drops the connection of a peer that sends more than was agreed, and what it sent."""
    monkeypatch.setattr("engine.device_thread.MAX_BODY_BYTES", 1)
    bench = Bench()
    bench.ask(1, length=12, stream=stream)
    bench.ask(2, length=9, stream=stream)
    bench.run_until_ended(2)
    said = bench.answers()
    assert said[1][0] == 500 and "expected an answer of at most" in said[1][1]["error"]["message"]
    assert (2 in said) != stream, "its neighbour is whole"
    assert sorted(bench.backend.released) == [9, 12]


def test_device_memory_is_read_for_the_heartbeat() -> None:
    bench = Bench()
    bench.ask(1, length=1)
    bench.run_until_ended(1)
    assert bench.thread.gauges.gpu_bytes == 7_000_000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_no_request_can_be_blamed_for_ends_the_process() -> None:
    bench = Bench()
    bench.ask(1, length=10**9)
    bench.run_until(lambda: bench.thread.gauges.gpu_bytes > 0)
    bench.backend.lost = True
    bench.run_until(lambda: bench.wire.abandoned)
    bench.thread.join(LONG_S)
    assert not bench.thread.is_alive()
