"""Processes die: replicas under load, all of them, the supervisor itself; what is left and what is said (spec 2, 5)."""

from __future__ import annotations

import os
import signal
import threading

import psutil
import pytest

from supervisor.control.events import ReplicaBackoff, ReplicaExited, ReplicaFailed, ReplicaReady, ReplicaState
from supervisor.control.messages import DrainReplica, Restart, Scale
from tests.conftest import Serve
from tests.support import Running, stub_config, wait_for_none


class Load:
    """Clients that ask on and on; `statuses` is what they got."""

    def __init__(self, running: Running, clients: int = 8) -> None:
        self.statuses: list[int] = []
        self._running = running
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            self.statuses.append(self._running.embed().status)


def test_a_replica_killed_under_load_comes_back_as_incarnation_two_and_no_request_is_lost(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, engine_args="latency_ms: 5"))
    running.wait_ready(2)
    with Load(running) as load:
        victim = running.replica("stub/0")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        exited = running.wait_event(ReplicaExited)
        running.wait_event(ReplicaReady, lambda event: event.replica == "stub/0" and event.incarnation == 2)
    assert exited.reason == "SIGKILL" and exited.restart_in_s == 1.0
    row = running.replica("stub/0")
    assert (row.incarnation, row.restarts, row.last_exit) == (2, 1, "SIGKILL")
    assert set(load.statuses) == {200}


def test_a_killed_replica_with_much_in_flight_is_told_of_once_and_does_not_back_off(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, engine_args="latency_ms: 300"))
    running.wait_ready(2)
    with Load(running, clients=16) as load:
        running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight >= 4)
        victim = running.replica("stub/0")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        running.wait_event(ReplicaExited)
    assert set(load.statuses) == {200}
    assert not running.events(ReplicaBackoff)


def test_all_replicas_dead_and_kept_from_starting_is_503_at_once(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="latency_ms: 1"))
    running.wait_ready(1)
    pid = running.replica("stub/0").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    running.wait_event(ReplicaExited)
    answer = running.embed()
    assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
    assert running.replica("stub/0").state == "restarting", "it waited for no replica"
    assert running.get("/ready").status == 503
    assert running.get("/health").status == 200
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    assert running.get("/ready").status == 200


def test_sigkill_of_the_supervisor_leaves_no_engine_and_the_name_is_free_at_once(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, hang=True)
    connections = [running.connect() for _ in range(4)]
    for connection in connections:
        connection.request("POST", "/v1/embeddings", b'{"input": "in a forward"}')
    running.wait_status(lambda inventory: sum(row.in_flight for row in inventory.deployments[0].replicas) == 4)
    assert len(running.descendants()) == 4, "supervisor, template, two replicas"
    running.kill()
    assert wait_for_none(running.root) == []
    for connection in connections:
        connection.close()
    del running._address
    running.launch()
    running.wait_ready(2)
    assert running.get("/ready").status == 200


def in_phase(serve: Serve, phase: str) -> Running:
    """A supervisor in the middle of something."""
    match phase:
        case "the template loads":
            running = serve(stub_config(replicas=4, engine_args="load_ms: 20000"))
            running.wait_event(ReplicaState, lambda event: event.after == "loading")
        case "replicas are forked":
            running = serve(stub_config(replicas=1))
            running.wait_ready(1)
            running.accepted(Scale(deployment="stub", replicas=16))
        case "replicas warm":
            running = serve(stub_config(replicas=2, engine_args="latency_ms: 20000"))
            running.wait_event(ReplicaState, lambda event: event.after == "warming")
        case _:
            running = serve(stub_config(replicas=2))
            running.wait_ready(2)
            running.faults("stub/0", hang=True)
            connection = running.connect()
            connection.request("POST", "/v1/embeddings", b'{"input": "hangs"}')
            running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 1)
            running.accepted(DrainReplica(replica="stub/0"))
            connection.close()
    return running


@pytest.mark.parametrize("phase", ["the template loads", "replicas are forked", "replicas warm", "one drains"])
def test_sigkill_of_the_supervisor_leaves_nothing_in_any_phase(serve: Serve, phase: str) -> None:
    running = in_phase(serve, phase)
    running.kill()
    assert wait_for_none(running.root) == []


def test_a_replica_that_exits_while_loading_is_seen_with_exit_code_and_last_lines(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="faults: {exit_while_loading: true}"))
    exited = running.wait_event(ReplicaExited, limit_s=5)
    assert exited.reason == "exit code 7"
    assert exited.last_lines[-1] == "stub: exiting while loading, as asked"
    assert running.get("/ready").status == 503
    failed = running.wait_event(ReplicaFailed)
    assert "exited 3 times" in failed.reason
    row = running.replica("stub/0")
    assert (row.state, row.incarnation) == ("failed", 3)
    assert "stub: exiting while loading, as asked" in row.last_lines


def test_a_failed_slot_is_tried_again_when_it_is_restarted(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, engine_args="faults: {noise: true}"))
    failed = running.wait_event(ReplicaFailed)
    assert "golden" in failed.reason
    assert running.replica("stub/0").incarnation == 1, "a failed golden check is final"
    running.accepted(Restart(target="stub/0"))
    running.wait_event(ReplicaFailed, lambda event: event.incarnation == 2)


def test_faults_of_a_start_that_were_set_while_it_runs_meet_the_next_start(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    running.faults("stub/1", wrong_card=True)
    running.accepted(Restart(target="stub/1"))
    differing = running.wait_event(ReplicaState, lambda event: event.after == "incompatible")
    assert "dimensions is 9, its siblings have 8" in differing.reason
    assert {running.embed().replica for _ in range(4)} == {"stub/0"}
    running.faults("stub/1")
    running.accepted(Restart(target="stub/1"))
    running.wait_event(ReplicaReady, lambda event: event.replica == "stub/1" and event.incarnation == 3)


def test_a_crash_says_its_signal_and_its_last_words(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", crash=True)
    exited = running.wait_event(ReplicaExited)
    assert exited.reason == "SIGSEGV"
    assert exited.last_lines[-1] == "stub: crashing on request"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_it_with_code_zero(serve: Serve, number: signal.Signals) -> None:
    running = serve(stub_config(replicas=2, engine_args="latency_ms: 600"))
    running.wait_ready(2)
    connection = running.connect()
    connection.request("POST", "/v1/embeddings", b'{"input": "in flight"}')
    running.wait_status(lambda inventory: any(row.in_flight for row in inventory.deployments[0].replicas))
    running.process.send_signal(number)
    assert connection.getresponse().status == 200, "a request in flight was lost by the shutdown"
    connection.close()
    assert running.process.wait(30) == 0


def test_a_second_signal_cuts_the_drain(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    connection = running.connect()
    connection.request("POST", "/v1/embeddings", b'{"input": "hangs"}')
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 1)
    running.process.send_signal(signal.SIGTERM)
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].state == "draining")
    running.process.send_signal(signal.SIGTERM)
    assert connection.getresponse().status == 502
    connection.close()
    assert running.process.wait(30) == 0
    assert "cut with 1 exchange in flight" in running.log()


def test_no_zombie_and_no_thread_is_left_behind_by_restarts(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    for incarnation in (2, 3):
        running.accepted(Restart(target="stub/0"))
        running.wait_event(ReplicaReady, lambda event, wanted=incarnation: event.incarnation == wanted)
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert [child.status() != psutil.STATUS_ZOMBIE for child in children] == [True, True], "template and replica"
