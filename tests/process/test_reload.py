"""The document is the desired state: reload, scale written back, rolling restart (spec 3, 8)."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from supervisor.commands import NOTHING_RESTARTS
from supervisor.control.events import (
    DrainStarted,
    Reloaded,
    ReloadFailed,
    ReplicaReady,
    ReplicaState,
    Scaled,
    Warned,
)
from supervisor.control.messages import Accepted, CommandRefused, Reload, Restart, Scale
from tests.conftest import Serve
from tests.support import Running, stub_config

AT_ONCE_S = 10.0
"""Far below the drain of 60 s that would have to be waited for; how quick it is, the benchmarks tell."""

CONFIG = """\
# the fleet of the test bench
global:
  model_catalog:
    deployments:
      stub:    # one word
        provider: "model_runtime"
        artifact: 'stub'
        replicas:
          - device: cpu   # the first
          - device: cpu   # the second
        timeout_ms: 30000
stoker:
  listen: "127.0.0.1:0"
"""


def pids(running: Running) -> dict[str, int | None]:
    return {row.name: row.pid for row in running.replicas()}


def reload(running: Running, text: str) -> list[str]:
    running.config.write_text(text)
    return [line for line in running.accepted(Reload()).text.split("\n") if line != NOTHING_RESTARTS]


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text,
        lambda text: text.replace("# the first", "# another comment"),
        lambda text: text.replace("30000", "25000"),
        lambda text: text.replace("        timeout_ms: 30000\n", "        drain_timeout_s: 12\n"),
        lambda text: text.replace('        provider: "model_runtime"\n', "").replace("'stub'", "stub"),
    ],
    ids=["identical", "another comment", "another limit", "another drain", "other quoting"],
)
def test_what_changes_no_identity_restarts_nothing(serve: Serve, edit: object) -> None:
    running = serve(CONFIG)
    running.wait_ready(2)
    before = pids(running)
    assert reload(running, edit(CONFIG)) == []  # type: ignore[operator]
    assert pids(running) == before
    assert {row.incarnation for row in running.replicas()} == {1}


def test_a_limit_that_needs_no_restart_is_in_force_after_a_reload(serve: Serve) -> None:
    running = serve(CONFIG)
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, hang=True)
    reload(running, CONFIG.replace("30000", "200"))
    assert running.embed().status == 504


def test_four_to_six_to_three_replicas_keeps_the_same_processes(serve: Serve) -> None:
    running = serve(stub_config(replicas=4))
    running.wait_ready(4)
    four = pids(running)
    assert reload(running, stub_config(replicas=6)) == ["stub: 4 kept, 2 added, 0 removed"]
    running.wait_ready(6)
    six = pids(running)
    assert four.items() <= six.items()
    assert reload(running, stub_config(replicas=3)) == ["stub: 3 kept, 0 added, 3 removed"]
    running.wait_status(lambda inventory: len(inventory.deployments[0].replicas) == 3)
    assert pids(running).items() <= six.items()


def test_sighup_reloads_too(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.config.write_text(stub_config(replicas=2))
    running.process.send_signal(signal.SIGHUP)
    assert running.wait_event(Reloaded).differences == ["stub: 1 kept, 1 added, 0 removed"]
    running.wait_ready(2)


def test_a_moved_replica_serves_until_its_successor_is_ready(serve: Serve) -> None:
    config = stub_config(replicas=1, engine_args="load_ms: 500")
    running = serve(config.replace("cpu", "cuda:0"), environ={"STOKER_SIMULATE_DEVICES": "cuda:2"})
    running.wait_ready(1)
    statuses: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            statuses.append(running.embed().status)

    thread = threading.Thread(target=ask)
    thread.start()
    reload(running, config.replace("cpu", "cuda:1"))
    ready = running.wait_event(ReplicaReady, lambda event: event.replica == "stub/1")
    gone = running.wait_event(ReplicaState, lambda event: event.replica == "stub/0" and event.after == "draining")
    over.set()
    thread.join()
    assert ready.seq < gone.seq and set(statuses) == {200}
    running.wait_status(lambda inventory: len(inventory.deployments[0].replicas) == 1)
    assert [row.device for row in running.replicas()] == ["cuda:1"]


def test_an_invalid_file_changes_nothing_and_every_problem_is_told(serve: Serve) -> None:
    running = serve(CONFIG)
    running.wait_ready(2)
    before = pids(running)
    with pytest.raises(CommandRefused) as refused:
        reload(running, CONFIG.replace("30000", "soon").replace("device: cpu   # the first", "devise: cpu"))
    assert "timeout_ms" in str(refused.value) and "devise" in str(refused.value)
    assert running.wait_event(ReloadFailed).problem
    assert pids(running) == before and running.get("/ready").status == 200


def test_an_artifact_that_cannot_load_leaves_the_old_pool_serving(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    before = pids(running)
    reload(running, stub_config(replicas=2, engine_args="faults: {noise: true}"))
    running.wait_event(ReplicaState, lambda event: event.after == "failed")
    assert running.get("/ready").status == 200
    assert running.embed().status == 200
    assert before.items() <= pids(running).items()
    running.accepted(Restart(target="stub"))
    with pytest.raises(CommandRefused, match="being replaced"):
        running.accepted(Restart(target="stub/0"))
    assert running.embed().status == 200, "a restart took the pool down that serves until its successor is ready"
    reload(running, stub_config(replicas=2))
    running.wait_status(lambda inventory: len(inventory.deployments[0].replicas) == 2)
    assert pids(running) == before


def test_a_deployment_that_is_removed_is_drained_and_its_name_unknown(serve: Serve) -> None:
    two = stub_config(replicas=1).replace(
        "    system:", "      other:\n        artifact: stub\n        device: cpu\n    system:"
    )
    running = serve(two)
    running.wait_ready(2)
    assert reload(running, stub_config(replicas=1)) == ["other: 0 kept, 0 added, 1 removed"]
    running.wait_status(lambda inventory: [row.name for row in inventory.deployments] == ["stub"])
    assert running.post("/v1/embeddings", {"model": "other", "input": "x"}).status == 404


def test_scale_is_written_back_and_everything_else_stays_byte_for_byte(serve: Serve) -> None:
    running = serve(CONFIG)
    running.wait_ready(2)
    answer = running.accepted(Scale(deployment="stub", replicas=3))
    assert answer.saved is True
    after = running.config.read_text()
    assert after == CONFIG.replace("# the second\n", "# the second\n          - device: cpu\n")
    running.accepted(Scale(deployment="stub", replicas=2))
    assert running.config.read_text() == CONFIG


def test_scaling_over_http_is_all_or_nothing_and_written_back_too(serve: Serve) -> None:
    running = serve(CONFIG + "  admin_scale: true\n")
    running.wait_ready(2)
    assert running.post("/v1/admin/scale", {"deployments": {"stub": 3, "nobody": 1}}).status == 404
    assert running.post("/v1/admin/scale", {"deployments": {"stub": True}}).status == 400
    answer = running.post("/v1/admin/scale", {"deployments": {"stub": 3}})
    assert answer.json["deployments"]["stub"]["replicas"] == 3
    running.wait_ready(3)
    running.accepted(Scale(deployment="stub", replicas=3))  # the disk thread works in order: the first edit is done
    assert running.config.read_text().count("- device: cpu") == 3


def test_scaling_over_http_is_off_unless_it_is_switched_on(serve: Serve) -> None:
    running = serve(CONFIG)
    running.wait_ready(2)
    assert running.post("/v1/admin/scale", {"deployments": {"stub": 3}}).status == 403
    assert running.get("/v1/admin/scale").status == 403


def test_a_config_that_cannot_be_written_does_not_stop_the_action(serve: Serve) -> None:
    running = serve(CONFIG)
    running.wait_ready(2)
    running.config.unlink()
    running.config.mkdir()
    answer = running.accepted(Scale(deployment="stub", replicas=3))
    assert answer.saved is False and "not saved" in answer.text
    running.wait_ready(3)
    assert any("not saved" in event.message for event in running.events(Warned))


def test_a_rolling_restart_takes_one_at_a_time_and_loses_nothing(serve: Serve) -> None:
    running = serve(stub_config(replicas=3, engine_args="latency_ms: 5"))
    running.wait_ready(3)
    statuses: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            statuses.append(running.embed().status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    running.accepted(Restart(target="stub"))
    running.wait_event(ReplicaReady, lambda event: event.replica == "stub/2" and event.incarnation == 2)
    over.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}
    story = [
        (event.replica, event.after)
        for event in running.events(ReplicaState)
        if event.after in ("ready", "stopped") and event.seq > running.events(ReplicaReady)[2].seq
    ]
    assert story == [(f"stub/{n}", state) for n in range(3) for state in ("stopped", "ready")]


def test_the_last_asked_number_wins(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    for count in (5, 1, 4, 2, 3):
        running.accepted(Scale(deployment="stub", replicas=count))
    running.wait_status(
        lambda inventory: inventory.deployments[0].ready_replicas == 3 == len(inventory.deployments[0].replicas)
    )
    assert [event.after for event in running.events(Scaled)] == [5, 1, 4, 2, 3]


@pytest.mark.parametrize("count", [0, -1, 65])
def test_a_number_that_no_deployment_may_have_is_refused(serve: Serve, count: int) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    with pytest.raises(CommandRefused, match="1 to 64"):
        running.accepted(Scale(deployment="stub", replicas=count))


def test_while_one_drains_everything_else_is_answered_at_once(serve: Serve) -> None:
    running = serve(stub_config(replicas=3, drain_timeout_s=60))
    running.wait_ready(3)
    running.faults("stub/0", hang=True)
    connection = running.connect()
    connection.request("POST", "/v1/embeddings", b'{"input": "hangs"}')
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 1)
    from supervisor.control.messages import DrainReplica

    running.accepted(DrainReplica(replica="stub/0"))
    running.wait_event(DrainStarted)
    with running.client() as client:
        for command in (
            Scale(deployment="stub", replicas=4),
            Restart(target="stub/1"),
            Scale(deployment="stub", delta=-1),
        ):
            started = time.monotonic()
            assert isinstance(client.ask(command), Accepted)
            assert time.monotonic() - started < AT_ONCE_S
    started = time.monotonic()
    assert running.inventory().deployments[0].replicas[0].state == "draining"
    assert time.monotonic() - started < AT_ONCE_S
    connection.close()
