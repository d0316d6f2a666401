"""What a supervisor says of one replica that is asked for by name, and whose log lines it sends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from supervisor.control.events import ReplicaEjected, ReplicaReady
from supervisor.control.messages import (
    CommandRefused,
    DrainReplica,
    Eject,
    GetLogs,
    GetReplica,
    Lines,
    LogNotice,
    ReplicaDetails,
    Restart,
    Subscribe,
)
from tests.support import Running

CONFIG = """
global:
  model_catalog:
    deployments:
      one:
        artifact: stub
        replicas: [{device: cpu}, {device: cpu}]
        outlier_detection: {consecutive_timeouts: 2, base_ejection_ms: 20000}
        drain_timeout_s: 40
      two: {artifact: stub, replicas: [{device: cpu}]}
    system: {decision_model: {deployment: one}}
stoker: {listen: "127.0.0.1:0"}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("details"), CONFIG) as started:
        started.wait_ready(3)
        yield started


def details(running: Running, name: str) -> ReplicaDetails:
    answer = running.ask(GetReplica(replica=name))
    assert isinstance(answer, ReplicaDetails)
    return answer


def test_the_history_says_how_a_process_ended_by_name(running: Running) -> None:
    pid = details(running, "one/1").replica.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    running.wait_event(ReplicaReady, lambda event: (event.replica, event.incarnation) == ("one/1", 2))
    history = details(running, "one/1").history
    assert [change.time for change in history] == sorted(change.time for change in history)
    ended = [change for change in history if change.exit is not None]
    assert {(change.incarnation, change.exit) for change in ended} == {(1, "SIGKILL")}
    assert ended[-1].state == "restarting" and ended[-1].reason == "SIGKILL"
    last = history[-1]
    assert (last.state, last.incarnation, last.exit) == ("ready", 2, None)


def test_an_ejection_is_told_with_its_streak_and_the_next_length(running: Running) -> None:
    before = details(running, "one/0").ejection
    assert before is not None
    assert (before.timeouts, before.needed, before.ejected_s, before.next_s, before.ejections) == (0, 2, 0.0, 20.0, 0)
    running.accepted(Eject(replica="one/0"))
    running.wait_event(ReplicaEjected, lambda event: event.replica == "one/0")
    after = details(running, "one/0").ejection
    assert after is not None and after.by_hand and 0 < after.ejected_s <= 20
    assert (after.needed, after.next_s, after.ejections) == (1, 40.0, 1)


def test_a_drain_says_what_is_left_since_when_and_its_ceiling(running: Running) -> None:
    body = {"model": "two", "prompt": "x", "max_tokens": 200}
    asking = threading.Thread(target=running.post, args=("/v1/completions", body), daemon=True)
    asking.start()
    running.wait_status(lambda inventory: inventory.totals.in_flight == 1)
    running.accepted(DrainReplica(replica="two/0"))
    row = details(running, "two/0").replica
    assert row.state == "draining" and row.in_flight == 1 and row.drain_ceiling_s == pytest.approx(30.0, abs=0.1)
    assert row.in_state_s + row.drain_left_s == pytest.approx(row.drain_ceiling_s, abs=0.1)
    asking.join()
    running.wait_status(lambda inventory: inventory.deployments[1].replicas[0].state == "stopped")
    assert details(running, "two/0").ejection is None
    running.accepted(Restart(target="two/0"))
    running.wait_status(lambda inventory: inventory.deployments[1].replicas[0].state == "ready")


def test_totals_are_those_of_the_rows(running: Running) -> None:
    for _ in range(5):
        running.post("/v1/embeddings", {"model": "one", "input": "x"})
    status = running.wait_status(lambda one: sum(row.forwards for row in one.deployments[0].replicas) >= 5)
    assert status.totals.requests == sum(one.requests for one in status.deployments) >= 5
    assert status.totals.failures == sum(one.failures for one in status.deployments)
    assert status.totals.p50_ms is not None and status.totals.p99_ms is not None
    row = next(each for each in status.deployments[0].replicas if each.forwards)
    assert row.rows >= row.forwards and row.busy_s >= 0 and row.tokens >= 0


def test_a_replica_that_is_not_there_is_refused_by_name(running: Running) -> None:
    with pytest.raises(CommandRefused, match="no replica 'one/9'"):
        running.ask(GetReplica(replica="one/9"))


def test_the_log_of_a_deployment_has_only_its_own_lines(running: Running) -> None:
    answer = running.ask(GetLogs(deployment="one", lines=500))
    assert isinstance(answer, Lines)
    assert {line.replica.split("/")[0] for line in answer.lines} <= {"one"}
    with pytest.raises(CommandRefused, match="no deployment 'three'"):
        running.ask(GetLogs(deployment="three"))
    with running.client() as client:
        client.ask(Subscribe(events=False, logs=True, deployment="one"))
        for name in ("two/0", "one/0", "one/1"):
            running.faults(name, say=f"{name} speaks\n", say_times=1)
        heard: list[str] = []
        for notice in client.notices(timeout_s=30):
            heard += [line.text for line in notice.lines] if isinstance(notice, LogNotice) else []
            if "one/1 speaks" in heard:
                break
        assert "one/0 speaks" in heard and "two/0 speaks" not in heard
