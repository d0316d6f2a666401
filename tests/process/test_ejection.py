"""A replica that keeps timing out is ejected, others never suffer for it (spec 7), with real processes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from supervisor.control.events import (
    EjectionWithheld,
    ReplicaBackoff,
    ReplicaEjected,
    ReplicaReadmitted,
    ReplicaReady,
)
from supervisor.control.messages import Eject, EventNotice, GetEvents, Readmit, Restart, Subscribe, Subscribed
from tests.conftest import Serve
from tests.support import Answer, Running, stub_config

CASE_1: dict[str, Any] = {"timeout_ms": 300, "outlier_detection": {"base_ejection_ms": 2000}}


class Asking:
    """Clients that ask on and on until the end of the block; `answers` is what they got."""

    def __init__(self, running: Running, clients: int = 2, timeout_ms: int | None = None) -> None:
        self.answers: list[Answer] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(running, timeout_ms)) for _ in range(clients)]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, running: Running, timeout_ms: int | None) -> None:
        while not self._over.is_set():
            self.answers.append(running.embed(timeout_ms=timeout_ms))


def of(running: Running, replica: str) -> list[Any]:
    """The events of dispatch about one replica, in order."""
    kinds = (ReplicaBackoff, ReplicaEjected, ReplicaReadmitted, EjectionWithheld)
    return [event for event in running.events() if isinstance(event, kinds) and event.replica == replica]


def test_one_hangs_one_answers_backoff_then_ejection_that_doubles_while_it_goes_on(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, **CASE_1))
    running.wait_ready(2)
    running.faults("stub/0", hang=True)
    with Asking(running) as asking:
        running.wait_event(ReplicaEjected, lambda event: event.seconds == 4.0)
    story = [(type(event).__name__, getattr(event, "seconds", None)) for event in of(running, "stub/0")]
    assert story[:7] == [
        ("ReplicaBackoff", 0.1),
        ("ReplicaBackoff", 0.2),
        ("ReplicaEjected", 2.0),
        ("ReplicaBackoff", 0.4),
        ("ReplicaReadmitted", None),
        ("ReplicaEjected", 4.0),
        ("ReplicaBackoff", 0.8),
    ]
    assert of(running, "stub/1") == []
    statuses = {answer.status for answer in asking.answers}
    assert statuses == {200, 504}
    assert all(answer.replica == "stub/1" for answer in asking.answers if answer.status == 200)
    assert sum(answer.status == 504 for answer in asking.answers) <= 6, "the hung one was given too many"
    first, second = (event for event in of(running, "stub/0") if isinstance(event, ReplicaEjected))
    assert 2.0 <= second.time - first.time < 8.0
    (row,) = (row for row in running.replicas() if row.name == "stub/0")
    assert row.state == "ejected" and 0 < row.ejected_s <= 4.0


def test_the_success_of_an_exchange_that_was_open_when_it_was_ejected_readmits_at_once(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, outlier_detection={"consecutive_timeouts": 1}))
    running.wait_ready(2)
    running.faults("stub/0", hang=True)
    running.faults("stub/1", slow_ms=700)
    answers: dict[str, Answer] = {}

    def ask(name: str, text: str, timeout_ms: int | None = None) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({name: running.embed(text, timeout_ms)}))
        thread.start()
        return thread

    def until_in_flight(replica: int, count: int) -> None:
        running.wait_status(lambda inventory: inventory.deployments[0].replicas[replica].in_flight == count)

    times_out = ask("times out", "short, on A", timeout_ms=2000)
    until_in_flight(0, 1)
    large = ask("large", "long, on B: it answers while A hangs " + "x" * 10_000)
    until_in_flight(1, 1)
    still_open = ask("still open", "short, on A, since B is busy")
    until_in_flight(0, 2)
    running.wait_event(ReplicaEjected)
    assert running.replica("stub/0").state == "ejected"
    running.faults("stub/0")
    assert running.wait_event(ReplicaReadmitted).by == "success"
    assert running.replica("stub/0").state == "ready"
    for thread in (times_out, large, still_open):
        thread.join()
    assert {name: answer.status for name, answer in answers.items()} == {
        "times out": 504,
        "large": 200,
        "still open": 200,
    }


def _until(client: Any, kind: type) -> list[EventNotice]:
    found = []
    deadline = time.monotonic() + 20
    for notice in client.notices(timeout_s=0.5):
        assert time.monotonic() < deadline, f"no {kind.__name__}: {found}"
        if isinstance(notice, EventNotice):
            found.append(notice)
            if isinstance(notice.event, kind):
                break
    return found


def test_a_model_that_is_slow_everywhere_keeps_all_replicas_and_says_why(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, **CASE_1))
    running.wait_ready(2)
    for name in ("stub/0", "stub/1"):
        running.faults(name, slow_ms=1000)
    with Asking(running, clients=4):
        running.wait_event(EjectionWithheld)
    assert not running.events(ReplicaEjected)
    assert {event.reason for event in running.events(EjectionWithheld)} == {"no_peer_answered"}
    metrics = running.get("/metrics").body.decode()
    assert 'stoker_ejections_withheld_total{deployment="stub",reason="no_peer_answered"}' in metrics


def test_two_of_five_hung_are_both_out_and_never_more_than_two(serve: Serve) -> None:
    detection = {"consecutive_timeouts": 1, "base_ejection_ms": 20_000, "max_ejection_percent": 50}
    running = serve(stub_config(replicas=5, timeout_ms=300, outlier_detection=detection))
    running.wait_ready(5)
    for name in ("stub/1", "stub/3", "stub/4"):
        running.faults(name, hang=True)
    with Asking(running, clients=6):
        running.wait_event(EjectionWithheld, lambda event: event.reason == "max_ejection_percent")
        ejected = [row.name for row in running.replicas() if row.state == "ejected"]
    assert len(ejected) == 2 and set(ejected) <= {"stub/1", "stub/3", "stub/4"}


def test_the_only_replica_is_never_ejected(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, outlier_detection={"consecutive_timeouts": 1}))
    running.wait_ready(1)
    running.faults("stub/0", hang=True)
    assert {running.embed(timeout_ms=50).status for _ in range(6)} == {504}
    assert of(running, "stub/0") == [], "a caller's own limit neither backs off nor ejects the only replica"
    running.faults("stub/0")
    assert running.embed().status == 200


def test_the_ejected_serve_again_when_everybody_else_is_gone(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    running.accepted(Eject(replica="stub/0"))
    assert {running.embed().replica for _ in range(6)} == {"stub/1"}
    pid = running.replica("stub/1").pid
    assert pid is not None
    running.faults("stub/1", crash=True)
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[1].state == "restarting")
    answer = running.embed()
    assert (answer.status, answer.replica) == (200, "stub/0")
    assert running.wait_event(ReplicaReadmitted).by == "success"


def test_eject_and_readmit_by_hand(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    running.accepted(Eject(replica="stub/1"))
    assert running.replica("stub/1").state == "ejected"
    assert {running.embed().replica for _ in range(4)} == {"stub/0"}
    assert running.accepted(Readmit(replica="stub/1")).text == "readmitted stub/1"
    assert running.wait_event(ReplicaReadmitted).by == "hand"
    assert {running.embed().replica for _ in range(4)} == {"stub/0", "stub/1"}
    assert running.accepted(Readmit(replica="stub/1")).text == "stub/1 was not ejected"


def test_a_new_incarnation_starts_clean(serve: Serve) -> None:
    running = serve(stub_config(replicas=2))
    running.wait_ready(2)
    running.accepted(Eject(replica="stub/0"))
    running.accepted(Restart(target="stub/0"))
    running.wait_event(ReplicaReady, lambda event: event.replica == "stub/0" and event.incarnation == 2)
    assert running.replica("stub/0").state == "ready"


def test_a_wave_of_timeouts_ejects_once(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, timeout_ms=1500, outlier_detection={"base_ejection_ms": 3000}))
    running.wait_ready(2)
    running.faults("stub/0", hang=True)
    running.faults("stub/1", slow_ms=300)  # slow enough that half of the wave goes to the one that hangs
    running.together(lambda _: running.embed(), 16)
    running.wait_event(ReplicaEjected)
    assert [event.seconds for event in running.events(ReplicaEjected)] == [3.0]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions"])
def test_a_fault_that_one_path_meets_counts_on_all(serve: Serve, path: str) -> None:
    running = serve(stub_config(replicas=2, **CASE_1))
    running.wait_ready(2)
    running.faults("stub/0", hang=True)
    body = {"model": "stub", "input": "x", "prompt": "x", "max_tokens": 1}
    deadline = time.monotonic() + 20
    while not running.events(ReplicaEjected):
        running.post(path, body)
        assert time.monotonic() < deadline
    for other in ("/v1/embeddings", "/v1/completions", "/v1/classify"):
        assert running.post(other, body).replica == "stub/1"


def test_the_story_can_be_followed_without_a_gap_also_from_the_middle(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, **CASE_1))
    running.wait_ready(2)
    running.faults("stub/0", hang=True)
    with Asking(running), running.client() as client:
        running.wait_event(ReplicaBackoff)
        answer = client.ask(Subscribe())
        assert isinstance(answer, Subscribed)
        heard = [notice.event for notice in _until(client, ReplicaReadmitted)]
    whole = running.ask(GetEvents()).events
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
    start = answer.inventory.supervisor.last_event
    assert [event.seq for event in heard] == list(range(start + 1, start + 1 + len(heard)))
    assert heard == whole[start : start + len(heard)]
