"""Foreign servers as children of Stoker: started, proxied, restarted, drained by their metrics, never left behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.errors import StokerError
from engine.exec_command import with_artifact
from supervisor.config.load import parse_config
from supervisor.control.events import DrainEnded, ReplicaExited, ReplicaFailed, ReplicaReady, ReplicaState, Warned
from supervisor.control.messages import DrainReplica, GetLogs, Kill
from supervisor.host.devices import Device
from supervisor.links.foreign_metrics import LLAMA_CPP, LOOKED_FOR, SGLANG, VLLM
from supervisor.slots.base import ManagedMake
from supervisor.slots.command import Port
from supervisor.slots.making import Machine, make
from tests.conftest import Serve
from tests.process.foreign_server import RUNNING, WAITING
from tests.support import Answer, Running, wait_for_none

SERVER = str(Path(__file__).with_name("foreign_server.py"))
BY_FLAG = [sys.executable, SERVER, "--port", "{port}"]
QUIET_S = 6.0


def config(replicas: int = 1, drain_timeout_s: float = 0, **options: Any) -> str:
    """A deployment `foreign` of the test's server; options: of the engine. A drain of 0 s waits for nothing."""
    args = {"engine": "command", "command": BY_FLAG, "model": "m", **options}
    return f"""
global:
  model_catalog:
    deployments:
      foreign:
        artifact: owner/name
        replicas: [{", ".join(["{device: cpu}"] * replicas)}]
        drain_timeout_s: {drain_timeout_s}
        engine_args: {json.dumps(args)}
stoker: {{listen: "127.0.0.1:0"}}
"""


def started(serve: Serve, replicas: int = 1, drain_timeout_s: float = 0, **options: Any) -> Running:
    running = serve(config(replicas, drain_timeout_s, **options))
    running.wait_ready(replicas)
    return running


def complete(running: Running, **more: Any) -> Answer:
    return running.post("/v1/completions", {"model": "foreign", "prompt": "x", **more})


def server(running: Running, replica: str, method: str, path: str, body: Any = None) -> Any:
    """Speak to the foreign server itself."""
    endpoint = running.replica(replica).endpoint
    assert endpoint is not None
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, json.dumps(body))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def switch(running: Running, replica: str = "foreign/0", **values: Any) -> None:
    server(running, replica, "POST", "/switch", values)


def state(running: Running, replica: str = "foreign/0") -> Any:
    return server(running, replica, "GET", "/state")


def moved(running: Running, replica: str, after: str) -> ReplicaState:
    event: ReplicaState = running.wait_event(ReplicaState, lambda e: e.replica == replica and e.after == after)
    return event


def drained(running: Running, replica: str) -> DrainEnded:
    event: DrainEnded = running.wait_event(DrainEnded, lambda event: event.replica == replica)
    return event


