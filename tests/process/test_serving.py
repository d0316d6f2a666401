"""Two stub replicas behind a real supervisor: who answers, what a bad request gets, what is full, what is there."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from supervisor.control.messages import Scale
from tests.conftest import Serve
from tests.support import Running, stub_config


def test_twelve_requests_one_after_another_on_four_idle_replicas_are_three_each(serve: Serve) -> None:
    running = serve(stub_config(replicas=4))
    running.wait_ready(4)
    taken = Counter(running.embed().replica for _ in range(12))
    assert taken == {f"stub/{number}": 3 for number in range(4)}


def test_eight_at_once_right_after_ready_are_two_each(serve: Serve) -> None:
    running = serve(stub_config(replicas=4, engine_args="latency_ms: 200"))
    running.wait_ready(4)
    taken = Counter(answer.replica for answer in running.together(lambda _: running.embed(), 8))
    assert taken == {f"stub/{number}": 2 for number in range(4)}


def test_when_all_are_full_the_next_gets_429_with_retry_after(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, hang=True)
    connections = [running.connect() for _ in range(64)]
    body = json.dumps({"model": "stub", "input": "x"})
    for connection in connections:
        connection.request("POST", "/v1/embeddings", body)
    running.wait_status(lambda inventory: all(row.in_flight == 32 for row in inventory.deployments[0].replicas))
    answer = running.embed()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert answer.json["error"]["code"] == "overloaded"
    for name in ("stub/0", "stub/1"):
        running.faults(name)
    assert {connection.getresponse().status for connection in connections} == {200}
    for connection in connections:
        connection.close()


def test_a_model_nobody_has_is_404_and_names_those_there_are(serve: Serve) -> None:
    running = serve(stub_config())
    running.wait_ready(2)
    answer = running.post("/v1/embeddings", {"model": "gpt-5", "input": "x"})
    assert answer.status == 404
    assert answer.json["error"]["code"] == "model_not_found" and "stub" in answer.json["error"]["message"]


def test_no_model_means_the_default_deployment(serve: Serve) -> None:
    running = serve(stub_config())
    running.wait_ready(2)
    assert running.post("/v1/embeddings", {"input": "x"}).status == 200


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """One supervisor for the tests that change nothing in it."""
    with Running(tmp_path_factory.mktemp("shared"), stub_config()) as running:
        running.wait_ready(2)
        yield running


BAD_BODIES = {
    "bad JSON": (b'{"input": "x"', 400),
    "empty": (b"", 400),
    "null input": (b'{"input": null}', 400),
    "no input": (b"{}", 400),
    "a lone surrogate": (b'{"input": "\\ud800"}', 400),
    "invalid UTF-8": (b'{"input": "\xff\xfe"}', 400),
    "NaN": (b'{"input": NaN}', 400),
    "NaN elsewhere": (b'{"input": "x", "user": NaN}', 400),
    "a list for model": (b'{"model": [], "input": "x"}', 400),
    "ten thousand brackets": (b"[" * 10_000, 400),
    "ten thousand brackets inside": (b'{"input": ' + b"[" * 10_000, 400),
    "an array": (b"[1, 2]", 400),
    "65 MiB": (b'{"input": "' + b"x" * (65 * 1024 * 1024) + b'"}', 413),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_gets_a_short_clear_error_and_touches_no_replica(shared: Running, name: str) -> None:
    body, status = BAD_BODIES[name]
    answer = shared.post("/v1/embeddings", body)
    assert answer.status == status, answer.body
    error = answer.json["error"]
    assert error["type"] == "invalid_request_error" and 0 < len(error["message"]) < 400
    assert shared.embed().status == 200
    assert all(row.state == "ready" and row.incarnation == 1 and row.failures == 0 for row in shared.replicas())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"input": null}', "input"),
        (b'{"input": "\\ud800"}', "input"),
        (b'{"input": "x", "user": NaN}', "user"),
        (b'{"model": 7, "input": "x"}', "model"),
        (b'{"stream": "yes", "input": "x"}', "stream"),
        (b'{"model": "stub"}', "input"),
    ],
)
def test_a_bad_body_names_its_field(shared: Running, body: bytes, field: str) -> None:
    answer = shared.post("/v1/embeddings", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, field)


def test_pages_for_probes_scrapers_and_people(shared: Running) -> None:
    assert shared.get("/health").json == {"status": "ok"}
    assert shared.get("/ready").status == 200
    assert [row["id"] for row in shared.get("/v1/models").json["data"]] == ["stub"]
    workers = shared.get("/v1/workers").json["workers"]
    assert [row["worker_id"] for row in workers] == ["stub/0", "stub/1"]
    inventory = shared.get("/v1/inventory").json
    assert inventory["deployments"][0]["ready_replicas"] == 2
    metrics = shared.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'stoker_replica_ready{deployment="stub",replica="stub/0"} 1.0' in metrics.body.decode()
    assert shared.get("/nowhere").status == 404
    assert shared.request("GET", "/v1/embeddings", b"").status == 405


def test_every_answer_names_its_request_and_its_replica(shared: Running) -> None:
    answer = shared.embed()
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.replica in ("stub/0", "stub/1")
    echoed = shared.post("/v1/embeddings", {"input": "x"}, {"X-Request-Id": "mine-7"})
    assert echoed.headers["x-request-id"] == "mine-7"


def test_scale_up_and_down_joins_ready_replicas_and_drains_the_rest(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    assert running.accepted(Scale(deployment="stub", replicas=3)).asked == 3
    running.wait_ready(3)
    assert running.accepted(Scale(deployment="stub", delta=-2)).asked == 1
    running.wait_status(lambda inventory: len(inventory.deployments[0].replicas) == 1)
    (survivor,) = running.replicas()
    assert (survivor.name, survivor.incarnation) == ("stub/0", 1)
    assert running.embed().status == 200


def test_the_supervisor_at_rest_is_small_and_idle(serve: Serve) -> None:
    running = serve(stub_config())
    running.wait_ready(2)
    import psutil

    process = psutil.Process(running.process.pid)
    before = process.cpu_times()
    time.sleep(3)  # the measure itself: what it costs to do nothing for that long
    after = process.cpu_times()
    share = (after.user + after.system - before.user - before.system) / 3
    assert process.memory_info().rss < 80 * 1024 * 1024
    assert share < 0.05, f"{share:.1%} of a core at rest; a quiet machine shows below 1 %"
