"""Rows that were computed before (spec 10): the same numbers, fewer forwards, and nothing kept that was not served."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends import answers, requests
from engine.backends.base import Backend, Generation, Job, Row
from engine.backends.transformers import TransformersBackend
from engine.device_thread import DeviceThread, Work
from engine.messages import Answer, Card, Route
from engine.row_cache import RowCache, weigh
from tests.engine.conftest import launch
from tests.engine.memory_wire import MemoryWire
from tests.engine.test_heads import QUERY, build, loaded

LONG_S = 60.0
TEXTS = ["", "short", "a text of some length, naïve café", "東京の天気は？ 🍜", "word " * 90, "A man is eating food."]


class Serving:
    """A device thread over a loaded backend, asked one request after another."""

    def __init__(self, backend: Backend, entries: int) -> None:
        self.wire = MemoryWire()
        self.thread = DeviceThread(launch(result_cache_entries=entries), self.wire, backend)
        self._number = 0
        self.thread.start()

    @property
    def counts(self) -> tuple[int, int]:
        """Rows computed, rows known."""
        return self.thread.gauges.rows, self.thread.gauges.cached_rows

    def together(self, route: Route, *bodies: dict[str, Any]) -> list[tuple[int, Any]]:
        """Requests that are handed over at once: status and answer of each, in order."""
        first = self._number + 1
        deadline = time.monotonic() + LONG_S
        with self.wire.changed:
            for body in bodies:
                self._number += 1
                self.wire.arrive(Work(self._number, route, False, json.dumps(body).encode(), deadline))
            assert self.wire.changed.wait_for(lambda: len(self._answers(first)) == len(bodies), LONG_S), self.wire.said
            answers = self._answers(first)
        return [answers[number] for number in range(first, self._number + 1)]

    def _answers(self, first: int) -> dict[int, tuple[int, Any]]:
        """What was said to the requests from that number on."""
        said = [(message, data) for message, data in self.wire.said if isinstance(message, Answer)]
        return {
            message.exchange: (message.status, json.loads(data or b"null"))
            for message, data in said
            if message.exchange >= first
        }

    def ask(self, route: Route, **body: Any) -> Any:
        """The answer to one request."""
        ((status, answer),) = self.together(route, body)
        assert status == 200, answer
        return answer


Serve = Callable[[Backend, int], Serving]


def test_embeddings_batched_padded_cached_and_alone_are_the_same(minilm: TransformersBackend) -> None:
    def vectors(answer: Any) -> list[list[float]]:
        return [row["embedding"] for row in answer["data"]]

    computing, caching = Serving(minilm, 0), Serving(minilm, 4096)
    alone = [vectors(computing.ask(Route.EMBEDDINGS, input=text))[0] for text in TEXTS]
    batched = computing.ask(Route.EMBEDDINGS, input=TEXTS)
    assert computing.counts == (2 * len(TEXTS), 0), "0 entries: everything is computed"

    first = caching.ask(Route.EMBEDDINGS, input=TEXTS[:3])
    assert caching.counts == (3, 0), "the golden check's inputs are not served, and not kept"
    mixed = caching.ask(Route.EMBEDDINGS, input=list(reversed(TEXTS)))
    assert caching.counts == (6, 3)
    cached = caching.ask(Route.EMBEDDINGS, input=TEXTS)
    assert caching.counts == (6, 9), "no row was computed twice"

    for answer in (vectors(batched), vectors(cached), vectors(mixed)[::-1]):
        assert np.abs(np.array(answer) - np.array(alone)).max() < 1e-5
    assert vectors(cached)[:3] == vectors(first), "the very bits that were served"
    assert cached["usage"] == batched["usage"], "tokens are counted as if they had been read"
    halved = caching.ask(Route.EMBEDDINGS, input=TEXTS, encoding_format="base64")
    assert caching.counts == (6, 15) and len(halved["data"]) == len(TEXTS), "the form is the answer's, not the row's"


def test_pairs_and_classes_that_are_cached_are_those_that_were_computed(tmp_path: Path) -> None:
    documents = ["330 metres", "made of iron", ""]
    scores = loaded(build(tmp_path / "scores", "bert", ["score"]))
    computing, caching = Serving(scores, 0), Serving(scores, 64)
    expected = computing.ask(Route.RERANK, query=QUERY, documents=documents)["results"]
    caching.ask(Route.RERANK, query=QUERY, documents=documents[1:])
    cached = caching.ask(Route.RERANK, query=QUERY, documents=documents)["results"]
    assert caching.counts == (3, 2)
    assert [row["index"] for row in cached] == [row["index"] for row in expected]
    for row, other in zip(cached, expected, strict=True):
        assert row["relevance_score"] == pytest.approx(other["relevance_score"], abs=1e-5)
    caching.ask(Route.RERANK, query="another one", documents=documents)
    assert caching.counts == (6, 2), "another query: other rows"

    moods = loaded(build(tmp_path / "moods", "roberta", ["calm", "cross"]))
    caching = Serving(moods, 64)
    first = caching.ask(Route.CLASSIFY, input=documents)
    again = caching.ask(Route.CLASSIFY, input=documents)
    assert again["data"] == first["data"] and again["usage"] == first["usage"] and caching.counts == (3, 3)


# ------------------------------------------------------------------------------------------------ what is kept


class _Doubling(Backend):
    """Doubles numbers; fails for a forward with 13 in it, and gives NaN the first time that it sees 7."""

    max_num_seqs = 8
    max_num_batched_tokens = 8

    def __init__(self) -> None:
        self.forwards: list[list[float]] = []
        self._sound = False
        self._room = np.zeros((8, 1))

    def load(self) -> None: ...

    def card(self) -> Card:
        limits = {"max_num_seqs": 8, "max_num_batched_tokens": 8}
        return Card(
            artifact="m", engine="x", task="t", device="cpu", dtype="d", threads=1, deterministic=True, **limits
        )

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        asked = json.loads(body)
        return _Numbers([Row(1, float(one), one if asked.get("known", True) else None) for one in asked["input"]])

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        """Views of one array that the next forward overwrites."""
        self.forwards.append([row.data for row in rows])
        if 13.0 in self.forwards[-1]:
            raise ValueError("unlucky")
        for place, row in enumerate(rows):
            self._room[place] = 2 * row.data
        if 7.0 in self.forwards[-1] and not self._sound:
            self._sound = True
            self._room[:] = math.nan
        return [self._room[place] for place in range(len(rows))]


class _Numbers(Job):
    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def answer(self, outputs: Sequence[Any]) -> bytes:
        inputs: list[Any] = [str(row.data) for row in self.rows]
        vectors = [output.tolist() for output in outputs]
        return answers.embeddings_answer(requests.EmbeddingsRequest(inputs=inputs), vectors, len(vectors), "m")


def doubled(answer: Any) -> list[float]:
    return [row["embedding"][0] for row in answer["data"]]


def test_an_output_that_is_overwritten_later_was_kept_as_it_was_served() -> None:
    serving = Serving(_Doubling(), 16)
    assert doubled(serving.ask(Route.EMBEDDINGS, input=[1, 2])) == [2, 4]
    assert doubled(serving.ask(Route.EMBEDDINGS, input=[5, 6])) == [10, 12]
    assert doubled(serving.ask(Route.EMBEDDINGS, input=[2, 6, 1, 4])) == [4, 12, 2, 8]
    assert serving.counts == (5, 3)


def test_what_was_no_answer_is_computed_again() -> None:
    backend = _Doubling()
    serving = Serving(backend, 16)
    ((status, _),) = serving.together(Route.EMBEDDINGS, {"input": [7, 8]})
    assert status == 500
    assert doubled(serving.ask(Route.EMBEDDINGS, input=[7, 8])) == [14, 16]
    assert serving.counts == (4, 0)


def test_a_poison_row_beside_known_ones_fails_alone() -> None:
    serving = Serving(_Doubling(), 16)
    serving.ask(Route.EMBEDDINGS, input=[1, 2])
    poisoned, good = serving.together(Route.EMBEDDINGS, {"input": [1, 13]}, {"input": [3, 2]})
    assert poisoned[0] == 500 and "unlucky" in poisoned[1]["error"]["message"]
    assert good[0] == 200 and doubled(good[1]) == [6, 4]


def test_rows_without_a_key_are_always_computed() -> None:
    serving = Serving(_Doubling(), 16)
    for _ in range(2):
        assert doubled(serving.ask(Route.EMBEDDINGS, input=[1], known=False)) == [2]
    assert serving.counts == (2, 0)


def test_the_rows_of_a_cache_stay_within_its_bytes() -> None:
    row = Row(1, "x", b"k" * 100)
    vector = np.ones(1000, np.float32)
    assert 4000 < weigh(vector) < 4400
    assert weigh({"good": 0.25, "bad": 0.75}) > weigh([0.25, 0.75]) > 2 * weigh(0.25)
    cache = RowCache(8, most_bytes=9500)
    for name in "abc":
        cache.keep(Row(1, name, name), vector)
    assert cache.find(Row(1, "a", "a")) is None, "two fit"
    assert cache.find(Row(1, "c", "c")) is not vector and np.array_equal(cache.find(Row(1, "c", "c")), vector)
    assert cache.find(row) is None
