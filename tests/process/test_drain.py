"""A drain finishes what is in flight, takes nothing new, and leaves at once when it is done (spec 8)."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from supervisor.control.events import DrainEnded, DrainStarted, ReplicaReady, ReplicaState, Warned
from supervisor.control.messages import DrainReplica, Restart, Scale
from tests.conftest import Serve
from tests.support import Answer, Running, stub_config


class Streams:
    """Streams that run side by side; `answers` has each one's body and the time of its last byte."""

    def __init__(self, running: Running, count: int) -> None:
        self.answers: list[tuple[str, bytes, float]] = []
        self._threads = [threading.Thread(target=self._read, args=(running,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        running.wait_status(lambda inventory: sum(row.in_flight for row in inventory.deployments[0].replicas) == count)

    def _read(self, running: Running) -> None:
        connection = running.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "stream": True, "max_tokens": 500}))
        answer = Answer(connection.getresponse())
        self.answers.append((answer.replica, answer.body, time.time()))
        connection.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def pid_of(running: Running, name: str) -> int:
    pid = running.replica(name).pid
    assert pid is not None
    return pid


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_six_streams_on_two_replicas_all_complete_when_one_of_them_is_drained(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, engine_args="tokens: 150, token_ms: 20"))
    running.wait_ready(2)
    streams = Streams(running, 6)
    pid = pid_of(running, "stub/0")
    running.accepted(DrainReplica(replica="stub/0"))
    assert running.wait_event(DrainStarted).in_flight == 3
    assert {running.embed().replica for _ in range(5)} == {"stub/1"}, "a draining replica was given a request"
    stopped = running.wait_event(ReplicaState, lambda event: event.after == "stopped")
    streams.join()
    assert len(streams.answers) == 6
    assert all(body.endswith(b"data: [DONE]\n\n") for _, body, _ in streams.answers)
    last_byte = max(at for replica, _, at in streams.answers if replica == "stub/0")
    assert stopped.time - last_byte < 1.0 and is_gone(pid)
    assert running.wait_event(DrainEnded).cut == 0
    row = running.replica("stub/0")
    assert (row.state, row.cordoned) == ("stopped", True)
    assert running.inventory().deployments[0].state == "degraded"


def test_an_idle_replica_goes_at_once_and_a_restart_brings_it_back(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    pid = pid_of(running, "stub/1")
    running.accepted(DrainReplica(replica="stub/1"))
    running.wait_event(ReplicaState, lambda event: event.after == "stopped")
    assert is_gone(pid)
    running.accepted(Restart(target="stub/1"))
    running.wait_event(ReplicaReady, lambda event: event.replica == "stub/1" and event.incarnation == 2)
    assert running.replica("stub/1").cordoned is False


def test_the_ceiling_cuts_what_still_runs_with_a_warning_that_names_the_count(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, drain_timeout_s=0.5))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(running.embed())) for _ in range(3)]
    for thread in threads:
        thread.start()
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 3)
    running.accepted(DrainReplica(replica="stub/0"))
    warned = running.wait_event(Warned, lambda event: "cut" in event.message)
    assert "3 exchanges" in warned.message
    for thread in threads:
        thread.join()
    assert {answer.status for answer in answers} == {502}
    assert running.wait_event(DrainEnded).cut == 3


def test_a_ceiling_is_no_delay(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, drain_timeout_s=600))
    running.wait_ready(1)
    started = time.monotonic()
    running.accepted(DrainReplica(replica="stub/0"))
    running.wait_event(ReplicaState, lambda event: event.after == "stopped")
    assert time.monotonic() - started < 5


def test_a_scale_up_taken_back_while_the_new_one_loads_costs_no_served_capacity(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="load_ms: 3000"), environ={"STOKER_START": "spawn"})
    running.wait_ready(1)
    pid = pid_of(running, "stub/0")
    running.accepted(Scale(deployment="stub", replicas=2))
    running.wait_event(ReplicaState, lambda event: event.replica == "stub/1" and event.after == "loading")
    running.accepted(Scale(deployment="stub", replicas=1))
    running.wait_status(lambda inventory: len(inventory.deployments[0].replicas) == 1)
    assert pid_of(running, "stub/0") == pid
    assert running.embed().replica == "stub/0"


def test_the_victim_of_a_scale_down_is_the_one_with_the_fewest_in_flight(serve: Serve) -> None:
    running = serve(stub_config(replicas=3))
    running.wait_ready(3)
    for name in ("stub/0", "stub/1", "stub/2"):
        running.faults(name, hang=True)
    threads = [threading.Thread(target=running.embed, args=("x" * size,)) for size in (10, 1000, 2000, 10)]
    for number, thread in enumerate(threads):
        thread.start()
        running.wait_status(
            lambda inventory, wanted=number + 1: sum(r.in_flight for r in inventory.deployments[0].replicas) == wanted
        )
    busy = {row.name: row.in_flight for row in running.replicas()}
    assert sorted(busy.values()) == [1, 1, 2]
    running.accepted(Scale(deployment="stub", replicas=2))
    leaving: Any = running.wait_event(ReplicaState, lambda event: event.after == "draining")
    assert busy[leaving.replica] == 1 and leaving.replica == "stub/2", "the newest of those with the fewest"
    for name in ("stub/0", "stub/1", "stub/2"):
        running.faults(name)
    for thread in threads:
        thread.join()


def test_a_removed_number_is_reused_and_survivors_keep_their_names(serve: Serve) -> None:
    running = serve(stub_config(replicas=3))
    running.wait_ready(3)
    keep = {name: pid_of(running, name) for name in ("stub/0", "stub/2")}
    running.accepted(DrainReplica(replica="stub/1"))
    running.wait_event(ReplicaState, lambda event: event.after == "stopped")
    running.accepted(Scale(deployment="stub", replicas=2))
    running.wait_status(lambda inventory: len(inventory.deployments[0].replicas) == 2)
    assert {row.name: row.pid for row in running.replicas()} == keep, "the one that was out already had to go"
    running.accepted(Scale(deployment="stub", replicas=3))
    running.wait_event(ReplicaReady, lambda event: event.replica == "stub/1" and event.incarnation == 1)
