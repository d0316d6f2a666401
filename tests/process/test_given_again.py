"""Answers that are given again (spec 10): with one replica at the gateway, with several in each engine.

The class behind it answers with its process and with how many rows that one had computed, so an answer tells who
computed it, and when.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from supervisor.control.events import ReplicaReady
from supervisor.control.messages import DeploymentStatus, DrainReplica, Restart, Scale
from supervisor.native import Client
from tests.conftest import Serve
from tests.support import LONG_S, Answer, Running

USERS = """
import os
import time


class Unsaid:
    task = "embed"

    def __init__(self):
        self.rows = 0

    def forward(self, rows):
        return [self.compute(row) for row in rows]

    def compute(self, row):
        while row.startswith("/") and not os.path.exists(row.partition(" ")[0]):
            time.sleep(0.002)
        if row == "bad":
            raise ValueError("bad")
        self.rows += 1
        return [float(os.getpid()), float(self.rows)]


class Same(Unsaid):
    deterministic = True


class Talks:
    task = "generate"
    deterministic = True
    said = 0

    def forward(self, rows):
        self.said += len(rows)
        return [str(self.said) for _ in rows]
"""


def deployment(name: str, kind: str, replicas: int = 1, entries: int = 4096) -> str:
    return f"""
      {name}:
        artifact: "users:{kind}"
        replicas: [{", ".join(["{device: cpu}"] * replicas)}]
        result_cache_entries: {entries}"""


def config(*deployments: str) -> str:
    return "global:\n  model_catalog:\n    deployments:" + "".join(deployments) + "\nstoker: {listen: 127.0.0.1:0}\n"


@pytest.fixture
def serve_own(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serve from a working directory that holds `users.py`."""
    (tmp_path / "users.py").write_text(USERS)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    return serve


def embed(running: Running, *texts: str, model: str = "same", **headers: str) -> Answer:
    return running.post("/v1/embeddings", {"model": model, "input": list(texts)}, headers)


def computed(answer: Answer) -> list[tuple[int, int]]:
    """Of each input: the process that computed it, and as which of its rows."""
    assert answer.status == 200, answer.body
    return [(int(row["embedding"][0]), int(row["embedding"][1])) for row in answer.json["data"]]


def row_of(running: Running, name: str = "same") -> DeploymentStatus:
    return next(one for one in running.inventory().deployments if one.name == name)


def metric(running: Running, name: str, **labels: str) -> float:
    text = running.get("/metrics").body.decode()
    wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    (value,) = re.findall(rf"^{name}{{{re.escape(wanted)}}} (\S+)$", text, re.MULTILINE)
    return float(value)


def test_with_one_replica_the_same_request_is_answered_at_the_gateway(serve_own: Serve) -> None:
    running = serve_own(config(deployment("same", "Same")))
    running.wait_ready(1)
    first = embed(running, "a", "b")
    again = embed(running, "a", "b", **{"X-Request-Id": "mine"})
    assert again.body == first.body and (again.status, again.replica) == (200, "same/0")
    assert again.headers["x-request-id"] == "mine" and again.headers["content-type"] == "application/json"

    async def ask() -> Any:
        async with Client(running.runtime.clients) as client:
            return await client.embeddings(["a", "b"], model="same"), await client.embeddings(["a", "b"], model="same")

    native, native_again = asyncio.run(ask())
    assert native == native_again, "native requests and HTTP share it"
    assert running.replica("same/0").requests == 2

    assert embed(running, "bad").status == 500
    assert embed(running, "a", "b").body == first.body, "it is not asked, so its backoff does not matter"
    status = row_of(running)
    cache = status.result_cache
    assert cache is not None and cache.active and cache.bytes > len(first.body)
    assert (cache.hits, cache.misses, cache.entries) == (3, 3, 2) and status.requests == running.replica(
        "same/0"
    ).requests + cache.hits
    assert metric(running, "stoker_result_cache_hits_total", deployment="same") == cache.hits
    assert metric(running, "stoker_result_cache_misses_total", deployment="same") == cache.misses
    cached = metric(running, "stoker_requests_total", deployment="same", outcome="cached", replica="")
    assert cached == cache.hits
    assert metric(running, "stoker_requests_total", deployment="same", outcome="failed", replica="same/0") == 1


