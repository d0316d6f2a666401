"""How many files this process may have open: its limit is raised, clients get half of it, processes need some left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import stub_config

RAISED = """
import resource
from supervisor.host.descriptors import for_clients, raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), for_clients())
"""

FILLED = """
import os, resource
from supervisor.host.descriptors import SPARE, are_left
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
opened = []
while are_left():
    opened.append(os.dup(0))
free = 0
try:
    while True:
        os.dup(0)
        free += 1
except OSError:
    print(free == SPARE - 1, len(opened) > 0)
"""

LOW = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
sys.argv = ["stoker", "serve", "--headless", "-c", sys.argv[1], "--name", "low"]
runpy.run_module("ui.cli.main", run_name="__main__")
"""


def said(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_the_limit_is_raised_as_far_as_the_system_lets_us_and_half_of_it_is_for_clients() -> None:
    assert said(RAISED) == ["300", "300", "150"]


def test_no_process_is_started_with_the_last_descriptors() -> None:
    assert said(FILLED) == ["True", "True"]


def test_a_limit_that_is_too_low_for_anything_is_one_sentence_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "stoker.yaml").write_text(stub_config(1))
    environ = {"STOKER_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path), "PATH": ""}
    command = [sys.executable, "-c", LOW, str(tmp_path / "stoker.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 1
    assert "may have 64 files open; a supervisor needs 256 at least: raise the hard limit" in done.stderr
    assert "Traceback" not in done.stderr
