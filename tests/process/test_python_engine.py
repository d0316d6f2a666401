"""A user's class behind a real supervisor: the documented example as written, errors, neighbours, streams, forks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from supervisor.control.events import ReplicaExited, ReplicaFailed
from supervisor.control.messages import GetLogs
from tests.conftest import Serve
from tests.support import LONG_S, Answer, Running

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sentiment.py"

USERS = '''
import ctypes
import os
import threading
import time


def hold(rows):
    """Say how many rows there are, and wait where one asks for it."""
    print(len(rows), "rows")
    while "hold" in rows and not os.path.exists("go"):
        time.sleep(0.005)


class Rude(BaseException):
    def __str__(self):
        raise RuntimeError("no words")


class Unruly:
    """Does what no class should."""

    task = "embed"

    def forward(self, rows):
        return [getattr(self, row)() if hasattr(self, row) else [float(len(row))] for row in rows]

    def rude(self):
        raise Rude

    def surrogate(self):
        raise ValueError("half \\ud800 a pair")

    def endless(self):
        return self.endless()

    def memory(self):
        raise MemoryError

    def wordy(self):
        raise ValueError("w" * 1_000_000)

    def thing(self):
        return object()

    def asks(self):
        input("nobody is there")

    def debugs(self):
        breakpoint()

    def prints(self):
        for _ in range(1000):
            print("x" * 1000)
        return [1.0]

    def starts(self):
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        return [2.0]

    def crashes(self):
        ctypes.string_at(0)

    def leaves(self):
        os._exit(9)


class Poisoned:
    """Says how many rows came with each; fails for a batch with poison in it."""

    task = "embed"

    def forward(self, rows):
        hold(rows)
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
        hold(rows)
        return [[float(row) if row in ("nan", "inf") else float(len(row))] for row in rows]


class Talks:
    def stream(self, row):
        for word in row["prompt"].split():
            if word == "bad":
                time.sleep(0.3)  # what was said before is on its way by then
                raise ValueError("a bad word")
            yield word * (80 << 20) if word == "x" else word + " "


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


def in_one_forward(running: Running, texts: Sequence[str]) -> list[Answer]:
    """The answers to all texts, each a request: a first one holds the class until all of them wait."""

    def wait_in_flight(count: int) -> None:
        running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == count)

    with ThreadPoolExecutor(1 + len(texts)) as pool:
        holding = pool.submit(embed, running, "hold")
        wait_in_flight(1)
        asked = [pool.submit(embed, running, text) for text in texts]
        wait_in_flight(1 + len(texts))
        Path("go").touch()
        assert holding.result().status == 200
        answers = [one.result() for one in asked]
    wait_logged(running, f"\n{len(texts)} rows\n")
    return answers


def wait_logged(running: Running, text: str) -> None:
    """Until the log of own/0 has it: what a process prints comes another way than its answers."""
    deadline = time.monotonic() + LONG_S
    while text not in (log := logged(running)):
        assert time.monotonic() < deadline, log


def logged(running: Running) -> str:
    return "".join(f"{line.text}\n" for line in running.ask(GetLogs(replica="own/0", lines=500)).lines)


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
    for part in ("/users.py", 'raise ValueError("this row is poison")'):
        wait_logged(running, part)
    row = running.replica("own/0")
    assert (row.pid, row.restarts) == (pid, 0)


UNRULY = {
    "rude": "the class raised Rude: (its message cannot be had: RuntimeError)",
    "surrogate": "ValueError: half ? a pair",
    "endless": "RecursionError: maximum recursion depth exceeded",
    "memory": "MemoryError",
    "wordy": "ValueError: " + "w" * 1000,
    "thing": "expected an embedding: a list of numbers; found <object object",
    "asks": "EOFError",
    "debugs": "BdbQuit",
}
"""What a class may do, and what its caller is told."""


def test_nothing_that_a_class_raises_returns_or_waits_for_ends_its_replica(serve_own: Serve) -> None:
    running = serve_own(config("users:Unruly"))
    running.wait_ready(1)
    pid = running.replica("own/0").pid
    for text, message in UNRULY.items():
        answer = embed(running, text)
        assert answer.status == 500 and message in answer.json["error"]["message"], (text, answer.body[:300])
        assert len(answer.body) < 3000
        well = running.post_until_taken("/v1/embeddings", {"input": "four"})
        assert well.json["data"][0]["embedding"] == [4.0], text
    for text, number in (("prints", 1.0), ("starts", 2.0)):
        assert embed(running, text).json["data"][0]["embedding"] == [number]
    wait_logged(running, "ZeroDivisionError")
    row = running.replica("own/0")
    assert (row.pid, row.restarts) == (pid, 0)


def test_a_class_that_takes_its_process_along_is_restarted_and_its_last_words_are_kept(serve_own: Serve) -> None:
    running = serve_own(config("users:Unruly", replicas=2))
    running.wait_ready(2)
    died = running.post("/v1/embeddings", {"input": "crashes"})
    assert died.status == 502, "it takes both along, one after the other"
    for name in ("own/0", "own/1"):
        exited = running.wait_event(ReplicaExited, lambda event, name=name: event.replica == name)
        assert exited.reason == "SIGSEGV" and exited.restart_in_s == 1.0
    assert running.post_until_taken("/v1/embeddings", {"input": "four"}).status == 200


def test_a_poison_row_fails_alone_among_those_that_share_its_forward(serve_own: Serve) -> None:
    running = serve_own(config("users:Poisoned"))
    running.wait_ready(1)
    texts = ["poison" if number == 5 else "x" * (number + 1) for number in range(12)]
    answers = in_one_forward(running, texts)
    assert [answer.status for answer in answers] == [500 if text == "poison" else 200 for text in texts]
    good = [answer.json["data"][0]["embedding"] for answer in answers if answer.status == 200]
    assert good == [[float(len(text))] for text in texts if text != "poison"]


def test_nan_of_a_class_is_a_500_with_valid_json_for_its_request_alone_and_is_counted(serve_own: Serve) -> None:
    running = serve_own(config("users:Sick"))
    running.wait_ready(1)
    pid = running.replica("own/0").pid
    texts = ["nan" if number == 3 else "inf" if number == 7 else "x" * (number + 1) for number in range(12)]
    answers = in_one_forward(running, texts)
    assert [answer.status for answer in answers] == [500 if text in ("nan", "inf") else 200 for text in texts]
    for answer in answers:
        assert answer.status == 200 or "NaN or infinity" in answer.json["error"]["message"]
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
    for stream in (False, True):
        large = running.post_until_taken("/v1/completions", {"prompt": "x", "stream": stream})
        assert large.status == 500 and "at most 64 MiB, found 80 MiB" in large.json["error"]["message"]


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
