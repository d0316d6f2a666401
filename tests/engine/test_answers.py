"""Writing answers: OpenAI's shapes, floats that come back bit for bit, and never NaN in JSON."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.backends import answers, requests
from engine.backends.embed import Vectors, short_decimals

BAD = [math.nan, math.inf, -math.inf]


def embeddings(body: bytes, vectors: list[list[float]]) -> dict[str, object]:
    answer: dict[str, object] = json.loads(
        answers.embeddings_answer(requests.parse_embeddings(body), vectors, 5, "served")
    )
    return answer


def test_an_embeddings_answer_has_openais_shape() -> None:
    assert embeddings(b'{"input":["a","b"],"model":"asked"}', [[0.5, 1.0], [0.0, -2.0]]) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [0.0, -2.0]},
        ],
        "model": "asked",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }


def test_a_caller_that_names_no_model_gets_the_served_name() -> None:
    assert embeddings(b'{"input":"a"}', [[1.0]])["model"] == "served"


def test_base64_holds_little_endian_float32() -> None:
    vector = [0.1, -2.5, 3e-8]
    answer = answers.embeddings_answer(
        requests.parse_embeddings(b'{"input":"a","encoding_format":"base64"}'), [vector], 1, "m"
    )
    data = json.loads(answer)["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(data), "<f4").tolist() == np.array(vector, "f4").tolist()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("form", ["float", "base64"])
def test_a_number_that_is_not_finite_is_the_engines_error(bad: float, form: str) -> None:
    asked = requests.parse_embeddings(b'{"input":"a","encoding_format":"%s"}' % form.encode())
    with pytest.raises(answers.OutputError, match="NaN or infinity"):
        answers.embeddings_answer(asked, [[0.5, bad, 1.0]], 1, "m")


def test_finite_numbers_whose_sum_is_not_are_fine() -> None:
    assert embeddings(b'{"input":"a"}', [[1.7e308, 1.7e308]])["data"]


def test_a_wrong_count_of_outputs_is_the_engines_error() -> None:
    with pytest.raises(answers.OutputError, match="1 outputs where 2"):
        embeddings(b'{"input":["a","b"]}', [[1.0]])


finite_float32 = arrays.arrays(np.float32, (3, 7), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(vectors=finite_float32)
def test_short_decimals_are_the_same_float32(vectors: Vectors) -> None:
    written = np.array(json.loads(json.dumps(short_decimals(vectors))), np.float32)
    assert written.tobytes() == (vectors + np.float32(0)).tobytes() or np.array_equal(written, vectors)


def test_short_decimals_are_short() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((8, 384)).astype(np.float32) / np.float32(20)
    assert short_decimals(np.array([[0.1, 0.25, -1e-9, 123456.7, 0.0]], np.float32)) == [
        [0.1, 0.25, -1e-9, 123456.7, 0.0]
    ]
    assert len(json.dumps(short_decimals(vectors))) < 0.7 * len(json.dumps(vectors.tolist()))


def test_short_decimals_let_nan_and_infinity_through_to_be_refused() -> None:
    (row,) = short_decimals(np.array([[math.nan, math.inf, -math.inf, 0.1]], np.float32))
    assert math.isnan(row[0])
    assert row[1:] == [math.inf, -math.inf, 0.1]


def test_a_classify_answer_has_vllms_shape() -> None:
    asked = requests.parse_classify(b'{"input":["a","b"]}')
    answer = json.loads(answers.classify_answer(asked, [[0.9, 0.1], [0.2, 0.8]], ["no", "yes"], 6, "served"))
    assert answer.pop("id").startswith("classify-")
    assert answer.pop("created") > 1_600_000_000
    assert answer == {
        "object": "list",
        "model": "served",
        "data": [
            {"index": 0, "label": "no", "probs": [0.9, 0.1], "num_classes": 2},
            {"index": 1, "label": "yes", "probs": [0.2, 0.8], "num_classes": 2},
        ],
        "usage": {"prompt_tokens": 6, "completion_tokens": 0, "total_tokens": 6},
    }


def test_rerank_puts_the_best_first_and_keeps_top_n() -> None:
    asked = requests.parse_rerank(b'{"query":"q","documents":["a","b","c"],"top_n":2,"model":"m"}')
    answer = json.loads(answers.rerank_answer(asked, [0.1, 0.7, 0.1], 9, "served"))
    assert answer.pop("id").startswith("rerank-")
    assert answer == {
        "model": "m",
        "usage": {"total_tokens": 9},
        "results": [
            {"index": 1, "relevance_score": 0.7, "document": {"text": "b"}},
            {"index": 0, "relevance_score": 0.1, "document": {"text": "a"}},
        ],
    }


@pytest.mark.parametrize("bad", BAD)
def test_scores_and_probabilities_must_be_finite(bad: float) -> None:
    with pytest.raises(answers.OutputError):
        answers.rerank_answer(requests.parse_rerank(b'{"query":"q","documents":["a"]}'), [bad], 1, "m")
    with pytest.raises(answers.OutputError):
        answers.classify_answer(requests.parse_classify(b'{"input":"a"}'), [[bad, 0.5]], ["a", "b"], 1, "m")


def events(stream: bytes) -> list[dict[str, object]]:
    """The JSON of a stream's events, which must be whole and end with [DONE]."""
    *lines, done, rest = stream.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


USAGE = answers.Usage.of(3, 2)


def test_a_chat_stream_opens_with_the_role_and_ends_with_a_reason() -> None:
    writer = answers.ChatWriter("m")
    stream = writer.first() + writer.piece("Grüße") + writer.last("length", USAGE)
    read = events(stream)
    assert [event["choices"][0]["delta"] for event in read] == [  # type: ignore[index]
        {"role": "assistant", "content": ""},
        {"content": "Grüße"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in read] == [None, None, "length"]  # type: ignore[index]
    assert {event["object"] for event in read} == {"chat.completion.chunk"}
    assert len({event["id"] for event in read}) == 1
    assert not any("usage" in event for event in read)


def test_usage_comes_in_an_event_of_its_own_where_it_was_asked_for() -> None:
    writer = answers.ChatWriter("m", include_usage=True)
    read = events(writer.first() + writer.piece("x") + writer.last("stop", USAGE))
    assert [event["usage"] for event in read[:-1]] == [None, None, None]
    assert read[-1]["choices"] == []
    assert read[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_a_completion_stream_has_text_and_no_opening() -> None:
    writer = answers.CompletionWriter("m")
    read = events(writer.first() + writer.piece("x") + writer.last("stop", USAGE))
    assert [event["choices"][0]["text"] for event in read] == ["x", ""]  # type: ignore[index]
    assert {event["object"] for event in read} == {"text_completion"}


def test_unary_answers_have_openais_shape() -> None:
    chat = json.loads(answers.ChatWriter("m").whole("hi", "stop", USAGE))
    assert chat["object"] == "chat.completion"
    assert chat["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi"},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    text = json.loads(answers.CompletionWriter("m").whole("hi", "length", USAGE))
    assert text["object"] == "text_completion"
    assert text["choices"] == [{"index": 0, "text": "hi", "finish_reason": "length", "logprobs": None}]
    assert text["usage"]["total_tokens"] == 5


def test_requests_answers_artifacts_and_golden_check_are_light() -> None:
    light = ("engine.backends.requests", "engine.backends.answers", "engine.backends.artifacts", "engine.golden")
    code = f"import {', '.join(light)}, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "transformers", "tokenizers", "huggingface_hub"} & set(loaded)
