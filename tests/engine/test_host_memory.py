"""How much memory a replica may still take, from fake /proc and /sys/fs/cgroup trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.host_memory import available_bytes

MIB = 1024 * 1024


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    return tmp_path / "proc"


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_without_a_cgroup_it_is_what_the_kernel_calls_available(proc: Path, tmp_path: Path) -> None:
    assert available_bytes(proc, tmp_path / "none") == 2048 * MIB


def test_a_cgroups_limit_counts_and_its_page_cache_is_free(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    used = {"memory__current": str(900 * MIB), "memory__stat": f"anon 5\ninactive_file {100 * MIB}"}
    group(tmp_path / "cg" / "a" / "b", memory__max=str(1000 * MIB), **used)
    assert available_bytes(proc, tmp_path / "cg") == 200 * MIB


@pytest.mark.parametrize("tight", ["", "a", "a/b"])
def test_the_tightest_of_all_groups_above_counts(proc: Path, tmp_path: Path, tight: str) -> None:
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    for folder in ("", "a", "a/b"):
        most = str(500 * MIB) if folder == tight else "max"
        group(tmp_path / "cg" / folder, memory__max=most, memory__current=str(100 * MIB))
    assert available_bytes(proc, tmp_path / "cg") == 400 * MIB


def test_a_limit_of_cgroup_v1_counts(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("7:cpu,cpuacct:/x\n5:memory:/x\n0::/x\n")
    files = {"memory__limit_in_bytes": str(300 * MIB), "memory__usage_in_bytes": str(50 * MIB)}
    group(tmp_path / "cg" / "memory" / "x", **files)
    assert available_bytes(proc, tmp_path / "cg") == 250 * MIB


def test_over_its_limit_there_is_none_and_never_less(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/\n")
    group(tmp_path / "cg", memory__max=str(100 * MIB), memory__current=str(120 * MIB))
    assert available_bytes(proc, tmp_path / "cg") == 0


def test_on_this_machine_there_is_some() -> None:
    found = available_bytes()
    assert found is not None and found > MIB