def stream(running: Running, **more: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A streamed completion whose first event has arrived."""
    connection = running.connect()
    body = {"model": "foreign", "prompt": "x", "stream": True, **more}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    return connection, response


# ------------------------------------------------------------------------------------------------- serving


def test_a_foreign_server_is_started_told_its_port_and_proxied_under_the_deployments_name(serve: Serve) -> None:
    running = started(serve, replicas=2, env={"OF_ITS_OWN": "yes"})
    answers = [complete(running) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.replica for answer in answers} == {"foreign/0", "foreign/1"}
    assert {answer.json["model"] for answer in answers} == {"foreign"}
    rows = running.replicas()
    assert rows[0].endpoint is not None
    assert len({row.endpoint for row in rows}) == 2
    assert [(row.managed, row.started_by) for row in rows] == [(True, "command")] * 2
    pid = rows[0].pid
    assert pid is not None and SERVER in psutil.Process(pid).cmdline(), "the launcher became the command"
    environ = state(running)["env"]
    assert environ["OF_ITS_OWN"] == "yes" and environ["OMP_NUM_THREADS"] == str(rows[0].threads)
    lines = running.ask(GetLogs(replica="foreign/0", lines=10)).lines
    assert [line.text for line in lines] == [f"serving m on port {rows[0].endpoint.rpartition(':')[2]}"]


def test_the_port_may_come_by_the_environment_and_health_be_on_another_page(serve: Serve) -> None:
    environ = {"FOREIGN_SWITCHES": json.dumps({"health_path": "/healthz"})}
    running = started(
        serve, command=[sys.executable, SERVER], port_env="FOREIGN_PORT", health_path="/healthz", env=environ
    )
    assert complete(running).status == 200


def test_it_gets_no_requests_before_its_health_is_good_and_none_while_it_is_not(serve: Serve) -> None:
    running = serve(config(env={"FOREIGN_SWITCHES": json.dumps({"health": 503})}))
    running.wait_status(lambda inventory: "503" in inventory.deployments[0].replicas[0].reason)
    assert (running.replica("foreign/0").state, complete(running).status) == ("loading", 503)
    switch(running, health=200)
    running.wait_ready(1)
    switch(running, health=500)
    moved(running, "foreign/0", "unresponsive")
    switch(running, health=200)
    running.wait_event(ReplicaState, lambda event: (event.before, event.after) == ("unresponsive", "ready"))
    assert complete(running).status == 200


def test_a_stream_arrives_whole_and_piece_by_piece(serve: Serve) -> None:
    running = started(serve)
    switch(running, tokens=3, hold_at=1)
    connection, response = stream(running)
    assert state(running)["running"] == 1, "its first piece is here, and its second is not made yet"
    switch(running, hold_at=None)
    rest = response.read().decode()
    assert "token 2" in rest and rest.endswith("data: [DONE]\n\n") and '"model":"foreign"' in rest
    connection.close()


def test_a_caller_that_leaves_closes_the_connection_to_the_server(serve: Serve) -> None:
    running = started(serve)
    switch(running, tokens=10_000)
    connection, response = stream(running)
    response.close()
    connection.close()
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 0)
    deadline = time.monotonic() + 5
    while state(running)["cancelled"] != 1:
        assert time.monotonic() < deadline, "the server still generates"


# ------------------------------------------------------------------------------------------------- its process


def test_a_crash_loses_no_request_and_is_told_with_its_reason_and_last_lines(serve: Serve) -> None:
    running = started(serve, replicas=2)
    for name in ("foreign/0", "foreign/1"):
        switch(running, name, token_s=1.0)
    answers: list[Answer] = []
    callers = [threading.Thread(target=lambda: answers.append(complete(running))) for _ in range(6)]
    for caller in callers:
        caller.start()
    running.wait_status(lambda inventory: sum(row.in_flight for row in inventory.deployments[0].replicas) == 6)
    with pytest.raises(http.client.RemoteDisconnected):
        switch(running, "foreign/0", exit=3)
    exited = running.wait_event(ReplicaExited)
    for caller in callers:
        caller.join()
    assert [answer.status for answer in answers] == [200] * 6
    assert (exited.replica, exited.reason, exited.restart_in_s) == ("foreign/0", "exit code 3", 1.0)
    assert exited.last_lines[-1] == "exiting with 3, as asked"
    running.wait_event(ReplicaReady, lambda event: event.replica == "foreign/0" and event.incarnation == 2)
    assert running.replica("foreign/0").restarts == 1


def test_memory_cpu_and_output_are_those_of_all_its_processes(serve: Serve) -> None:
    running = started(serve)
    alone = running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].rss_bytes > 5_000_000)
    before = alone.deployments[0].replicas[0].rss_bytes
    switch(running, child=True)
    inventory = running.wait_status(
        lambda inventory: (
            (row := inventory.deployments[0].replicas[0]).rss_bytes > before + 50_000_000 and row.cpu_percent > 5
        )
    )
    row = inventory.deployments[0].replicas[0]
    group = [process for process in running.descendants() if os.getpgid(process.pid) == row.pid]
    assert len(group) == 3, "the server, its watcher, its worker"
    assert row.rss_bytes == pytest.approx(sum(process.memory_info().rss for process in group), rel=0.2)
    page = running.get("/metrics").body.decode()
    (shown,) = re.findall(r'stoker_replica_resident_bytes\{.*replica="foreign/0"\} (\S+)', page)
    assert float(shown) > before + 50_000_000
    lines = [line.text for line in running.ask(GetLogs(replica="foreign/0", lines=10)).lines]
    assert "a worker of the server" in lines


def test_kill_ends_it_at_once_and_it_comes_back(serve: Serve) -> None:
    running = started(serve)
    running.accepted(Kill(replica="foreign/0", incarnation=1))
    assert running.wait_event(ReplicaExited).reason.endswith("(SIGKILL)")
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)


def test_a_command_that_is_not_there_is_given_up_at_once(serve: Serve) -> None:
    running = started(serve)
    running.config.write_text(config(command=["/nowhere/serve", "{port}"]))
    running.process.send_signal(signal.SIGHUP)
    failed = running.wait_event(ReplicaFailed)
    assert "its command '/nowhere/serve' cannot be executed (exit code 127)" in failed.reason
    assert running.replica(failed.replica).last_lines == [
        "/nowhere/serve: expected a program that can be executed, found none"
    ]


def test_a_server_that_shares_no_port_gets_one_to_itself_at_its_second_start(serve: Serve) -> None:
    running = serve(config(env={"FOREIGN_SWITCHES": json.dumps({"reuse": False})}))
    exited = running.wait_event(ReplicaExited)
    assert "Address already in use" in exited.last_lines[-1]
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    assert complete(running).status == 200


def test_a_port_is_the_servers_from_the_moment_it_is_picked() -> None:
    ports = [Port() for _ in range(20)]
    assert len({port.number for port in ports}) == 20
    HTTPServer(("127.0.0.1", ports[0].number), BaseHTTPRequestHandler).server_close()
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", ports[0].number))
    for port in ports:
        port.free()
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[0].number))


def test_an_artifact_that_is_here_is_handed_over_as_its_path_and_a_hub_id_as_it_is() -> None:
    command = ["serve", "--model={artifact}"]
    here = str(Path(SERVER).parents[2] / "engine" / "messages.py")
    assert with_artifact(command, "pkg:engine/messages.py") == ["serve", f"--model={here}"]
    assert with_artifact(command, "owner/name") == ["serve", "--model=owner/name"]
    with pytest.raises(StokerError, match="found nothing at /nowhere"):
        with_artifact(command, "/nowhere")


def test_sigkill_of_the_supervisor_leaves_no_foreign_server_and_none_of_its_children(serve: Serve) -> None:
    running = started(serve, replicas=2)
    switch(running, child=True)
    assert len(running.descendants()) == 6, "supervisor, two servers, their watchers, a worker"
    running.kill()
    assert wait_for_none(running.root) == []


def test_a_gpu_replica_sees_its_own_card_alone() -> None:
    deployment = parse_config(config().replace("device: cpu", "device: cuda:1"), "c").config.deployments["foreign"]
    cards = [Device(f"cuda:{index}", "cuda", index, "card") for index in range(2)]
    machine = Machine(endpoint="", cpu_cores=2, devices=cards, environ={}, cores=(0, 1), cpu_flags=())
    made = make(deployment, deployment.replicas[0], machine, deployment.replicas)
    assert isinstance(made, ManagedMake) and made.env["CUDA_VISIBLE_DEVICES"] == "1"


# ------------------------------------------------------------------------------------------------- drain


def test_a_drain_waits_for_six_seconds_of_zeros_and_for_a_gauge_that_lags(serve: Serve) -> None:
    running = started(serve, replicas=3, drain_timeout_s=300)
    for name in ("foreign/0", "foreign/1", "foreign/2"):
        switch(running, name, lag_s=4.0, hold_at=1)
    connection, response = stream(running)
    replica = response.headers["x-stoker-replica"]
    idle, left = sorted({"foreign/0", "foreign/1", "foreign/2"} - {replica})
    for name in (replica, idle):
        running.accepted(DrainReplica(replica=name))
        assert running.replica(name).state == "draining"
    assert {complete(running).replica for _ in range(4)} == {left}, "out of rotation at once"
    switch(running, replica, hold_at=None)
    assert response.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    assert drained(running, idle).seconds >= QUIET_S
    assert drained(running, replica).seconds >= QUIET_S + 4, "the gauge lagged by 4 s"
    assert running.events(Warned) == []
    switch(running, left, missing=RUNNING)


@pytest.mark.parametrize(
    ("switched", "named"),
    [
        ({"missing": RUNNING}, f"its /metrics has no {RUNNING} that can be read"),
        ({"missing": WAITING}, f"its /metrics has no {WAITING} that can be read"),
        ({"metrics": 501}, f"its /metrics with {LOOKED_FOR} answered 501 Not Implemented: # TYPE"),
    ],
)
def test_a_metric_that_is_missing_is_named_and_not_waited_for(
    serve: Serve, switched: dict[str, Any], named: str
) -> None:
    running = started(serve, drain_timeout_s=30)
    switch(running, **switched)
    running.accepted(DrainReplica(replica="foreign/0"))
    ended = running.wait_event(DrainEnded)
    assert ended.seconds < 1
    (warned,) = running.events(Warned)
    assert warned.message.startswith("foreign/0 leaves without waiting for its server: ") and named in warned.message
    moved(running, "foreign/0", "stopped")


def test_what_stoker_proxies_is_waited_for_also_without_metrics(serve: Serve) -> None:
    running = started(serve, drain_timeout_s=30)
    switch(running, missing=RUNNING, tokens=6, token_s=0.2)
    connection, response = stream(running)
    running.accepted(DrainReplica(replica="foreign/0"))
    assert response.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    assert running.wait_event(DrainEnded).cut == 0


def test_a_server_that_never_drains_is_stopped_at_the_ceiling(serve: Serve) -> None:
    running = started(serve, replicas=3, drain_timeout_s=1.5)
    kinds = {"foreign/0": VLLM, "foreign/1": SGLANG, "foreign/2": LLAMA_CPP}
    for held, (name, kind) in enumerate(kinds.items(), 3):
        switch(running, name, names=kind.gauges[:2], held=held)
        running.accepted(DrainReplica(replica=name))
    for held, name in enumerate(kinds, 3):
        ended = drained(running, name)
        assert 1.4 < ended.seconds < 15 and ended.cut == held
        moved(running, name, "stopped")
    assert sorted(event.message for event in running.events(Warned)) == [
        f"the drain of {name} was cut with {held} requests in its server" for held, name in enumerate(kinds, 3)
    ]
