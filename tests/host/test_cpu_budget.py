"""What CPU a process may use, read from fake /proc and /sys/fs/cgroup trees (spec 9)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.cpu import CpuBudget, affinity_cores, cpu_budget

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
TWELVE = range(12)


class Machine:
    """A fake machine: its /proc/self files and its cgroup files."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.sys.mkdir()

    def says(self, cgroup: str = "", mounts: str | None = None) -> Machine:
        (self.proc / "self/cgroup").write_text(cgroup)
        if mounts is not None:
            (self.proc / "self/mountinfo").write_text(mounts)
        return self

    def has(self, path: str, text: str) -> Machine:
        file = self.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def budget(self, cores: range = TWELVE) -> CpuBudget:
        return cpu_budget(self.proc, self.sys, cores)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_quota_the_affinity_is_the_budget(machine: Machine) -> None:
    machine.says("0::/a\n", V2_MOUNT).has("a/cpu.max", "max 100000\n")
    assert machine.budget() == CpuBudget(12, 12, None, "affinity")


def test_a_v2_quota_is_rounded_up_and_named(machine: Machine) -> None:
    machine.says("0::/a/b\n", V2_MOUNT).has("a/b/cpu.max", "150000 100000\n")
    assert machine.budget() == CpuBudget(2, 12, 1.5, str(machine.sys / "a/b/cpu.max"))


@pytest.mark.parametrize("tight", ["cpu.max", "a/cpu.max", "a/b/cpu.max", "a/b/c/cpu.max"])
def test_the_tightest_ancestor_wins_wherever_it_is(machine: Machine, tight: str) -> None:
    machine.says("0::/a/b/c\n", V2_MOUNT)
    for path in ("cpu.max", "a/cpu.max", "a/b/cpu.max", "a/b/c/cpu.max"):
        machine.has(path, "300000 100000" if path == tight else "800000 100000")
    assert machine.budget() == CpuBudget(3, 12, 3.0, str(machine.sys / tight))


def test_a_sibling_group_does_not_count(machine: Machine) -> None:
    machine.says("0::/a/b\n", V2_MOUNT).has("a/other/cpu.max", "100000 100000")
    assert machine.budget().cores == 12


def test_a_v1_quota_counts_with_its_ancestors(machine: Machine) -> None:
    machine.says("4:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/x\n", V1_MOUNT)
    machine.has("cpu,cpuacct/kubepods/cpu.cfs_quota_us", "250000").has(
        "cpu,cpuacct/kubepods/cpu.cfs_period_us", "100000"
    )
    machine.has("cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us", "-1").has(
        "cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us", "100000"
    )
    assert (machine.budget().cores, machine.budget().quota) == (3, 2.5)


def test_a_hybrid_host_is_limited_by_whichever_version_is_tighter(machine: Machine) -> None:
    unified = V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    machine.says("3:cpu,cpuacct:/g\n0::/g\n", f"{V1_MOUNT}\n{unified}\n")
    machine.has("cpu,cpuacct/g/cpu.cfs_quota_us", "600000").has("cpu,cpuacct/g/cpu.cfs_period_us", "100000")
    machine.has("unified/g/cpu.max", "400000 100000")
    assert machine.budget().cores == 4


def test_a_container_sees_its_group_at_the_root_of_the_mount(machine: Machine) -> None:
    """Docker with cgroup v1: the path is the host's, the mount shows only the container's group."""
    machine.says("4:cpu,cpuacct:/docker/abc\n", V1_MOUNT.replace(" / /sys", " /docker/abc /sys"))
    machine.has("cpu,cpuacct/cpu.cfs_quota_us", "200000").has("cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert machine.budget().cores == 2


@pytest.mark.parametrize("group", ["/elsewhere/x", "/../../host.slice", "relative"])
def test_a_group_outside_the_mount_is_limited_by_the_mount_point(machine: Machine, group: str) -> None:
    machine.says(f"0::{group}\n", V2_MOUNT.replace(" / /sys", " /mine /sys")).has("cpu.max", "200000 100000")
    assert machine.budget().cores == 2


@pytest.mark.parametrize("file", ["a/cpu.max", "cpu.max"])
def test_without_mountinfo_the_usual_places_are_read(machine: Machine, file: str) -> None:
    machine.says("0::/a\n").has(file, "200000 100000")
    assert machine.budget().cores == 2


def test_a_quota_above_the_affinity_does_not_raise_the_budget(machine: Machine) -> None:
    machine.says("0::/\n", V2_MOUNT).has("cpu.max", "6400000 100000")
    assert machine.budget(range(3)) == CpuBudget(3, 3, 64.0, "affinity")


@pytest.mark.parametrize(
    "text",
    ["", "max", "-1 100000", "0 100000", "100000 0", "1 2 3", "1e5 100000", "９ 100000", "9" * 5000 + " 1"],
)
def test_a_malformed_quota_limits_nothing(machine: Machine, text: str) -> None:
    machine.says("0::/\n", V2_MOUNT).has("cpu.max", text)
    assert machine.budget().cores == 12


def test_a_machine_without_any_of_the_files_has_its_affinity(tmp_path: Path) -> None:
    assert cpu_budget(tmp_path / "no", tmp_path / "nothing", range(5)) == CpuBudget(5, 5, None, "affinity")


@given(cgroup=st.binary(max_size=200), mounts=st.binary(max_size=200), quota=st.binary(max_size=60))
def test_no_content_of_the_files_makes_it_raise(
    tmp_path_factory: pytest.TempPathFactory, cgroup: bytes, mounts: bytes, quota: bytes
) -> None:
    root = tmp_path_factory.mktemp("fuzz")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_bytes(b"0::/" + cgroup)
    (root / "proc/self/mountinfo").write_bytes(V2_MOUNT.encode() + b"\n" + mounts)
    (root / "cpu.max").write_bytes(quota)
    assert 1 <= cpu_budget(root / "proc", root, TWELVE).cores <= 12


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform knows no affinity")
def test_a_process_bound_to_one_core_has_a_budget_of_one() -> None:
    core = affinity_cores()[0]
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}}); "
        "from supervisor.host.cpu import cpu_budget; print(cpu_budget().cores)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert answer.stdout.strip() == "1"


def test_this_process_never_has_more_than_its_affinity() -> None:
    assert 1 <= cpu_budget().cores <= len(affinity_cores())
