"""Started in odd ways: a standard stream that is closed, a path that is no UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support import LONG_S, kill_all, processes_of, stub_config

STOKER = [sys.executable, "-m", "ui.cli.main"]


def serves(folder: Path, config: Path, redirected: str = "") -> list[dict[str, object]]:
    """Start it in a shell, wait until it is ready, stop it; its events."""
    environ = {**os.environ, "STOKER_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state")}
    line = f'exec "$@" {redirected}'
    process = subprocess.Popen(["sh", "-c", line, "sh", *STOKER, "serve", "--headless", "-c", config], env=environ)
    try:
        deadline = time.monotonic() + LONG_S
        while subprocess.run([*STOKER, "status"], env=environ, capture_output=True, check=False).returncode:
            assert process.poll() is None and time.monotonic() < deadline, "it does not serve"
            time.sleep(0.05)  # nothing tells that a socket came into being
        subprocess.run([*STOKER, "stop", "--wait"], env=environ, capture_output=True, check=True)
        assert process.wait(LONG_S) == 0
    finally:
        kill_all(processes_of(folder / "run"))
    return [json.loads(line) for line in (folder / "state" / "stoker" / "default" / "events.jsonl").open()]


def test_it_serves_with_its_standard_streams_closed(tmp_path: Path) -> None:
    config = tmp_path / "stoker.yaml"
    config.write_text(stub_config(replicas=1))
    assert serves(tmp_path, config, "<&- >&- 2>&-")[0]["event"] == "supervisor_started"


def test_it_serves_a_config_whose_path_is_no_utf_8_and_tells_of_it(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    config = folder / "stoker.yaml"
    config.write_text(stub_config(replicas=1).replace("artifact: stub", "artifact: stub\n        public_name: mine", 1))
    told = [event["message"] for event in serves(tmp_path, config) if event["event"] == "warning"]
    assert len(told) == 1 and "caf\\udce9" in str(told[0]), told
