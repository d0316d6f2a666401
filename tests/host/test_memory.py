"""When memory is short, from fake /proc and /sys/fs/cgroup trees, and how much of it bodies may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.messages import MAX_BODY_BYTES
from supervisor.host import memory
from supervisor.host.memory import body_bound, memory_is_short

MIB = 1024 * 1024


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/pod/container\n")
    return tmp_path / "proc"


def machine(proc: Path, available_mib: int) -> None:
    (proc / "meminfo").write_text(f"MemTotal: {4096 * 1024} kB\nMemAvailable: {available_mib * 1024} kB\n")


def limited(folder: Path, used_mib: int, cache_mib: int = 0) -> None:
    """A group of 1000 MiB."""
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{1000 * MIB}\n")
    (folder / "memory.current").write_text(f"{used_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file {cache_mib * MIB}\n")


@pytest.mark.parametrize(("available_mib", "short"), [(500, False), (400, True)])
def test_memory_is_short_where_less_than_a_tenth_of_the_machines_is_left(
    proc: Path, tmp_path: Path, available_mib: int, short: bool
) -> None:
    machine(proc, available_mib)
    assert memory_is_short(proc, tmp_path / "none") is short


@pytest.mark.parametrize(("used_mib", "short"), [(850, False), (950, True)])
@pytest.mark.parametrize("group", ["pod", "pod/container"])
def test_memory_is_short_where_less_than_a_tenth_of_a_control_groups_is_left(
    proc: Path, tmp_path: Path, group: str, used_mib: int, short: bool
) -> None:
    machine(proc, 3000)
    limited(tmp_path / "cg" / group, used_mib)
    assert memory_is_short(proc, tmp_path / "cg") is short


def test_a_groups_page_cache_does_not_make_memory_short(proc: Path, tmp_path: Path) -> None:
    machine(proc, 3000)
    limited(tmp_path / "cg" / "pod", 990, cache_mib=500)
    assert not memory_is_short(proc, tmp_path / "cg")


@pytest.mark.parametrize(
    ("available", "most", "told"),
    [
        (None, 4, "could not be told"),
        (32, 8, "a quarter of"),
        (15, 4, "the least, where a quarter"),
        (6, 3, "half of"),
        (0, 1, "one body of the largest"),
    ],
)
def test_bodies_may_take_a_quarter_of_what_is_available_or_four_of_the_largest_if_that_is_not_more_than_half(
    monkeypatch: pytest.MonkeyPatch, available: int | None, most: int, told: str
) -> None:
    """In bodies of the largest."""
    monkeypatch.setattr(memory, "available_bytes", lambda: None if available is None else available * MAX_BODY_BYTES)
    assert body_bound().most == most * MAX_BODY_BYTES
    assert told in body_bound().told


PINNED = """
import psutil
from supervisor.host.memory import give_back_freed_memory, keep_freed_memory
keep_freed_memory()
resident = lambda: psutil.Process().memory_info().rss >> 20
before = resident()
pieces = [b"x" * (256 * 1024 + number) for number in range(1200)]
pin = [bytes(700) for _ in range(100)]
del pieces
held = resident() - before
give_back_freed_memory()
print(held > 250, resident() - before < 100)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_memory_below_what_is_still_used_is_given_back_after_a_peak() -> None:
    done = subprocess.run([sys.executable, "-c", PINNED], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"]
