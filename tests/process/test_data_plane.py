"""What happens to each request when replicas are slow, frozen, dying or full, and when callers leave (spec 6)."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from typing import Any

import pytest

from supervisor.control.events import ReplicaExited, ReplicaReady, ReplicaState
from supervisor.control.messages import Inventory, Restart
from tests.conftest import Serve
from tests.support import Answer, Running, stub_config


def in_flight(inventory: Inventory) -> int:
    return sum(row.in_flight for row in inventory.deployments[0].replicas)


def idle(inventory: Inventory) -> bool:
    """Nothing in flight on either side, no bytes held."""
    return all(
        row.in_flight == row.outstanding_bytes == row.engine_in_flight == 0
        for row in inventory.deployments[0].replicas
        if row.state == "ready"
    )


def send_and_leave(running: Running, path: str, body: Any, until: int) -> None:
    """Send a request, wait until it is in flight, hang up."""
    data = json.dumps(body).encode()
    with socket.create_connection(running.address) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        running.wait_status(lambda inventory: in_flight(inventory) >= until)


def events_of(stream: bytes) -> list[Any]:
    """The data of server-sent events; `[DONE]` stays text."""
    parts = [part.removeprefix("data: ") for part in stream.decode().split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


# ------------------------------------------------------------------------------------------------- deadlines


def test_the_callers_deadline_ends_it_with_504_at_once(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    started = time.monotonic()
    answer = running.embed(timeout_ms=200)
    took = time.monotonic() - started
    assert (answer.status, answer.json["error"]["code"]) == (504, "timeout")
    assert 0.2 <= took < 2.0
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].outstanding_bytes == 0)


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1e3", "99999999999"])
def test_a_deadline_that_is_no_whole_number_of_milliseconds_is_refused(serve: Serve, value: str) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    answer = running.post("/v1/embeddings", {"input": "x"}, {"X-Request-Timeout-Ms": value})
    assert answer.status == 400 and answer.json["error"]["param"] == "X-Request-Timeout-Ms"


def test_a_timed_out_request_that_was_still_queued_in_the_engine_is_never_computed(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    first = threading.Thread(target=running.embed, args=("in the forward",))
    first.start()
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].forward_age_s > 0)
    assert running.embed(["a", "b", "c"], timeout_ms=100).status == 504
    before = running.replica("stub/0").rows
    running.faults("stub/0")
    first.join()
    row = running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].cancelled_rows > 0)
    assert row.deployments[0].replicas[0].rows - before == 1, "rows that nobody waited for were computed"


# ------------------------------------------------------------------------------------------------- cancellation


def test_a_unary_caller_that_hangs_up_frees_the_engine_and_changes_no_standing(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="latency_ms: 300"))
    running.wait_ready(1)
    blocker = threading.Thread(target=running.embed)
    blocker.start()
    running.wait_status(lambda inventory: in_flight(inventory) == 1)
    send_and_leave(running, "/v1/embeddings", {"input": ["x"] * 5}, until=2)
    running.wait_status(lambda inventory: in_flight(inventory) <= 1, limit_s=1.0)
    blocker.join()
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].cancelled_rows > 0)
    (row,) = running.wait_status(idle).deployments[0].replicas
    assert (row.state, row.failures, row.rows) == ("ready", 0, 1), "what nobody waited for was computed"


def test_a_streaming_caller_that_hangs_up_stops_the_generation(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="tokens: 10000, token_ms: 10"))
    running.wait_ready(1)
    body = {"prompt": "x", "stream": True, "max_tokens": 10000}
    send_and_leave(running, "/v1/completions", body, until=1)
    running.wait_status(lambda inventory: in_flight(inventory) == 0, limit_s=1.0)
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].cancelled_rows == 1)
    (row,) = running.wait_status(idle).deployments[0].replicas
    assert row.forwards < 1000, "it did not stop early"


def test_five_hundred_callers_that_hang_up_and_a_thousand_bad_requests_change_no_standing(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, engine_args="latency_ms: 5"))
    running.wait_ready(2)
    data = b'{"input": "x"}'
    for _ in range(500):
        with socket.create_connection(running.address) as connection:
            connection.sendall(
                b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data
            )
    connection = running.connect()
    for number in range(1000):
        connection.request("POST", "/v1/embeddings", b'{"input": null}' if number % 2 else b"{")
        answer = Answer(connection.getresponse())
        assert answer.status == 400
    connection.close()
    running.wait_status(idle)
    standings = {(row.state, row.incarnation, row.restarts, row.failures) for row in running.replicas()}
    assert standings == {("ready", 1, 0, 0)}
    assert running.embed().status == 200


# ------------------------------------------------------------------------------------------------- streaming


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_carries_each_token_and_ends_with_done(serve: Serve, path: str) -> None:
    running = serve(stub_config(replicas=1, engine_args="tokens: 5, token_ms: 1"))
    running.wait_ready(1)
    body = {"model": "stub", "prompt": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}
    answer = running.post(path, body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, done = events_of(answer.body)
    assert done == "[DONE]"
    streamed = "".join(
        piece["choices"][0].get("text") or piece["choices"][0].get("delta", {}).get("content") or "" for piece in pieces
    )
    whole = running.post(path, {**body, "stream": False}).json["choices"][0]
    assert streamed == (whole.get("text") or whole["message"]["content"]) == "".join(f"token {n} " for n in range(5))
    assert running.wait_status(idle)


def test_a_bad_streaming_request_is_refused_before_a_stream_begins(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    answer = running.post("/v1/completions", {"prompt": "x", "stream": True, "n": 3})
    assert answer.status == 400 and answer.json["error"]["param"] == "n"


def test_a_stream_cut_in_the_middle_ends_with_an_error_event_never_silently(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="tokens: 10000, token_ms: 5"))
    running.wait_ready(1)
    connection = running.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "stream": True, "max_tokens": 10000}))
    response = connection.getresponse()
    assert response.read(30)
    running.faults("stub/0", crash=True)
    *_, last = events_of(b"data: {}\n\n" + response.read().partition(b"\n\n")[2])
    connection.close()
    assert last["error"]["code"] == "replica_lost" and "SIGSEGV" in last["error"]["message"]


# ------------------------------------------------------------------------------------------------- death and retry


def kill(running: Running, replica: str) -> None:
    pid = running.replica(replica).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_requests_in_flight_on_a_killed_replica_succeed_elsewhere(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, engine_args="latency_ms: 400"))
    running.wait_ready(2)
    threads_answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: threads_answers.append(running.embed())) for _ in range(10)]
    for thread in threads:
        thread.start()
    running.wait_status(lambda inventory: in_flight(inventory) == 10)
    kill(running, "stub/0")
    for thread in threads:
        thread.join()
    assert [answer.status for answer in threads_answers] == [200] * 10
    assert {answer.replica for answer in threads_answers} == {"stub/1"}


def test_without_retries_they_are_502_at_once(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, retries=0))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, hang=True)
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(running.embed())) for _ in range(4)]
    for thread in threads:
        thread.start()
    running.wait_status(lambda inventory: in_flight(inventory) == 4)
    kill(running, "stub/0")
    kill(running, "stub/1")
    for thread in threads:
        thread.join()
    assert {(answer.status, answer.json["error"]["code"]) for answer in answers} == {(502, "replica_lost")}


def test_a_request_that_kills_whoever_computes_it_is_tried_once_more_and_no_further(serve: Serve) -> None:
    running = serve(stub_config(replicas=3))
    running.wait_ready(3)
    for name in ("stub/0", "stub/1", "stub/2"):
        running.faults(name, crash_on_request=True)
    assert running.embed().status == 502
    assert sorted(row.state for row in running.replicas()) == ["ready", "restarting", "restarting"]


# ------------------------------------------------------------------------------------------------- frozen, slow, full


def test_a_frozen_replica_leaves_rotation_and_comes_back(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, timeout_ms=1500))
    running.wait_ready(2)
    pid = running.replica("stub/0").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    frozen = time.time()
    statuses = [running.embed().status for _ in range(10)]
    event = running.wait_event(ReplicaState, lambda event: event.after == "unresponsive", limit_s=10)
    assert event.time - frozen < 7.5
    statuses += [running.embed().status for _ in range(40)]
    assert statuses.count(504) <= 3 and set(statuses) <= {200, 504}
    os.kill(pid, signal.SIGCONT)
    running.wait_event(ReplicaState, lambda event: (event.before, event.after) == ("unresponsive", "ready"))
    assert running.replica("stub/0").incarnation == 1


def test_a_long_forward_on_the_only_replica_is_shown_with_its_age_and_never_punished(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, timeout_ms=60_000))
    running.wait_ready(1)
    running.faults("stub/0", slow_ms=10_000)
    thread = threading.Thread(target=running.embed)
    thread.start()
    busy = running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].forward_age_s >= 5)
    row = busy.deployments[0].replicas[0]
    assert row.state == "ready" and row.reason.startswith("a forward runs for")
    thread.join()
    assert (running.replica("stub/0").state, running.replica("stub/0").incarnation) == ("ready", 1)


def test_a_forward_older_than_restart_hung_ms_restarts_its_replica(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, restart_hung_ms=1500))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    assert running.embed().status == 502
    ready = running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    assert ready.replica == "stub/0"
    assert "a forward ran for" in (running.replica("stub/0").last_exit or "")


def test_a_golden_check_that_hangs_restarts_its_replica_too(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, restart_hung_ms=500, engine_args="faults: {hang: true}"))
    exited = running.wait_event(ReplicaExited)
    assert "its first forwards ran for" in exited.reason and exited.restart_in_s == 1.0


def test_overload_answers_each_request_with_200_or_429_and_leaves_nothing_open(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, engine_args="latency_ms: 20"))
    running.wait_ready(2)

    def client(_: int) -> list[int]:
        connection = running.connect()
        statuses = []
        for _ in range(6):
            connection.request("POST", "/v1/embeddings", b'{"input": "x"}')
            statuses.append(Answer(connection.getresponse()).status)
        connection.close()
        return statuses

    statuses = [status for some in running.together(client, 320) for status in some]
    assert len(statuses) == 320 * 6
    assert set(statuses) == {200, 429}
    running.wait_status(idle, limit_s=10)
    assert all((row.state, row.incarnation, row.failures) == ("ready", 1, 0) for row in running.replicas())


def test_small_requests_go_to_the_other_replica_while_one_has_a_large_one(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, engine_args="latency_ms: 50"))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, slow_ms=1500 if name == "stub/0" else 0)
    large: list[Answer] = []
    thread = threading.Thread(target=lambda: large.append(running.embed("x" * 8_000_000)))
    thread.start()
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].outstanding_bytes > 8_000_000)
    small = [running.embed("x" * 8000).replica for _ in range(10)]
    assert set(small) == {"stub/1"} and not large
    thread.join()
    assert (large[0].status, large[0].replica) == (200, "stub/0")


def test_a_replica_that_holds_the_interpreter_is_unresponsive_not_dead(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, timeout_ms=500))
    running.wait_ready(2)
    running.faults("stub/0", hold_gil_ms=9000)
    for _ in range(2):
        running.embed()
    running.wait_event(ReplicaState, lambda event: event.after == "unresponsive", limit_s=15)
    running.wait_event(ReplicaState, lambda event: event.before == "unresponsive")
    row = running.replica("stub/0")
    assert (row.state in ("ready", "backoff"), row.incarnation) == (True, 1)


def test_muted_heartbeats_take_it_out_and_hearing_them_again_brings_it_back(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    running.faults("stub/1", mute=True)
    running.wait_event(ReplicaState, lambda event: event.after == "unresponsive", limit_s=10)
    assert {running.embed().replica for _ in range(4)} == {"stub/0"}
    running.faults("stub/1")
    running.wait_event(ReplicaState, lambda event: event.before == "unresponsive")
    assert {running.embed().replica for _ in range(4)} == {"stub/0", "stub/1"}


def test_a_replica_with_another_card_gets_no_traffic_and_says_in_what_it_differs(serve: Serve) -> None:
    config = stub_config(replicas=1, max_num_seqs=16).replace(
        "    system:",
        """      other:
        provider: model_runtime
        artifact: stub
        max_num_seqs: 16
        engine_args: {engine: stub, faults: {wrong_card: true}}
    system:""",
    )
    running = serve(config)
    event = running.wait_event(ReplicaState, lambda event: event.after == "incompatible")
    assert event.replica == "other/0"
    assert "max_num_seqs is 17, the config sets 16" in event.reason
    answer = running.post("/v1/embeddings", {"model": "other", "input": "x"})
    assert answer.status == 503


def restarted_with_other_limits(running: Running) -> None:
    """stub/1 comes back with limits that are not those of stub/0, and like it in all else."""
    running.wait_ready(2)
    running.faults("stub/1", wrong_limits=True)
    running.accepted(Restart(target="stub/1"))


def test_where_limits_are_unset_two_replicas_may_differ_in_them_and_both_serve(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    restarted_with_other_limits(running)
    running.wait_event(ReplicaReady, lambda event: event.replica == "stub/1" and event.incarnation == 2)
    assert [row.limits for row in running.replicas()] == [
        {"max_num_seqs": 32, "max_num_batched_tokens": 8192},
        {"max_num_seqs": 33, "max_num_batched_tokens": 8193},
    ]
    assert {running.embed().replica for _ in range(4)} == {"stub/0", "stub/1"}


def test_a_set_limit_that_a_replica_reports_differently_is_named_and_gets_it_no_traffic(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, max_num_batched_tokens=4096))
    restarted_with_other_limits(running)
    event = running.wait_event(ReplicaState, lambda event: event.after == "incompatible")
    assert (event.replica, event.reason) == ("stub/1", "max_num_batched_tokens is 4097, the config sets 4096")
    row = running.replica("stub/1")
    assert (row.state, row.reason) == ("incompatible", "max_num_batched_tokens is 4097, the config sets 4096")
    assert {running.embed().replica for _ in range(4)} == {"stub/0"}
