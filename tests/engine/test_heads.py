"""Classifiers and rerankers: the numbers of plain transformers code, and the names and order that its files say."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from engine import golden
from engine.backends.answers import NotFiniteError
from engine.backends.artifacts import resolve
from engine.backends.base import Job, LoadError, RequestError
from engine.backends.heads import HeadTokeniser
from engine.backends.tasks import task_of
from engine.backends.transformers import TransformersBackend
from engine.messages import Route
from tests.engine.conftest import MINILM, Plain, launch
from tests.engine.small import save_model, save_pair_tokenizer, small

TEXTS = ["", "short", "a text of some length, with naïve café in it", "東京 🙂", "long " * 50]
QUERY = "how tall is the tower?"

FAMILIES = {
    "bert": (BertForSequenceClassification, BertConfig),
    "roberta": (RobertaForSequenceClassification, RobertaConfig),
    "distilbert": (DistilBertForSequenceClassification, DistilBertConfig),
}


def build(folder: Path, family: str, labels: Sequence[str], **more: Any) -> Path:
    model_class, config_class = FAMILIES[family]
    names = dict(enumerate(labels))
    if family == "roberta":
        more["pad_token_id"] = 1  # it counts positions from there on
    config = config_class(**small(id2label=names, label2id={name: index for index, name in names.items()}, **more))
    save_pair_tokenizer(folder, *(["token_type_ids"] if family == "bert" else []))
    return save_model(folder, model_class, config)


def loaded(folder: Path, **changes: Any) -> TransformersBackend:
    backend = TransformersBackend(launch(artifact=str(folder), **changes))
    backend.load()
    return backend


def answer(backend: TransformersBackend, route: Route, *, one_by_one: bool = False, **body: Any) -> dict[str, Any]:
    job = backend.prepare(route, json.dumps(body).encode(), False)
    assert isinstance(job, Job)
    outputs = [backend.forward([row])[0] for row in job.rows] if one_by_one else backend.forward(job.rows)
    read: dict[str, Any] = json.loads(job.answer(outputs))
    return read


class Counting:
    """A tokeniser that notes how much it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.characters = 0
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, *texts: str, **how: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode(*texts, **how)


def reading(limit: int) -> tuple[Tokenizer, HeadTokeniser, Counting]:
    """MiniLM's tokeniser as it cuts by itself, ours around it, and what that one gave it to read."""
    file = str(resolve(MINILM).path / "tokenizer.json")
    plain = Tokenizer.from_file(file)
    plain.no_padding()
    plain.enable_truncation(max_length=limit)
    counting: Any = Counting(Tokenizer.from_file(file))
    return plain, HeadTokeniser(counting, limit), counting


def test_pairs_are_cut_as_the_tokeniser_itself_would() -> None:
    texts = ["", "a", "one two three four five", "[SEP] 東京 naïve", "many words here " * 3, "x y z " * 12]
    for limit in (8, 9, 24, 31):
        plain, ours, _ = reading(limit)
        pairs = [(text, other) for text in texts for other in (None, *texts)]
        expected = [plain.encode(text) if other is None else plain.encode(text, other) for text, other in pairs]
        found = [row.data for row in ours.rows(pairs, "input")]
        assert found == [(read.ids, read.type_ids) for read in expected]


def test_of_long_texts_no_more_is_read_than_can_matter() -> None:
    """Cut by the tokeniser, such a pair would be kept in 400 000 pieces, and take minutes and gigabytes."""
    _, ours, counting = reading(64)
    long = " ".join(f"{number} unverständliche Wörter, {'x' * (number % 130)}" for number in range(5000))
    pairs = [(long, None), (long, long), ("short", long), (long, "short")]
    rows = ours.rows(pairs, "input")
    assert counting.characters < 20_000 < len(long)
    plain, _, _ = reading(64)
    begin = long[:2000]
    expected = [
        plain.encode(begin),
        plain.encode(begin, begin),
        plain.encode("short", begin),
        plain.encode(begin, "short"),
    ]
    assert [row.data for row in rows] == [(read.ids, read.type_ids) for read in expected]


def plain_logits(folder: Path, texts: Sequence[Any]) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = []
    with torch.no_grad():
        for text in texts:
            read = tokenizer([text], truncation=True, return_tensors="pt")
            rows.append(model(**read).logits[0])
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_classes_are_those_of_plain_transformers_code(family: str, one_by_one: bool, tmp_path: Path) -> None:
    labels = ["good", "bad", "ugly"]
    folder = build(tmp_path, family, labels)
    backend = loaded(folder)
    found = answer(backend, Route.CLASSIFY, one_by_one=one_by_one, input=TEXTS)
    expected = torch.softmax(plain_logits(folder, TEXTS), -1).numpy()
    probabilities = np.array([row["probs"] for row in found["data"]])
    assert np.abs(probabilities - expected).max() < 1e-5
    assert [row["label"] for row in found["data"]] == [labels[index] for index in expected.argmax(1)]
    assert found["usage"]["completion_tokens"] == 0 and found["model"] == "primary"
    assert len({tuple(row) for row in probabilities.round(4)}) == len(TEXTS), "the model tells texts apart"


