"""The real MiniLM: the same vectors as plain transformers code, however they are asked for and batched."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.backends.base import Job, LoadError, RequestError, Row
from engine.backends.encoders import BertEncoder
from engine.backends.transformers import TransformersBackend
from engine.messages import Route
from tests.engine.conftest import Plain, Vectors, embed, launch

WORDS = [
    *["the", "of", "and", "running", "don't", "e-mail", "3.14", "...", "hello\tthere"],
    *["世界", "Ünïcode", "🙂", "ß", "İstanbul", "ﬁ", "á", "a\u0300", "日本語テキスト", "Привет", "мир"],
    *["supercalifragilisticexpialidocious", "[CLS]", "[MASK]", "##ing", "<s>"],
]


def mixed_texts() -> list[str]:
    """Texts of 0 to 600 words, in no order of length, and some that tokenisers stumble over."""
    rng = random.Random(7)
    lengths = [0, 1, 3, 400, 13, 5, 90, 21, 3, 34, 5]
    texts = [" ".join(rng.choice(WORDS) for _ in range(length)) for length in lengths]
    return [*texts, "x" * 5000, " " * 9000 + "after a gap", "a " * 5000, "\x00\u200b"]


def input_body(texts: Any, **fields: Any) -> bytes:
    return msgspec.json.encode({"input": texts} | fields)


def test_vectors_equal_those_of_plain_transformers_code(minilm: TransformersBackend, plain: Plain) -> None:
    texts = mixed_texts()
    _, vectors = embed(minilm, input_body(texts))
    assert np.abs(vectors - plain(texts)).max() < 1e-5


def test_a_row_in_a_batch_equals_the_row_alone(minilm: TransformersBackend) -> None:
    job, together = embed(minilm, input_body(mixed_texts()))
    alone = np.stack([minilm.forward([row])[0] for row in job.rows])
    assert np.abs(together - alone).max() < 1e-5


def test_rows_of_several_requests_share_a_forward(minilm: TransformersBackend) -> None:
    first, of_first = embed(minilm, input_body(["one text", "another and longer text"]))
    second, of_second = embed(minilm, input_body("a third"))
    rows = [first.rows[0], second.rows[0], first.rows[1]]
    shared = np.stack(minilm.forward(rows))
    assert np.abs(shared - np.stack([of_first[0], of_second[0], of_first[1]])).max() < 1e-5


@pytest.fixture(scope="module")
def through_transformers() -> TransformersBackend:
    backend = TransformersBackend(launch(options={"encoder": "transformers"}))
    backend.load()
    return backend


def test_the_lean_encoder_equals_transformers_own(
    minilm: TransformersBackend, through_transformers: TransformersBackend
) -> None:
    assert isinstance(minilm._task._encoder, BertEncoder)  # type: ignore[attr-defined]
    assert not isinstance(through_transformers._task._encoder, BertEncoder)  # type: ignore[attr-defined]
    body = input_body(mixed_texts())
    (lean_job, lean), (job, vectors) = embed(minilm, body), embed(through_transformers, body)
    assert [row.data for row in lean_job.rows] == [row.data for row in job.rows]
    assert np.abs(lean - vectors).max() < 1e-5


def test_padding_changes_nothing_for_transformers_own_encoder(
    through_transformers: TransformersBackend,
) -> None:
    job, together = embed(through_transformers, input_body(mixed_texts()[:8]))
    alone = np.stack([through_transformers.forward([row])[0] for row in job.rows])
    assert np.abs(together - alone).max() < 1e-5


def test_an_answer_has_the_vectors_exactly_in_both_encodings(minilm: TransformersBackend) -> None:
    texts = ["Hello world", "Bye"]
    job, vectors = embed(minilm, input_body(texts, model="asked"))
    answer = json.loads(job.answer(list(vectors)))
    read = np.array([item["embedding"] for item in answer["data"]], np.float32)
    assert np.array_equal(read, vectors)
    assert answer["model"] == "asked"
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    job, _ = embed(minilm, input_body(texts, encoding_format="base64"))
    packed = json.loads(job.answer(list(vectors)))["data"]
    assert [base64.b64decode(item["embedding"]) for item in packed] == [vector.tobytes() for vector in vectors]


def test_the_served_name_is_the_deployments(minilm: TransformersBackend) -> None:
    job, vectors = embed(minilm, input_body("x"))
    assert json.loads(job.answer(list(vectors)))["model"] == "primary"


def test_vectors_have_unit_length(minilm: TransformersBackend) -> None:
    _, vectors = embed(minilm, input_body(mixed_texts()))
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6


@pytest.mark.parametrize("ids", [[7592, 2088], [101, 7592, 2088, 102]])
def test_token_ids_equal_their_text_with_and_without_special_tokens(
    minilm: TransformersBackend, ids: list[int]
) -> None:
    _, of_text = embed(minilm, input_body("hello world"))
    job, of_ids = embed(minilm, input_body(ids))
    assert job.rows[0].data == [101, 7592, 2088, 102]
    assert np.array_equal(of_text, of_ids)


def test_long_inputs_are_cut_at_the_models_256_tokens(minilm: TransformersBackend) -> None:
    job, _ = embed(minilm, input_body(["word " * 1000]))
    by_ids, _ = embed(minilm, input_body([[2773] * 1000]))
    assert [job.rows[0].tokens, by_ids.rows[0].tokens] == [256, 256]
    assert job.rows[0].data == by_ids.rows[0].data


def test_a_text_of_many_pages_costs_no_more_than_its_first(minilm: TransformersBackend) -> None:
    tokeniser = minilm._task._tokeniser  # type: ignore[attr-defined]
    text = "Lorem ipsum, dolor sit amet. " * 20_000
    assert tokeniser.encode([text]) == tokeniser.encode([text[:20_000]])
    gap = " " * 500_000 + text
    assert tokeniser.encode([gap]) == tokeniser.encode([text])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (input_body([1, 30522]), "input[0]"),
        (input_body("a", dimensions=128), "dimensions"),
        (b'{"input":"\\ud800"}', "input"),
    ],
)
def test_what_this_model_cannot_do_is_a_400_with_the_field(
    minilm: TransformersBackend, body: bytes, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        minilm.prepare(Route.EMBEDDINGS, body, False)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_models_own_dimensions_may_be_asked_for(minilm: TransformersBackend) -> None:
    assert isinstance(minilm.prepare(Route.EMBEDDINGS, input_body("a", dimensions=384), False), Job)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS, Route.CLASSIFY, Route.RERANK])
def test_another_route_is_a_404(minilm: TransformersBackend, route: Route) -> None:
    with pytest.raises(RequestError) as caught:
        minilm.prepare(route, b"{}", False)
    assert caught.value.status == 404


def test_the_card_says_what_was_loaded(minilm: TransformersBackend) -> None:
    card = minilm.card()
    assert (card.task, card.dimensions, card.max_model_len, card.dtype) == ("embed", 384, 256, "float32")
    assert card.weights_digest is not None
    assert card.versions["torch"]
    assert card.max_num_seqs > 0 and card.max_num_batched_tokens >= 256


def test_limits_that_are_set_are_used_and_adopted_with_a_new_spec(minilm: TransformersBackend) -> None:
    backend = TransformersBackend(launch(max_num_seqs=3, max_num_batched_tokens=77))
    assert (backend.max_num_seqs, backend.max_num_batched_tokens) == (3, 77)
    backend.adopt(launch(max_num_seqs=5, replica="primary/1"))
    assert backend.max_num_seqs == 5


def loading(**changes: Any) -> LoadError:
    with pytest.raises(LoadError) as caught:
        TransformersBackend(launch(**changes)).load()
    return caught.value


def test_a_task_that_does_not_exist_says_which_do() -> None:
    error = loading(task="translate")
    assert error.final and "expected auto or one of embed, classify, rerank, generate" in str(error)


def test_a_wrong_dtype_device_or_engine_argument_is_refused_with_what_is_allowed() -> None:
    assert "unknown field `encoding`" in str(loading(options={"encoding": "fast"}))
    assert "expected auto or one of float32" in str(loading(dtype="int3"))
    assert "expected cpu, cuda:N" in str(loading(device="tpu:0"))


def test_max_model_len_goes_beyond_the_models_habit_but_not_its_positions() -> None:
    backend = TransformersBackend(launch(max_model_len=512))
    backend.load()
    assert embed(backend, input_body("word " * 1000))[0].rows[0].tokens == 512
    assert "expected at most 512" in str(loading(max_model_len=513))


def test_any_rows_give_one_vector_each(minilm: TransformersBackend) -> None:
    vectors: list[Vectors] = list(minilm.forward([Row(3, [101, 7592, 102])] * 5))
    assert np.array_equal(np.stack(vectors), np.stack([vectors[0]] * 5))


def test_bfloat16_is_served_by_the_lean_encoder_close_to_float32(minilm: TransformersBackend) -> None:
    halved = TransformersBackend(launch(dtype="bfloat16"))
    halved.load()
    assert isinstance(halved._task._encoder, BertEncoder)  # type: ignore[attr-defined]
    assert halved.card().dtype == "bfloat16"
    body = input_body(mixed_texts())
    (_, found), (_, exact) = embed(halved, body), embed(minilm, body)
    assert (found * exact).sum(1).min() > 0.999
    assert 1e-5 < np.abs(found - exact).max() < 1e-2
