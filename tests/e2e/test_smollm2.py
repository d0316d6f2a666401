"""A chat model through the whole path: streams, stops, clients that leave, the openai client, and one more replica."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from supervisor.control.events import ReplicaReady
from supervisor.control.messages import Scale
from tests.support import Running

pytestmark = pytest.mark.timeout(300)
"""The first start on a machine converts the model, for half a minute, or more where others are busy."""

PLACES = 8
PARIS = "The capital of France is"
ODD = ["🎉🌍 emojis: 😀🎉🚀🌍😀🎉🚀", "中文：今天天气很好。日本語：今日は", "naïve café — "]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The sample config, on a free port; the first start on a machine converts the model."""
    config = Path("sample-configs/smollm2.yaml").read_text()
    config = config.replace("127.0.0.1:8100", "127.0.0.1:0").replace("max_num_seqs: 16", f"max_num_seqs: {PLACES}")
    with Running(tmp_path_factory.mktemp("smollm2"), config) as running:
        running.wait_event(ReplicaReady, limit_s=280)
        yield running


@pytest.fixture(scope="module")
def client(smollm2: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="not needed", max_retries=0)


def complete(running: Running, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 12} | more
    answer = running.post("/v1/completions", body)
    assert answer.status == 200, answer.body
    read: dict[str, Any] = answer.json
    return read


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["text"]
    return text


def stream(running: Running, prompt: str, **more: Any) -> list[str]:
    """The pieces of a streamed answer."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "stream": True} | more
    answer = running.post("/v1/completions", body)
    assert answer.status == 200, answer.body
    lines = [line.removeprefix("data: ") for line in answer.body.decode().splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line)["choices"][0]["text"] for line in lines]


def test_it_knows_the_capital_of_france(smollm2: Running) -> None:
    answer = complete(smollm2, PARIS)
    assert text_of(answer).startswith(" Paris")
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ODD)
def test_a_stream_joined_is_the_unstreamed_text_and_no_piece_is_broken(smollm2: Running, prompt: str) -> None:
    pieces = stream(smollm2, prompt, max_tokens=16)
    assert "".join(pieces) == text_of(complete(smollm2, prompt, max_tokens=16))
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_stop_string_across_tokens_is_not_shown(smollm2: Running) -> None:
    whole = text_of(complete(smollm2, PARIS))
    words = whole.split()
    stop = f"{words[1][-2:]} {words[2][:2]}"  # the end of one word and the beginning of the next
    assert stop in whole
    answer = complete(smollm2, PARIS, stop=[stop])
    assert text_of(answer) == whole[: whole.index(stop)] == "".join(stream(smollm2, PARIS, stop=[stop]))
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_eight_streams_at_once_take_at_most_three_times_as_long_as_one(smollm2: Running) -> None:
    def timed(_: int) -> float:
        started = time.monotonic()
        assert stream(smollm2, PARIS)[0] == " Paris"
        return time.monotonic() - started

    alone = statistics.median(timed(0) for _ in range(3))
    started = time.monotonic()
    smollm2.together(timed, 8)
    assert time.monotonic() - started < 3 * alone


def test_in_company_the_tokens_are_the_same(smollm2: Running) -> None:
    prompts = [PARIS, *ODD]
    alone = [text_of(complete(smollm2, prompt, max_tokens=8)) for prompt in prompts]
    together = smollm2.together(lambda index: text_of(complete(smollm2, prompts[index], max_tokens=8)), len(prompts))
    assert together == alone


def begin(running: Running) -> http.client.HTTPConnection:
    """A stream that would go on for minutes, once its first token has come."""
    connection = running.connect()
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "temperature": 1, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    return connection


def test_clients_that_leave_free_their_places_at_the_next_token(smollm2: Running) -> None:
    connections = [begin(smollm2) for _ in range(PLACES)]
    waiting = smollm2.connect(timeout_s=0.5)  # all places are taken: the ninth waits its turn
    body = json.dumps({"prompt": PARIS, "max_tokens": 1, "temperature": 0})
    waiting.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    with pytest.raises(TimeoutError):
        waiting.getresponse()
    waiting.close()
    for connection in connections:
        connection.close()
    started = time.monotonic()
    complete(smollm2, PARIS, max_tokens=1)
    assert time.monotonic() - started < 10
    smollm2.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 0)


def test_the_openai_client_chats_and_streams(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    whole = client.chat.completions.create(model="smollm2", messages=asked, temperature=0, max_tokens=20)
    content = whole.choices[0].message.content
    assert content is not None and "Paris" in content
    assert (
        whole.usage is not None
        and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    )
    events = list(
        client.chat.completions.create(
            model="smollm2",
            messages=asked,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == content
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-1].usage == whole.usage
    assert events[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_openai_client_gets_the_errors_that_it_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="expected at most 8191 tokens"):
        client.completions.create(model="smollm2", prompt="word " * 9000)
    with pytest.raises(openai.BadRequestError, match="logprobs is not supported"):
        client.completions.create(model="smollm2", prompt="x", logprobs=1)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="x")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="smollm2", input="x")


def test_a_seed_repeats_an_answer(smollm2: Running) -> None:
    one, same, other = (text_of(complete(smollm2, "I like", temperature=1.2, top_p=0.95, seed=s)) for s in (1, 1, 2))
    assert one == same != other


def test_one_more_replica_is_forked_and_holds_little_of_its_own(smollm2: Running) -> None:
    last = smollm2.inventory().supervisor.last_event
    smollm2.accepted(Scale(deployment="smollm2", replicas=2))
    ready = smollm2.wait_event(ReplicaReady, since=last)
    assert (ready.replica, ready.how) == ("smollm2/1", "fork")
    pid = smollm2.replica("smollm2/1").pid
    assert pid is not None and psutil.Process(pid).memory_full_info().uss < 30 * 2**20
    assert {text_of(complete(smollm2, PARIS)) for _ in range(2)} == {text_of(complete(smollm2, PARIS))}
    smollm2.accepted(Scale(deployment="smollm2", replicas=1))
