"""Bodies of a load: valid, of the wanted lengths, and no two texts alike."""

from __future__ import annotations

import json

import pytest

from engine.backends import requests
from ui.bench.bodies import MIX, ROUTES, Bodies, Shape


def texts(shape: Shape, count: int, first: int = 0) -> list[str]:
    bodies = Bodies(shape, first)
    found: list[str] = []
    for _ in range(count):
        asked = json.loads(bodies.make())["input"]
        found += [asked] if isinstance(asked, str) else asked
    return found


@pytest.mark.parametrize("tokens", [(1, 1), (2, 8), (4, 256)])
@pytest.mark.parametrize("inputs", [1, 8])
def test_no_two_texts_are_alike_so_that_no_cache_answers(tokens: tuple[int, int], inputs: int) -> None:
    found = texts(Shape(tokens=tokens, inputs=inputs), 4000)
    assert len(set(found)) == len(found) == 4000 * inputs


def test_texts_of_the_next_run_are_others() -> None:
    shape = Shape(tokens=(4, 16))
    assert not set(texts(shape, 1000)) & set(texts(shape, 1000, first=1000))


def test_beginnings_differ_too_so_that_no_prefix_is_reused() -> None:
    found = texts(Shape(tokens=(64, 64)), 500)
    assert len({text.split()[0] for text in found}) == 500


def test_lengths_are_an_even_mix_and_the_same_in_each_run() -> None:
    one, other = (texts(Shape(tokens=(4, 256)), MIX, first) for first in (0, 77777))
    lengths = [len(text.split()) for text in one]
    assert lengths == [len(text.split()) for text in other]
    assert (min(lengths), max(lengths)) == (4, 256)
    assert abs(sum(lengths) / MIX - 130) < 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_reads_every_kind_of_body(route: str, stream: bool) -> None:
    body = Bodies(Shape(route, 'a "model"', (4, 9), inputs=3, stream=stream, max_tokens=5), 0).make()
    match route:
        case "embeddings":
            assert len(requests.parse_embeddings(body).inputs) == 3
        case "classify":
            assert len(requests.parse_classify(body).inputs) == 3
        case "rerank":
            assert len(requests.parse_rerank(body).documents) == 3
        case "completions":
            completion = requests.parse_completion(body)
            assert (completion.sampling.max_tokens, completion.include_usage) == (5, stream)
        case "chat":
            chat = requests.parse_chat(body)
            assert (chat.model, chat.sampling.max_tokens, chat.include_usage) == ('a "model"', 5, stream)
