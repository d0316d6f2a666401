"""The golden check passes a sound model and refuses, for good and in a sentence, one that lies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from engine import golden
from engine.backends import answers, requests
from engine.backends.base import Backend, Generation, Job, LoadError, Row
from engine.backends.transformers import TransformersBackend
from engine.messages import Card, Route

Forward = Callable[[Sequence[Row]], list[list[float]]]


def unit(rows: Sequence[Row]) -> list[list[float]]:
    """A sound model: a unit vector that depends on the row alone."""
    return [[math.cos(len(row.data)), math.sin(len(row.data))] for row in rows]


@dataclasses.dataclass
class _Job(Job):
    asked: requests.EmbeddingsRequest
    rows: Sequence[Row]

    def answer(self, outputs: Sequence[Any]) -> bytes:
        return answers.embeddings_answer(self.asked, outputs, 1, "m")


class Model(Backend):
    """A backend that computes with any function."""

    max_num_seqs = 2
    max_num_batched_tokens = 64
    normalised = True

    def __init__(self, forward: Forward, **card: Any) -> None:
        self._forward = forward
        self._card = card

    def load(self) -> None: ...

    def card(self) -> Card:
        settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "dimensions": 2}
        return Card(
            artifact="m",
            engine="x",
            task="embed",
            threads=1,
            max_num_seqs=2,
            max_num_batched_tokens=64,
            **(settings | self._card),
        )

    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        asked = requests.parse_embeddings(body)
        return _Job(asked, [Row(len(text), text) for text in asked.inputs])

    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        return self._forward(rows)

    def golden(self) -> Sequence[bytes]:
        return [b'{"input":["a","bb","ccc"]}', b'{"input":"dddd"}']


class Known(Model):
    """A model that knows what its answers should be."""

    def __init__(self, forward: Forward, answers: Sequence[bytes]) -> None:
        super().__init__(forward)
        self._answers = answers

    def golden_answers(self) -> Sequence[bytes]:
        return self._answers


def failure(backend: Backend) -> str:
    with pytest.raises(LoadError) as caught:
        golden.check(backend)
    assert caught.value.final
    return str(caught.value)


def test_a_sound_model_without_a_reference_is_unverified() -> None:
    assert golden.check(Model(unit)) == "unverified"


def test_minilm_passes(minilm: TransformersBackend) -> None:
    assert golden.check(minilm) == "unverified"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_model_that_gives_no_numbers_fails(bad: float) -> None:
    assert "NaN or infinity" in failure(Model(lambda rows: [[bad, 0.0] for _ in rows]))


def test_a_model_that_changes_its_mind_fails() -> None:
    turns = iter(range(1000))

    def drifting(rows: Sequence[Row]) -> list[list[float]]:
        angle = 1e-3 * next(turns)
        return [[math.cos(angle), math.sin(angle)] for _ in rows]

    assert "disagree" in failure(Model(drifting))


def test_a_model_whose_answer_depends_on_its_neighbours_fails() -> None:
    def neighbourly(rows: Sequence[Row]) -> list[list[float]]:
        return [[math.cos(len(rows)), math.sin(len(rows))] for _ in rows]

    assert "disagree" in failure(Model(neighbourly))


def test_rounding_is_no_disagreement() -> None:
    turns = iter(range(1000))

    def rounding(rows: Sequence[Row]) -> list[list[float]]:
        return [[math.cos(1.0) + 1e-7 * next(turns), math.sin(1.0)] for _ in rows]

    assert golden.check(Model(rounding)) == "unverified"


def test_half_precision_may_differ_more() -> None:
    turns = iter(range(1000))

    def coarse(rows: Sequence[Row]) -> list[list[float]]:
        angle = 1e-3 * next(turns)
        return [[math.cos(angle), math.sin(angle)] for _ in rows]

    assert golden.check(Model(coarse, dtype="bfloat16")) == "unverified"


def test_vectors_of_another_length_than_the_card_says_fail() -> None:
    assert "expected vectors of 2 numbers, found 3" in failure(Model(lambda rows: [[1.0, 0.0, 0.0] for _ in rows]))


def test_vectors_that_should_have_unit_length_and_do_not_fail() -> None:
    assert "length 1, found 2" in failure(Model(lambda rows: [[2.0, 0.0] for _ in rows]))


def test_a_missing_output_fails() -> None:
    assert "2 rows gave 1 outputs" in failure(Model(lambda rows: [[1.0, 0.0]]))


def test_an_error_of_the_model_is_a_failure_with_its_name() -> None:
    def broken(rows: Sequence[Row]) -> list[list[float]]:
        raise ZeroDivisionError("weights are torn")

    assert "ZeroDivisionError: weights are torn" in failure(Model(broken))


def right_answers(shift: float = 0.0) -> list[bytes]:
    def answer(*lengths: int) -> bytes:
        vectors = [[math.cos(length) + shift, math.sin(length)] for length in lengths]
        asked = requests.EmbeddingsRequest(inputs=["x"] * len(lengths))
        return answers.embeddings_answer(asked, vectors, 1, "m")

    return [answer(1, 2, 3), answer(4)]


def test_a_known_answer_verifies() -> None:
    assert golden.check(Known(unit, right_answers())) == "verified"
    assert golden.check(Known(unit, right_answers(shift=5e-4))) == "verified"
    assert golden.check(Known(unit, [])) == "unverified"


def test_another_answer_than_the_known_one_fails() -> None:
    assert "not the known ones" in failure(Known(unit, right_answers(shift=5e-3)))


class _Story(Generation):
    """Says three words, the last one as told."""

    def __init__(self, ending: str) -> None:
        self.tokens = 1
        self.words = ["once", "upon", ending]
        self.told: list[str] = []

    def take(self) -> bytes | None:
        return None

    def answer(self) -> bytes:
        return answers.ChatWriter("m").whole(" ".join(self.told), "stop", answers.Usage.of(1, len(self.told)))


class Teller(Model):
    """A backend that generates; each story ends with the next of `endings`."""

    def __init__(self, endings: Sequence[str]) -> None:
        super().__init__(unit)
        self.endings = iter(endings)
        self.released = 0

    def prepare(self, route: Route, body: bytes, stream: bool) -> Generation:
        return _Story(next(self.endings))

    def step(self, generations: Sequence[Generation]) -> None:
        for story in generations:
            assert isinstance(story, _Story)
            story.told.append(story.words[len(story.told)])
            story.done = len(story.told) == len(story.words)

    def release(self, generation: Generation) -> None:
        self.released += 1

    def golden(self) -> Sequence[bytes]:
        return [msgspec.json.encode({"messages": []})]

    def golden_route(self) -> Route:
        return Route.CHAT


def test_a_generation_is_told_twice_and_must_be_the_same() -> None:
    teller = Teller(["a time", "a time"])
    assert golden.check(teller) == "unverified"
    assert teller.released == 2
    assert "'once upon a time' and 'once upon a mattress'" in failure(Teller(["a time", "a mattress"]))


def test_a_backend_without_golden_inputs_is_unverified() -> None:
    class Silent(Model):
        def golden(self) -> Sequence[bytes]:
            return ()

    assert golden.check(Silent(unit)) == "unverified"
