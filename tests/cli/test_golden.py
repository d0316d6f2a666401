"""`stoker golden`: what it cannot do, it says (the rest is in tests/e2e/test_golden_file.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ui.cli.exits import Exit
from ui.cli.main import main


def test_a_stub_has_no_known_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stoker.yaml"
    file.write_text("global: {model_catalog: {deployments: {one: {artifact: stub, engine_args: {engine: stub}}}}}\n")
    assert main(["golden", "one", "-c", str(file)]) == Exit.FAILED
    said = capfd.readouterr()
    assert "engine stub takes no known answers" in said.err
    assert "the model of one gave no answers (exit code 72)" in said.err
    assert said.out == ""


def test_a_deployment_that_the_file_does_not_have_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stoker.yaml"
    file.write_text("global: {model_catalog: {deployments: {one: {artifact: stub}}}}\n")
    assert main(["golden", "two", "-c", str(file)]) == Exit.FAILED
    assert "no deployment 'two' (there is: one)" in capfd.readouterr().err