@pytest.mark.parametrize(
    ("problem", "activation"),
    [("multi_label_classification", torch.sigmoid), ("regression", lambda logits: logits)],
)
def test_the_problem_type_says_what_becomes_of_the_logits(problem: str, activation: Any, tmp_path: Path) -> None:
    folder = build(tmp_path, "bert", ["a", "b"], problem_type=problem)
    found = answer(loaded(folder), Route.CLASSIFY, input=TEXTS)
    expected = activation(plain_logits(folder, TEXTS)).numpy()
    assert np.abs(np.array([row["probs"] for row in found["data"]]) - expected).max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_cross_encoder_scores_like_plain_transformers_code(family: str, one_by_one: bool, tmp_path: Path) -> None:
    folder = build(tmp_path, family, ["score"])
    backend = loaded(folder)
    found = answer(backend, Route.RERANK, one_by_one=one_by_one, query=QUERY, documents=TEXTS)
    expected = torch.sigmoid(plain_logits(folder, [(QUERY, text) for text in TEXTS]))[:, 0].numpy()
    scores = {row["index"]: row["relevance_score"] for row in found["results"]}
    assert max(abs(scores[index] - expected[index]) for index in range(len(TEXTS))) < 1e-5
    assert [row["index"] for row in found["results"]] == sorted(scores, key=lambda index: -scores[index])


@pytest.mark.parametrize(
    "said",
    [
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
    ],
)
def test_the_activation_of_a_cross_encoder_is_the_one_its_config_names(said: dict[str, Any], tmp_path: Path) -> None:
    folder = build(tmp_path, "bert", ["score"], **said)
    found = answer(loaded(folder), Route.RERANK, query=QUERY, documents=TEXTS[1:2])
    logit = float(plain_logits(folder, [(QUERY, TEXTS[1])])[0, 0])
    assert found["results"][0]["relevance_score"] == pytest.approx(logit, abs=1e-5)


def test_an_unknown_activation_or_more_than_one_logit_is_refused(tmp_path: Path) -> None:
    folder = build(tmp_path / "a", "bert", ["score"], sbert_ce_default_activation_function="torch.nn.Softsign")
    with pytest.raises(LoadError, match="expected one of Sigmoid, Identity, Tanh, found"):
        loaded(folder)
    with pytest.raises(LoadError, match="one logit, found 2"):
        loaded(build(tmp_path / "b", "bert", ["x", "y"]), task="rerank")


def test_auto_finds_the_task_by_the_number_of_labels(tmp_path: Path) -> None:
    assert task_of(build(tmp_path / "one", "bert", ["score"])) == "rerank"
    assert task_of(build(tmp_path / "two", "roberta", ["x", "y"])) == "classify"


def test_both_pass_the_golden_check_and_refuse_other_routes(tmp_path: Path) -> None:
    for name, labels in (("classify", ["x", "y"]), ("rerank", ["score"])):
        backend = loaded(build(tmp_path / name, "bert", labels))
        assert golden.check(backend) == "unverified"
        assert (backend.card().task, backend.card().dimensions) == (name, None)
        with pytest.raises(RequestError) as caught:
            backend.prepare(Route.EMBEDDINGS, b"{}", False)
        assert caught.value.status == 404


def test_nan_in_a_head_is_an_error_and_no_json(tmp_path: Path) -> None:
    backend = loaded(build(tmp_path, "bert", ["x", "y"]))
    job = backend.prepare(Route.CLASSIFY, b'{"input":"a"}', False)
    assert isinstance(job, Job)
    with pytest.raises(NotFiniteError, match="NaN or infinity"):
        job.answer([[math.nan, 0.5]])


def test_an_embedding_model_reranks_by_cosine_when_asked_and_says_so(
    plain: Plain, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = TransformersBackend(launch(task="rerank"))
    backend.load()
    assert "scored by the cosine of embeddings" in capsys.readouterr().out
    documents = ["The Eiffel Tower is 330 m tall.", "Cats sleep a lot.", "It has a height of 330 metres."]
    found = answer(backend, Route.RERANK, query=QUERY, documents=documents, top_n=2)
    vectors = plain([QUERY, *documents])
    expected = vectors[1:] @ vectors[0]
    assert [row["index"] for row in found["results"]] == np.argsort(-expected)[:2].tolist()
    for row in found["results"]:
        assert row["relevance_score"] == pytest.approx(float(expected[row["index"]]), abs=1e-5)
    assert golden.check(backend) == "unverified"


def test_the_card_of_an_embedding_model_that_reranks_says_how_and_a_cross_encoders_does_not(tmp_path: Path) -> None:
    cosine = TransformersBackend(launch(task="rerank"))
    cosine.load()
    assert cosine.card().scoring == "cosine of embeddings"
    assert loaded(build(tmp_path, "bert", ["score"])).card().scoring is None
