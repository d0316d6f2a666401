"""The CPU budget and pinned cores, seen from outside a running supervisor (spec 9)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.control.messages import DrainReplica, Scale
from supervisor.host.cpu import affinity_cores, cpu_budget
from tests.conftest import Serve
from tests.support import Running, stub_config

BOUND = hasattr(os, "sched_setaffinity")


@pytest.mark.skipif(not BOUND, reason="this platform knows no affinity")
def test_under_taskset_the_budget_and_the_threads_are_those_of_one_core(tmp_path: Path) -> None:
    core = affinity_cores()[0]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        running = Running(tmp_path, stub_config(replicas=1), environ={"STOKER_CPU_THREADS": "8"})
    finally:
        os.sched_setaffinity(0, allowed)
    try:
        running.wait_ready(1)
        assert running.inventory().supervisor.cpu_budget == 1
        assert [row.threads for row in running.replicas()] == [1], "8 are asked for, and capped"
    finally:
        running.close()


CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
"""Where version 1 mounts the hierarchy that limits CPU."""


@pytest.fixture
def nested_group() -> Iterator[Path]:
    """A group of the real hierarchy with one below it, in which this process runs meanwhile; the upper one."""
    upper = CPU_GROUPS / f"stoker-test-{os.getpid()}"
    lower = upper / "inner"
    before = next(
        (line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":cpu:" in line), None
    )
    if before is None or not os.access(CPU_GROUPS, os.W_OK):
        pytest.skip("no cgroup v1 hierarchy here that this user may add a group to")
    try:
        lower.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"groups cannot be made here: {error}")
    home = CPU_GROUPS / before.lstrip("/") / "cgroup.procs"
    try:
        (lower / "cgroup.procs").write_text(str(os.getpid()))
        yield upper
    finally:
        home.write_text(str(os.getpid()))
        lower.rmdir()
        upper.rmdir()


@pytest.mark.parametrize(("cores", "pinned"), [(0.5, False), (1.5, False), (1.5, True)])
def test_a_real_quota_above_the_group_is_the_budget_rounded_up_with_the_affinity(
    tmp_path: Path, nested_group: Path, cores: float, pinned: bool
) -> None:
    (nested_group / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
    allowed = os.sched_getaffinity(0)
    usable = {min(allowed)} if pinned else allowed
    os.sched_setaffinity(0, usable)
    try:
        running = Running(tmp_path, stub_config(replicas=1), environ={"STOKER_CPU_THREADS": "8"})
        with contextlib.closing(running):
            os.sched_setaffinity(0, allowed)
            running.wait_ready(1)
            expected = min(len(usable), -(-int(cores * 10) // 10))
            assert running.inventory().supervisor.cpu_budget == expected
            assert [row.threads for row in running.replicas()] == [expected], "8 are asked for, and capped"
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_number_in_the_environment_is_capped_by_the_budget(serve: Serve) -> None:
    running = serve(stub_config(replicas=1, cpu={"threads": 1}), environ={"STOKER_CPU_THREADS": "8"})
    running.wait_ready(1)
    assert running.replica("stub/0").threads == min(8, cpu_budget().cores)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("STOKER_CPU_THREADS", "0"), ("STOKER_CPU_THREADS", "many"), ("STOKER_CPU_ADAPTIVE_THREADS", "3")],
)
def test_a_variable_that_says_nothing_usable_is_an_error_at_the_start(
    tmp_path: Path, variable: str, value: str
) -> None:
    file = tmp_path / "stoker.yaml"
    file.write_text(stub_config(replicas=1))
    environ = {**os.environ, "STOKER_RUNTIME_DIR": str(tmp_path / "run"), variable: value}
    command = [sys.executable, "-m", "ui.cli.main", "serve", "--headless", "-c", str(file)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and variable in done.stderr and repr(value) in done.stderr


def test_a_replica_that_was_drained_by_hand_uses_no_threads(serve: Serve) -> None:
    running = serve(stub_config(replicas=2, cpu={"threads": 1}))
    running.wait_ready(2)
    assert running.inventory().supervisor.cpu_threads_used == 2
    running.accepted(DrainReplica(replica="stub/1"))
    found = running.wait_status(lambda found: found.deployments[0].replicas[1].state == "stopped")
    assert found.supervisor.cpu_threads_used == 1


@pytest.mark.skipif(not BOUND, reason="this platform knows no affinity")
def test_spread_pins_replicas_to_disjoint_cores_while_they_fit(serve: Serve) -> None:
    mine = affinity_cores()
    running = serve(stub_config(replicas=len(mine) + 1, cpu={"threads": 1, "affinity": "spread"}))
    running.wait_ready(len(mine) + 1)
    rows = running.replicas()
    pinned = [row for row in rows if row.cores]
    assert sorted(core for row in pinned for core in row.cores) == list(mine)
    for row in rows:
        expected = row.cores or list(mine)
        assert row.pid is not None and psutil.Process(row.pid).cpu_affinity() == expected
    left = {row.name: row.cores for row in rows if row.name != rows[-1].name}
    running.accepted(Scale(deployment="stub", replicas=len(mine)))
    running.wait_status(lambda status: len(status.deployments[0].replicas) == len(mine))
    for row in running.replicas():
        assert row.cores == left.get(row.name, row.cores), "nobody is moved"