def test_what_is_known_is_answered_while_the_replica_is_full(serve_own: Serve, tmp_path: Path) -> None:
    running = serve_own(config(deployment("same", "Same")))
    running.wait_ready(1)
    gate = tmp_path / "gate"
    known = embed(running, "known")
    statuses: list[int] = []

    def wait_behind_the_gate() -> None:
        statuses.extend(running.together(lambda number: embed(running, f"{gate} {number}").status, 32))

    waiting = threading.Thread(target=wait_behind_the_gate)
    waiting.start()
    try:
        running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].in_flight == 32)
        assert embed(running, "unknown").status == 429
        assert embed(running, "known").body == known.body
    finally:
        gate.touch()
        waiting.join(LONG_S)
    assert statuses == [200] * 32


def test_it_is_emptied_when_the_replica_restarts_or_dies(serve_own: Serve) -> None:
    running = serve_own(config(deployment("same", "Same")))
    running.wait_ready(1)
    (first,) = computed(embed(running, "a"))
    assert computed(embed(running, "a")) == [first]
    running.accepted(Restart(target="same/0"))
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 2)
    (second,) = computed(embed(running, "a"))
    assert second[0] == running.replica("same/0").pid != first[0]
    os.kill(second[0], signal.SIGKILL)
    running.wait_event(ReplicaReady, lambda event: event.incarnation == 3)
    (third,) = computed(embed(running, "a"))
    assert third[0] == running.replica("same/0").pid != second[0]
    running.accepted(DrainReplica(replica="same/0"))
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].state == "stopped")
    assert embed(running, "a").status == 503
    cache = row_of(running).result_cache
    assert cache is not None and not cache.active and cache.bytes == 0


def test_with_several_replicas_each_engine_keeps_rows_and_the_gateway_none(serve_own: Serve) -> None:
    running = serve_own(config(deployment("same", "Same")))
    running.wait_ready(1)
    assert computed(embed(running, "a")) == computed(embed(running, "a"))
    running.accepted(Scale(deployment="same", replicas=2))
    running.wait_ready(2)
    cache = row_of(running).result_cache
    assert cache is not None and not cache.active and cache.bytes == 0

    answers = [embed(running, "a", "b"), embed(running, "b", "a"), embed(running, "a"), embed(running, "b")]
    rows: dict[str, set[tuple[int, int]]] = {}
    for answer in answers:
        rows.setdefault(answer.replica, set()).update(computed(answer))
    assert set(rows) == {"same/0", "same/1"}
    assert all(len(known) == 2 for known in rows.values()), "each replica computed each row once"
    running.wait_status(lambda found: sum(row.cached_rows for row in found.deployments[0].replicas) >= 2)
    assert metric(running, "stoker_cached_rows_total", deployment="same", replica="same/0") >= 1

    running.accepted(Scale(deployment="same", replicas=1))
    running.wait_status(lambda found: len(found.deployments[0].replicas) == 1)
    hits = row_of(running).result_cache
    assert hits is not None and hits.active and (hits.hits, hits.entries) == (1, 0)
    assert embed(running, "a").body == embed(running, "a").body
    after = row_of(running).result_cache
    assert after is not None and (after.hits, after.entries) == (2, 1)


def test_nothing_is_remembered_where_it_is_off_unsaid_or_generated(serve_own: Serve) -> None:
    running = serve_own(
        config(deployment("off", "Same", entries=0), deployment("unsaid", "Unsaid"), deployment("talks", "Talks"))
    )
    running.wait_ready(3)
    for model in ("off", "unsaid"):
        ((_, one),), ((_, other),) = (computed(embed(running, "a", model=model)) for _ in range(2))
        assert other == one + 1, "computed anew"
    said = [running.post("/v1/completions", {"model": "talks", "prompt": "x"}) for _ in range(2)]
    assert [answer.json["choices"][0]["text"] for answer in said] == ["1", "2"]
    for one in running.inventory().deployments:
        assert one.result_cache is not None and not one.result_cache.active and one.result_cache.hits == 0
        assert one.replicas[0].cached_rows == 0
        card = one.replicas[0].card
        assert card is not None and card.deterministic == (one.name == "off")
