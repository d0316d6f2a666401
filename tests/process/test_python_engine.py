"""A user's class behind a real supervisor: the documented example as written, errors, neighbours, streams, forks."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.control.events import ReplicaFailed
from supervisor.control.messages import GetLogs
from tests.conftest import Serve
from tests.support import LONG_S, Answer, Running

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sentiment.py"

USERS = '''
import time


class Poisoned:
    """Says how many rows came with each; fails for a batch with poison in it."""

    task = "embed"

    def forward(self, rows):
        time.sleep(0.05)
        if "poison" in rows:
            raise ValueError("this row is poison")
        if "nan" in rows:
            return [[float("nan")]] * len(rows)
        if "exit" in rows:
            raise SystemExit("leaving")
        return [[float(len(row))] for row in rows]


class Sick:
    """A class whose model goes wrong for some rows and not for others."""

    task = "embed"

    def forward(self, rows):
        time.sleep(0.05)
        return [[float(row) if row in ("nan", "inf") else float(len(row))] for row in rows]


class Talks:
    def stream(self, row):
        for word in row["prompt"].split():
            if word == "bad":
                time.sleep(0.3)  # what was said before is on its way by then
                raise ValueError("a bad word")
            yield word + " "


class Broken:
    task = "embed"

    def load(self, args):
        raise RuntimeError("no weights here")

    def forward(self, rows):
        return rows
'''


def config(artifact: str, replicas: int = 1, **args: Any) -> str:
    return f"""
global:
  model_catalog:
    deployments:
      own:
        artifact: "{artifact}"
        replicas: [{", ".join(["{device: cpu}"] * replicas)}]
        engine_args: {json.dumps(args)}
stoker: {{listen: "127.0.0.1:0"}}
"""


@pytest.fixture
def serve_own(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serve from a working directory that holds `users.py`: the only way to find it, since PYTHONPATH is not set."""
    (tmp_path / "users.py").write_text(USERS)
    (tmp_path / "sentiment.py").write_text(documented())
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    return serve


def documented() -> str:
    """The class of docs/engines.md, as a reader would copy it."""
    (code,) = re.findall(
        r"```python\n(.*?class Sentiment.*?)```", (ROOT / "docs" / "engines.md").read_text(), re.DOTALL
    )
    return str(code)


def embed(running: Running, *texts: str) -> Answer:
    return running.post("/v1/embeddings", {"input": list(texts)})


def logged(running: Running) -> str:
    return "\n".join(line.text for line in running.ask(GetLogs(replica="own/0", lines=500)).lines)


def test_the_example_of_the_docs_serves_as_written(serve_own: Serve) -> None:
    assert documented() == EXAMPLE.read_text()
    assert len(EXAMPLE.read_text().splitlines()) <= 22
    running = serve_own(config("sentiment:Sentiment", replicas=2, good="good lovely"))
    running.wait_ready(2)
    answer = running.post("/v1/classify", {"input": ["a lovely good day", "an awful day"]})
    assert [item["label"] for item in answer.json["data"]] == ["positive", "negative"]
    assert answer.json["data"][0]["probs"] == [0.75, 0.25]
    assert {running.replica(name).started_by for name in ("own/0", "own/1")} == {"spawn"}
    refused = running.post("/v1/classify", {"input": ""})
    assert refused.status == 500 and "expected at least one word" in refused.json["error"]["message"]
    other = running.post("/v1/embeddings", {"input": "x"})
    assert other.status == 404 and "/v1/classify" in other.json["error"]["message"]


def test_errors_reach_the_caller_with_a_traceback_in_the_log_and_the_replica_lives(serve_own: Serve) -> None:
    running = serve_own(config("users:Poisoned"))
    running.wait_ready(1)
    pid = running.replica("own/0").pid
    for text, message in (
        ("poison", "ValueError: this row is poison"),
        ("nan", "NaN or infinity"),
        ("exit", "the class raised SystemExit: leaving"),
    ):
        answer = embed(running, text)
        assert answer.status == 500 and message in answer.json["error"]["message"]
        running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].state == "ready")
    assert embed(running, "four").json["data"][0]["embedding"] == [4.0]
    log = logged(running)
    assert "/users.py" in log and 'raise ValueError("this row is poison")' in log
    row = running.replica("own/0")
    assert (row.pid, row.restarts) == (pid, 0)


