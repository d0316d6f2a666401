"""The drain of an attached replica: its server is waited for, never stopped, and left in peace (spec 10)."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.control.events import DrainEnded, ReplicaReady, ReplicaState, Warned
from supervisor.control.messages import DrainReplica, Kill, Restart
from tests.conftest import Serve
from tests.process.foreign_server import WAITING
from tests.process.test_attached import attached_config
from tests.support import Running

SERVER = str(Path(__file__).with_name("foreign_server.py"))
NAME = "mixed/0"


class Foreign:
    """A foreign server that somebody else started."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, SERVER], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(" ")[2])
        self.row = f'{{endpoint: "http://127.0.0.1:{self.port}", model: m}}'

    def switch(self, **values: Any) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", "/switch", json.dumps(values))
        assert connection.getresponse().read() == b"{}"
        connection.close()

    def lives(self) -> bool:
        self.switch()
        return self.process.poll() is None


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    server = Foreign()
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def attached(serve: Serve, foreign: Foreign, drain_timeout_s: float) -> Running:
    running = serve(attached_config(foreign.row, drain_timeout_s=drain_timeout_s))
    running.wait_ready(1)
    return running


def left(running: Running) -> DrainEnded:
    ended: DrainEnded = running.wait_event(DrainEnded)
    running.wait_event(ReplicaState, lambda event: event.after == "stopped")
    return ended


def test_it_waits_for_what_others_have_in_the_server_and_then_for_six_seconds_of_zeros(
    serve: Serve, foreign: Foreign
) -> None:
    running = attached(serve, foreign, drain_timeout_s=60)
    foreign.switch(tokens=3, hold_at=1)
    connection = running.connect()
    connection.request("POST", "/v1/completions", json.dumps({"model": "mixed", "prompt": "x", "stream": True}))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    foreign.switch(held=2)
    running.accepted(DrainReplica(replica=NAME))
    assert running.replica(NAME).state == "draining"
    foreign.switch(hold_at=None)
    assert response.read().endswith(b"data: [DONE]\n\n"), "ours is waited for"
    connection.close()
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 0)
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].reason.endswith("its server has 2"))
    assert running.replica(NAME).state == "draining", "and then theirs"
    foreign.switch(held=0)
    ended = left(running)
    assert ended.seconds > 6 and ended.cut == 0
    assert running.events(Warned) == [] and foreign.lives()


def test_a_metric_that_is_missing_is_named_and_not_waited_for(serve: Serve, foreign: Foreign) -> None:
    running = attached(serve, foreign, drain_timeout_s=60)
    foreign.switch(held=2, missing=WAITING)
    running.accepted(DrainReplica(replica=NAME))
    assert left(running).seconds < 5
    (warned,) = running.events(Warned)
    missing = f"its /metrics has no {WAITING} that can be read"
    assert warned.message == f"{NAME} leaves without waiting for its server: {missing}"


def test_a_server_that_never_drains_is_let_go_at_the_ceiling(serve: Serve, foreign: Foreign) -> None:
    running = attached(serve, foreign, drain_timeout_s=1.2)
    foreign.switch(held=3)
    running.accepted(DrainReplica(replica=NAME))
    ended = left(running)
    assert ended.seconds > 1.1 and ended.cut == 0, "what others have in it goes on"
    (warned,) = running.events(Warned)
    assert warned.message == f"the drain of {NAME} was cut with 3 requests in its server"
    assert foreign.lives()


def test_nothing_is_waited_for_where_only_stoker_leaves(serve: Serve, foreign: Foreign) -> None:
    running = attached(serve, foreign, drain_timeout_s=600)
    foreign.switch(held=3)
    running.accepted(Restart(target=NAME))
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    running.accepted(DrainReplica(replica=NAME))
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].drain_left_s > 0)
    running.accepted(Kill(replica=NAME, incarnation=2))
    running.wait_event(ReplicaState, lambda event: event.after == "stopped" and event.incarnation == 2)
    running.accepted(Restart(target=NAME))
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 3)
    running.accepted(DrainReplica(replica=NAME))
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].drain_left_s > 0)
    assert running.stop() == 0
    assert foreign.lives()
