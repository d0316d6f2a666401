"""`stoker threads`: the learned table for people and programs (spec 9, 13)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.messages import CountTime, ThreadDrift, ThreadRange, ThreadTable
from tests.cli.fake import FakeSupervisor
from tests.cli.rows import deployment, inventory, replica
from ui.cli.exits import Exit
from ui.cli.main import main

LEARNED = ThreadTable(
    mode=1,
    configured=2,
    state="learned",
    ranges=[
        ThreadRange(
            label="<32",
            state="learned",
            forwards=60,
            times=[CountTime(1, 5, 0.004), CountTime(2, 5, 0.006)],
            learned=1,
            gain=0.33,
        ),
        ThreadRange(label="<64", state="exploring"),
    ],
)
RETIRED = ThreadTable(mode=2, configured=2, state="retired", drift=ThreadDrift(count=1, lengths=[64]))


def show(root: Path, *arguments: str, **tables: ThreadTable | None) -> int:
    rows = [replica(f"primary/{number}", thread_table=table) for number, table in enumerate(tables.values())]
    with FakeSupervisor(root, inventory(deployment(*rows))):
        return main(["threads", "--runtime-dir", str(root), *arguments])


def test_a_row_for_each_range_that_saw_a_forward(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(root, one=LEARNED) == Exit.DONE
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["REPLICA", "TOKENS", "STATE"]
    for word in ("primary/0", "<32", "learned", "60", "1: 5, 2: 5", "1: 4.0ms, 2: 6.0ms", "33%"):
        assert word in row


def test_a_retired_replica_names_the_input_that_drifted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(root, one=RETIRED) == Exit.DONE
    said = capsys.readouterr()
    assert "retired" in said.out
    assert "primary/0 is retired: 1 x 64 tokens had other bits with 1 thread than with 2" in said.err


def test_json_has_the_tables_by_replica(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(root, "--json", one=LEARNED, other=None) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["primary/0"]
    assert found["primary/0"]["ranges"][0]["times"][0] == {"count": 1, "samples": 5, "seconds": 0.004}


def test_where_nothing_is_learned_it_says_how_to_begin(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(root, one=None) == Exit.DONE
    assert "cpu.adaptive" in capsys.readouterr().err


def test_certify_refuses_a_deployment_that_the_file_does_not_have(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stoker.yaml"
    file.write_text("global: {model_catalog: {deployments: {one: {artifact: stub, engine_args: {engine: stub}}}}}\n")
    assert main(["threads", "certify", "two", "-c", str(file)]) == Exit.FAILED
    assert "no deployment 'two' (there is: one)" in capsys.readouterr().err
    assert main(["threads", "-c", str(file)]) == Exit.USAGE


def test_certify_says_that_a_stub_has_no_thread_counts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stoker.yaml"
    file.write_text("global: {model_catalog: {deployments: {one: {artifact: stub, engine_args: {engine: stub}}}}}\n")
    assert main(["threads", "certify", "one", "-c", str(file)]) == Exit.FAILED
    assert "nothing to certify" in capfd.readouterr().err
