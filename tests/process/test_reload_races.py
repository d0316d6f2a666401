"""A reload meets what goes on at that moment: drains, trials, ejections, scales (spec 8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.control.events import ReplicaReady
from supervisor.control.messages import CommandRefused, Eject, Reload, Restart, Scale, Trial
from tests.conftest import Serve
from tests.support import Running


def deployment(name: str, replicas: int = 1, more: str = "") -> str:
    rows = ", ".join(["{device: cpu}"] * replicas)
    return f"""
      {name}:
        artifact: stub
        replicas: [{rows}]
        engine_args: {{engine: stub}}
{more}"""


def document(*deployments: str, default: str = "a") -> str:
    return f"""
global:
  model_catalog:
    deployments:{"".join(deployments)}
    system: {{decision_model: {{deployment: {default}}}}}
stoker: {{listen: "127.0.0.1:0"}}
"""


def ask(running: Running, model: str) -> int:
    return running.post("/v1/embeddings", {"model": model, "input": "x"}).status


def reload(running: Running, text: str) -> None:
    running.config.write_text(text)
    running.accepted(Reload())


@contextmanager
def one_in_flight(running: Running, model: str) -> Iterator[list[int]]:
    """A request that is under way meanwhile; its status once it is answered."""
    statuses: list[int] = []
    running.faults(f"{model}/0", hang=True)
    thread = threading.Thread(target=lambda: statuses.append(ask(running, model)))
    thread.start()
    running.wait_status(lambda found: any(row.in_flight for each in found.deployments for row in each.replicas))
    try:
        yield statuses
    finally:
        running.faults(f"{model}/0")
        thread.join()


def names(running: Running) -> list[str]:
    return [each.name for each in running.inventory().deployments]


def test_a_deployment_that_was_removed_is_gone_for_all_but_what_it_has_in_flight(serve: Serve) -> None:
    running = serve(document(deployment("a"), deployment("b")))
    running.wait_ready(2)
    with one_in_flight(running, "b") as statuses:
        reload(running, document(deployment("a")))
        assert names(running) == ["a", "b"], "it drains"
        assert running.get("/ready").status == 200, "nobody waits for it"
        assert [row["id"] for row in running.get("/v1/models").json["data"]] == ["a"]
        assert (ask(running, "b"), running.get("/v1/models/b").status) == (404, 404)
        with pytest.raises(CommandRefused, match="b was removed by a reload"):
            running.accepted(Scale(deployment="b", replicas=2))
    assert statuses == [200]
    running.wait_status(lambda found: len(found.deployments) == 1)


def test_a_renamed_deployment_answers_to_its_artifact_while_the_old_one_drains(serve: Serve) -> None:
    running = serve(document(deployment("old"), default="old"))
    running.wait_ready(1)
    with one_in_flight(running, "old") as statuses:
        reload(running, document(deployment("new"), default="new"))
        running.wait_event(ReplicaReady, lambda event: event.replica == "new/0")
        assert names(running) == ["old", "new"]
        assert ask(running, "stub") == 200
    assert statuses == [200]


def test_the_end_of_a_trial_brings_no_removed_deployment_back(serve: Serve) -> None:
    running = serve(document(deployment("a"), deployment("b")))
    running.wait_ready(2)
    with one_in_flight(running, "b") as statuses:
        with running.client() as client:
            client.ask(Trial(deployment="b", replicas=2))
            reload(running, document(deployment("a")))
        assert names(running) == ["a", "b"]
    assert statuses == [200]
    running.wait_status(lambda found: len(found.deployments) == 1)


def test_the_cool_down_of_a_removed_deployment_is_nobodys(serve: Serve) -> None:
    soon = "        outlier_detection: {base_ejection_ms: 200}\n"
    running = serve(document(deployment("a"), deployment("b", 2, more=soon)))
    running.wait_ready(3)
    running.accepted(Eject(replica="b/0"))
    reload(running, document(deployment("a")))
    running.wait_status(lambda found: len(found.deployments) == 1)
    time.sleep(0.3)  # nothing tells of a cool-down that does nothing
    assert "Traceback" not in running.log() and ask(running, "a") == 200


def test_a_scale_that_meets_a_reload_is_not_undone_by_it(serve: Serve) -> None:
    long = "# a long comment, so that reading takes a moment\n" * 2000
    running = serve(document(deployment("a")) + long)
    running.wait_ready(1)
    for round_ in range(6):
        wanted = 2 + round_ % 2
        reloading = threading.Thread(target=lambda: running.accepted(Reload()))
        reloading.start()
        time.sleep(0.002)  # into the middle of it
        running.accepted(Scale(deployment="a", replicas=wanted))
        reloading.join()
        assert running.inventory().deployments[0].desired_replicas == wanted
        assert running.config.read_text().count("device: cpu") == wanted


def test_a_lone_replica_whose_card_changed_sets_what_holds(serve: Serve) -> None:
    running = serve(document(deployment("a")))
    running.wait_ready(1)
    running.faults("a/0", wrong_card=True)
    running.accepted(Restart(target="a/0"))
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    assert ask(running, "a") == 200
    running.accepted(Scale(deployment="a", replicas=2))
    running.wait_status(lambda found: {row.state for row in found.deployments[0].replicas} == {"ready", "incompatible"})


def test_totals_do_not_fall_with_the_number_of_replicas(serve: Serve) -> None:
    running = serve(document(deployment("a", 2)))
    running.wait_ready(2)
    for _ in range(6):
        assert ask(running, "a") == 200
    running.accepted(Scale(deployment="a", replicas=1))
    found = running.wait_status(lambda found: len(found.deployments[0].replicas) == 1)
    assert (found.totals.requests, found.deployments[0].requests) == (6, 6)
