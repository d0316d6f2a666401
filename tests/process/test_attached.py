"""Attached replicas: servers that somebody else started, under the same rules as our own (spec 1, 6, 10).

The foreign server here is another Stoker: an OpenAI-compatible server with faults that can be switched.
"""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from supervisor.control.events import ReplicaEjected, ReplicaReady, ReplicaState
from supervisor.control.messages import CommandRefused, DrainReplica, Kill, Restart, Scale
from tests.conftest import Serve
from tests.support import Answer, Running, stub_config


def attached_config(*rows: str, **keys: object) -> str:
    """A deployment `mixed` of replicas given as YAML flow mappings."""
    lines = "\n".join(f"        {key}: {json.dumps(value)}" for key, value in keys.items())
    return f"""
global:
  model_catalog:
    deployments:
      mixed:
        provider: model_runtime
        artifact: stub
        replicas: [{", ".join(rows)}]
{lines}
stoker: {{listen: "127.0.0.1:0"}}
"""


def endpoint(server: Running) -> str:
    return f'{{endpoint: "{server.url}", model: stub}}'


def embed(running: Running, text: str = "hello", **headers: str) -> Answer:
    return running.post("/v1/embeddings", {"model": "mixed", "input": text}, headers)


def test_attached_and_managed_replicas_share_one_deployment(serve: Serve) -> None:
    foreign = serve(stub_config(replicas=1), name="foreign")
    foreign.wait_ready(1)
    running = serve(attached_config("{device: cpu}", endpoint(foreign)))
    running.wait_ready(2)
    answers = [embed(running) for _ in range(6)]
    assert {answer.replica for answer in answers} == {"mixed/0", "mixed/1"}
    assert len({json.dumps(answer.json["data"]) for answer in answers}) == 1
    assert {answer.json["model"] for answer in answers} == {"mixed"}
    row = running.replica("mixed/1")
    assert (row.managed, row.pid, row.endpoint, row.state) == (False, None, foreign.url, "ready")


def test_an_attached_server_that_dies_leaves_rotation_without_a_lost_request_and_comes_back(serve: Serve) -> None:
    foreign = serve(stub_config(replicas=1, engine_args="latency_ms: 200"), name="foreign")
    foreign.wait_ready(1)
    port = foreign.address[1]
    running = serve(attached_config("{device: cpu}", endpoint(foreign)))
    running.wait_ready(2)
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(embed(running))) for _ in range(8)]
    for thread in threads:
        thread.start()
    foreign.process.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 8
    running.wait_event(ReplicaState, lambda event: event.replica == "mixed/1" and event.after == "unresponsive")
    assert {embed(running).replica for _ in range(4)} == {"mixed/0"}
    foreign.config.write_text(stub_config(replicas=1).replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    foreign.process.wait()
    foreign.launch()
    running.wait_event(ReplicaState, lambda event: (event.before, event.after) == ("unresponsive", "ready"))
    assert {embed(running).replica for _ in range(4)} == {"mixed/0", "mixed/1"}


def test_an_attached_server_that_hangs_is_ejected_like_one_of_ours(serve: Serve) -> None:
    foreign = serve(stub_config(replicas=1), name="foreign")
    foreign.wait_ready(1)
    running = serve(attached_config("{device: cpu}", endpoint(foreign), timeout_ms=300))
    running.wait_ready(2)
    foreign.faults("stub/0", hang=True)
    while not running.events(ReplicaEjected):
        embed(running)
    assert running.replica("mixed/1").state == "ejected"
    assert {embed(running).replica for _ in range(4)} == {"mixed/0"}


def test_a_cancelled_stream_stops_in_the_foreign_server(serve: Serve) -> None:
    foreign = serve(stub_config(replicas=1, engine_args="tokens: 10000, token_ms: 10"), name="foreign")
    foreign.wait_ready(1)
    running = serve(attached_config(endpoint(foreign)))
    running.wait_ready(1)
    connection = running.connect()
    body = {"model": "mixed", "prompt": "x", "stream": True, "max_tokens": 10000}
    connection.request("POST", "/v1/completions", json.dumps(body))
    assert connection.getresponse().read(40).startswith(b"data: ")
    connection.close()
    foreign.wait_status(lambda inventory: inventory.deployments[0].replicas[0].cancelled_rows == 1, limit_s=5)
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 0)


def test_a_stream_through_an_attached_server_arrives_whole(serve: Serve) -> None:
    foreign = serve(stub_config(replicas=1, engine_args="tokens: 6, token_ms: 1"), name="foreign")
    foreign.wait_ready(1)
    running = serve(attached_config(endpoint(foreign)))
    running.wait_ready(1)
    answer = running.post("/v1/completions", {"model": "mixed", "prompt": "x", "stream": True})
    events = [part.removeprefix("data: ") for part in answer.body.decode().split("\n\n") if part]
    assert events[-1] == "[DONE]"
    text = "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])
    assert text == "".join(f"token {n} " for n in range(6))
    assert {json.loads(event)["model"] for event in events[:-1]} == {"mixed"}


def test_a_unix_socket_is_an_endpoint_too(serve: Serve, tmp_path: object) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        listen = f"unix://{folder}/s.sock"
        foreign = serve(stub_config(replicas=1).replace("127.0.0.1:0", listen), name="foreign")
        foreign.wait_ready(1)
        running = serve(attached_config(f'{{endpoint: "{listen}", model: stub}}'))
        running.wait_ready(1)
        assert embed(running).status == 200
        assert foreign.stop() == 0
        assert not os.path.exists(f"{folder}/s.sock"), "its file goes with it"


def test_an_attached_deployment_is_not_scaled_and_a_drained_server_lives_on(serve: Serve) -> None:
    foreign = serve(stub_config(replicas=1), name="foreign")
    foreign.wait_ready(1)
    running = serve(attached_config("{device: cpu}", endpoint(foreign)))
    running.wait_ready(2)
    with pytest.raises(CommandRefused, match="attached"):
        running.accepted(Scale(deployment="mixed", replicas=3))
    running.accepted(DrainReplica(replica="mixed/1"))
    running.wait_event(ReplicaState, lambda event: event.replica == "mixed/1" and event.after == "stopped")
    assert foreign.embed().status == 200
    running.accepted(Restart(target="mixed/1"))
    running.wait_event(ReplicaReady, lambda event: event.replica == "mixed/1" and event.incarnation == 2)


def test_killing_an_attached_replica_lets_go_of_it_and_attaches_again(serve: Serve) -> None:
    foreign = serve(stub_config(replicas=1), name="foreign")
    foreign.wait_ready(1)
    running = serve(attached_config(endpoint(foreign)))
    running.wait_ready(1)
    running.accepted(Kill(replica="mixed/0", incarnation=1))
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    assert embed(running).status == 200


def test_a_server_that_is_not_there_is_probed_until_it_is(serve: Serve) -> None:
    running = serve(attached_config('{endpoint: "http://127.0.0.1:9"}'))
    row = running.wait_status(lambda inventory: bool(inventory.deployments[0].replicas[0].reason))
    assert row.deployments[0].state == "unavailable"
    assert embed(running).status == 503
