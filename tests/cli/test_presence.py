"""What a config names and this machine does not have: `check` and `serve` say it before anything starts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Stoker

FORMS = ([], ["--headless"], ["--daemon"], ["--daemon", "--wait"])
"""Ways to serve a config."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(folder: Path, artifact: str, more: str = "") -> Path:
    """A config with one deployment; the artifact is on its fifth line, what is `more` on its sixth."""
    file = folder / "mine.yaml"
    lines = [f"        artifact: '{artifact}'", *([f"        {more}"] if more else [])]
    text = "\n".join(lines)
    file.write_text(f"global:\n  model_catalog:\n    deployments:\n      primary:\n{text}\n")
    return file


ARTIFACT, COMMAND = "5: global.model_catalog.deployments.primary.artifact:", "6: global.model_catalog.deployments."
MISSING = {
    "a package": (
        "pkg:no_such_package_x/model",
        "",
        f"{ARTIFACT} pkg:no_such_package_x/model: package no_such_package_x is not installed here; "
        "try: pip install --no-deps no-such-package-x",
    ),
    "a path in a package": (
        "pkg:engine/no/model",
        "",
        f"{ARTIFACT} pkg:engine/no/model: package engine has no no/model",
    ),
    "a path": ("./model", "", f"{ARTIFACT} ./model: expected a folder or a file, found nothing at /"),
    "a module": (
        "no_such_module_x:Users",
        "",
        f"{ARTIFACT} no_such_module_x:Users: there is no module 'no_such_module_x' among the installed packages or in ",
    ),
    "a module of a package": (
        "json.no_such:Users",
        "",
        "there is no module 'no_such' in the package json; install it, or start Stoker in the folder that has it",
    ),
    "a program": (
        "owner/name",
        "engine_args: {engine: command, command: [no-such-server-x, '{port}']}",
        f"{COMMAND}primary.engine_args.command: there is no program 'no-such-server-x' in $PATH; install it",
    ),
    "a program by its path": (
        "owner/name",
        "engine_args: {engine: command, command: [/nowhere/serve]}",
        "there is no program at /nowhere/serve; install it, or give the path where it is",
    ),
    "a program that is none": (
        "owner/name",
        "engine_args: {engine: command, command: [./mine.yaml]}",
        "'./mine.yaml' cannot be executed; make it executable (`chmod +x`), or name another program",
    ),
    "what a program is given": (
        "./model.gguf",
        f"engine_args: {{engine: command, command: [{sys.executable}, '{{artifact}}']}}",
        f"{ARTIFACT} ./model.gguf: expected a folder or a file, found nothing at /",
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_exit_code_2_at_its_place_in_check_and_in_every_form_of_serve(
    stoker: Stoker, tmp_path: Path, what: str
) -> None:
    artifact, more, said = MISSING[what]
    file = written(tmp_path, artifact, more)
    checked = stoker("check", str(file))
    assert (checked.code, checked.out) == (2, "")
    assert checked.err.startswith(f"stoker: {file}:")
    assert said in checked.err
    for form in FORMS:
        assert stoker("serve", "-c", str(file), *form) == checked
    assert [each.name for each in tmp_path.iterdir()] == ["mine.yaml"], "nothing was started"


def test_a_model_of_the_command_line_has_no_line(stoker: Stoker, tmp_path: Path) -> None:
    for words in ([], ["-c", "new.yaml"]):
        ran = stoker("serve", "pkg:no_such_package_x/model", *words, "--platform", "cpu")
        assert ran.code == 2
        assert ran.err == (
            "stoker: MODEL pkg:no_such_package_x/model: package no_such_package_x is not installed here; "
            "try: pip install --no-deps no-such-package-x\n"
        )
    assert list(tmp_path.iterdir()) == []


def test_everything_that_is_missing_is_said_at_once(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("global: {model_catalog: {deployments: {a: {artifact: ./a}, b: {artifact: ./b}}}}\n")
    lines = stoker("check", str(file)).err.splitlines()
    assert [line.partition(": expected")[0].rpartition(" ")[2] for line in lines] == ["./a", "./b"]


def test_what_is_here_checks_without_running_any_of_it(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_x").mkdir()
    for name in ("__init__", "model"):
        (tmp_path / "mine_x" / f"{name}.py").write_text("raise SystemExit('it was run')\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "my-server-x"
    program.write_text("#!/bin/sh\ntouch was-run\n")
    program.chmod(0o700)
    named = f"engine_args: {{engine: command, command: [my-server-x], env: {{PATH: '{tmp_path}/bin'}}}}"
    for artifact, more in [
        ("mine_x.model:Users", ""),
        ("pkg:engine/messages.py", ""),
        ("./mine_x", ""),
        ("./not-handed-over", named),
        ("/nowhere", "engine_args: {engine: stub}"),
        ("/nowhere", "endpoint: 'http://127.0.0.1:1'"),
    ]:
        ran = stoker("check", str(written(tmp_path, artifact, more)))
        assert ran.code == 0, ran.err
    assert "mine_x" not in sys.modules
    assert not (tmp_path / "was-run").exists()


def test_a_model_of_the_hub_is_not_looked_up(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    assert stoker("check", str(written(tmp_path, "owner/no-such-model-x"))).code == 0


def test_a_file_for_another_machine_is_checked_alone(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "pkg:no_such_package_x/model", "device: cuda:7")
    ran = stoker("check", str(file), "--syntax-only")
    assert ran.code == 0
    assert ran.err == f"{file} is fine: 1 deployment, 1 replica, requests without a model go to primary\n"
