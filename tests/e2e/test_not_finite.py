"""NaN from real models: a 500 with valid JSON for the request it belongs to, counted; nobody else is touched."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from tests.engine.small import save_byte_tokenizer, save_model, small
from tests.engine.test_heads import build
from tests.support import LONG_S, Running

CONFIG = """
global:
  model_catalog:
    deployments:
      moods:
        artifact: {moods}
        device: cpu
      talks:
        artifact: {talks}
        device: cpu
stoker: {{listen: "127.0.0.1:0"}}
"""
SICK = "~"
"""The one character that these models answer with NaN."""


def poison(folder: Path, embeddings: str) -> Path:
    """Make the vector of one token NaN."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    token = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(SICK)
    weights[embeddings][token] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("models")
    moods = build(folder / "moods", "bert", ["calm", "cross"])
    talks = folder / "talks"
    save_byte_tokenizer(talks)
    save_model(talks, LlamaForCausalLM, LlamaConfig(**small(num_key_value_heads=2)))
    paths = {
        "moods": poison(moods, "bert.embeddings.word_embeddings.weight"),
        "talks": poison(talks, "model.embed_tokens.weight"),
    }
    with Running(tmp_path_factory.mktemp("served"), CONFIG.format(**paths)) as running:
        running.wait_ready(2, limit_s=100)
        yield running


def wait_counted(running: Running, replica: str, count: int) -> None:
    """Until the metrics say so many answers with NaN of that replica; heartbeats carry them."""
    deadline = time.monotonic() + LONG_S
    line = rf'stoker_nan_outputs_total\{{deployment="\w+",replica="{replica}"\}} (\S+)'
    while float(re.findall(line, running.get("/metrics").body.decode())[0]) != count:
        assert time.monotonic() < deadline, running.get("/metrics").body.decode()


def test_nan_of_a_classifier_is_a_500_for_its_request_alone(served: Running) -> None:
    pid = served.replica("moods/0").pid
    texts = [SICK if number % 4 == 0 else "x" * number for number in range(12)]
    answers = served.together(
        lambda number: served.post_until_taken("/v1/classify", {"model": "moods", "input": [texts[number], "y"]}), 12
    )
    assert [answer.status for answer in answers] == [500 if text == SICK else 200 for text in texts]
    assert {answer.json["error"]["type"] for answer in answers if answer.status == 500} == {"server_error"}
    assert all("NaN or infinity" in answer.json["error"]["message"] for answer in answers if answer.status == 500)
    wait_counted(served, "moods/0", 3)
    row = served.replica("moods/0")
    assert (row.pid, row.restarts) == (pid, 0)


def test_nan_of_a_language_model_is_a_500_streamed_or_not(served: Running) -> None:
    pid = served.replica("talks/0").pid
    bodies = [
        {"model": "talks", "prompt": prompt, "max_tokens": 5, "stream": stream}
        for stream in (False, True)
        for prompt in ("hello", f"hello {SICK}")
    ]
    answers = served.together(lambda number: served.post_until_taken("/v1/completions", bodies[number]), 4)
    assert [answer.status for answer in answers] == [200, 500, 200, 500]
    assert answers[2].body.endswith(b"data: [DONE]\n\n")
    assert all("NaN or infinity" in answers[number].json["error"]["message"] for number in (1, 3))
    wait_counted(served, "talks/0", 2)
    row = served.replica("talks/0")
    assert (row.pid, row.restarts) == (pid, 0)