def test_a_poison_row_fails_alone_among_those_that_share_its_forward(serve_own: Serve) -> None:
    running = serve_own(config("users:Poisoned"))
    running.wait_ready(1)
    texts = ["poison" if number == 5 else "x" * (number + 1) for number in range(12)]
    answers = running.together(lambda number: embed(running, texts[number]), 12)
    assert [answer.status for answer in answers] == [500 if text == "poison" else 200 for text in texts]
    good = [answer.json["data"][0]["embedding"] for answer in answers if answer.status == 200]
    assert good == [[float(len(text))] for text in texts if text != "poison"]
    assert running.replica("own/0").forwards < 12, "they did share forwards"


def test_nan_of_a_class_is_a_500_with_valid_json_for_its_request_alone_and_is_counted(serve_own: Serve) -> None:
    running = serve_own(config("users:Sick"))
    running.wait_ready(1)
    pid = running.replica("own/0").pid
    texts = ["nan" if number == 3 else "inf" if number == 7 else "x" * (number + 1) for number in range(12)]
    answers = running.together(lambda number: embed(running, texts[number]), 12)
    assert [answer.status for answer in answers] == [500 if text in ("nan", "inf") else 200 for text in texts]
    for answer in answers:
        assert answer.status == 200 or "NaN or infinity" in answer.json["error"]["message"]
    assert running.replica("own/0").forwards < 12, "they did share forwards"
    counted = 'stoker_nan_outputs_total{deployment="own",replica="own/0"} 2.0'
    deadline = time.monotonic() + LONG_S
    while counted not in running.get("/metrics").body.decode():
        assert time.monotonic() < deadline
    row = running.replica("own/0")
    assert (row.pid, row.restarts, embed(running, "four").json["data"][0]["embedding"]) == (pid, 0, [4.0])


def test_streams_of_a_class_one_of_which_fails(serve_own: Serve) -> None:
    running = serve_own(config("users:Talks"))
    running.wait_ready(1)
    prompts = ["one two three", "one bad three", "bad", "eins zwei drei"]
    bodies = [{"prompt": prompt, "stream": True} for prompt in prompts]
    answers = running.together(lambda number: running.post_until_taken("/v1/completions", bodies[number]), 4)
    assert [answer.status for answer in answers] == [200, 200, 500, 200]
    assert answers[0].body.endswith(b"data: [DONE]\n\n") and answers[3].body.endswith(b"data: [DONE]\n\n")
    assert b"ValueError: a bad word" in answers[1].body and b"[DONE]" not in answers[1].body
    whole = running.post_until_taken("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b"}]})
    assert whole.json["choices"][0]["message"]["content"] == "a b "
    assert running.post_until_taken("/v1/completions", {"prompt": "bad"}).status == 500


def test_a_class_that_may_be_forked_is(serve_own: Serve) -> None:
    running = serve_own(config("users:Poisoned", replicas=2, forkable=True))
    running.wait_ready(2)
    assert {running.replica(name).started_by for name in ("own/0", "own/1")} == {"fork"}
    assert embed(running, "four").status == 200


def test_a_class_that_cannot_load_or_be_found_says_why(serve_own: Serve) -> None:
    running = serve_own(config("users:Nobody"))
    failed = running.wait_event(ReplicaFailed)
    assert "users:Nobody cannot be imported" in failed.reason and "Nobody" in failed.reason
    broken = serve_own(config("users:Broken"), name="broken")
    row = broken.wait_status(lambda inventory: inventory.deployments[0].replicas[0].state == "restarting")
    assert "RuntimeError: no weights here" in row.deployments[0].replicas[0].reason
