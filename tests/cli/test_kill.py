"""What `stoker kill` and `stoker faults` say on a real supervisor, of what a dead replica takes with it (spec 6)."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from tests.cli.conftest import command
from tests.support import Running, stub_config


def test_a_kill_says_what_it_loses_and_a_replica_at_rest_has_nothing_to_kill(tmp_path: Path) -> None:
    with Running(tmp_path, stub_config(2), name="default") as running:
        running.wait_ready(2)

        def say(*words: str) -> str:
            done = subprocess.run(
                command(*words), env=running.environ, capture_output=True, text=True, timeout=60, check=False
            )
            return done.stderr

        assert say("drain", "stub/0", "--wait").startswith("draining stub/0#1")
        assert say("kill", "stub/0") == "stoker: stub/0 is stopped: it has no process to kill\n"
        assert say("faults", "stub/1", "hang=true") == "stub/1 has new faults\n"
        asking = threading.Thread(target=running.embed, args=("hello",))
        asking.start()
        running.wait_status(lambda seen: sum(row.in_flight for row in seen.deployments[0].replicas) == 1)
        assert say("kill", "stub/1") == (
            "killing stub/1#1: 1 exchange in flight there, tried on another ready replica unless the answer has begun\n"
        )
        asking.join(30)
        running.wait_status(lambda seen: seen.deployments[0].ready_replicas == 1)
        assert say("faults", "stub/1") == "stub/1 has no faults any more\n"
        assert say("kill", "stub/1") == "killing stub/1#2: nothing is in flight there\n"
