"""`stoker export systemd`: a unit that systemd accepts, and that gives a drain the time it may take."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.core.grace import stop_grace_s
from tests.cli.conftest import Stoker
from ui.cli.export import systemd

ONE = "global: {model_catalog: {deployments: {primary: {artifact: stub, drain_timeout_s: 300}}}}\n"
TWO = (
    "global: {model_catalog: {deployments: {a: {artifact: stub, drain_timeout_s: 600.5}, b: {artifact: stub}}}}\n"
    "stoker: {name: two, api_key_env: TWO_KEY}\n"
)

FACTS = systemd.Facts(
    name="default",
    command=["/opt/stoker/bin/stoker"],
    config=Path("/etc/stoker/stoker.yaml"),
    folder=Path("/srv"),
    user="stoker",
    grace_s=120,
    key_variable=None,
)


def exported(stoker: Stoker, folder: Path, text: str, *words: str) -> str:
    """The unit of a config with that text."""
    file = folder / "stoker.yaml"
    file.write_text(text)
    ran = stoker("export", "systemd", "-c", str(file), *words)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def settings(unit: str) -> dict[str, str]:
    """Every setting of a unit; none is given twice."""
    lines = [line for line in unit.splitlines() if line and not line.startswith(("#", "["))]
    pairs = [line.split("=", 1) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs)
    return {line[0]: line[1] for line in pairs}


def test_a_unit_starts_this_stoker_as_its_main_process(stoker: Stoker, tmp_path: Path) -> None:
    unit = settings(exported(stoker, tmp_path, ONE))
    program, *words = unit["ExecStart"].split()
    assert program.startswith("/") and os.access(program, os.X_OK)
    assert words[-6:] == ["serve", "--headless", "--name", "default", "-c", str(tmp_path / "stoker.yaml")]
    assert (unit["Type"], unit["NotifyAccess"], unit["WatchdogSec"]) == ("notify", "main", "30")
    assert (unit["KillMode"], unit["Restart"], unit["OOMPolicy"]) == ("mixed", "on-failure", "continue")
    assert unit["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert unit["WorkingDirectory"] == str(Path.cwd())


def test_its_runtime_folder_is_its_own(stoker: Stoker, tmp_path: Path) -> None:
    for words, folder in (((), "stoker"), (("--name", "other"), "stoker-other")):
        unit = settings(exported(stoker, tmp_path, ONE, *words))
        assert unit["RuntimeDirectory"] == folder
        assert unit["RuntimeDirectoryMode"] == "0700"
        assert unit["Environment"] == f"STOKER_RUNTIME_DIR=%t/{folder}"


@pytest.mark.parametrize(("text", "drains"), [(ONE, [300.0]), (TWO, [600.5, 30.0])])
def test_the_grace_follows_the_longest_drain(stoker: Stoker, tmp_path: Path, text: str, drains: list[float]) -> None:
    assert settings(exported(stoker, tmp_path, text))["TimeoutStopSec"] == str(stop_grace_s(drains))


def test_the_name_is_the_configs_unless_one_is_given(stoker: Stoker, tmp_path: Path) -> None:
    assert "--name two " in settings(exported(stoker, tmp_path, TWO))["ExecStart"]
    assert "--name three " in settings(exported(stoker, tmp_path, TWO, "--name", "three"))["ExecStart"]


def test_the_api_key_is_named_and_never_shown(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWO_KEY", "a-secret")
    unit = exported(stoker, tmp_path, TWO)
    assert "TWO_KEY=..." in unit
    assert "#EnvironmentFile=/etc/stoker/stoker-two.env" in unit
    assert "a-secret" not in unit


@pytest.mark.parametrize("folder", ["plain", "with blank", "100%", "a$HOME", 'quo"te', "back\\slash", "semi;colon"])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_accepts_it(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    place = tmp_path / folder
    place.mkdir()
    monkeypatch.chdir(place)
    file = tmp_path / "stoker.service"
    file.write_text(exported(stoker, place, TWO))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/etc/stoker.yaml", "/etc/stoker.yaml"),
        ("/a b/c", '"/a b/c"'),
        ("/100%/c", "/100%%/c"),
        ("/$HOME/c", "/$$HOME/c"),
        ('/quo"te', '"/quo\\"te"'),
        ("/it's", '"/it\'s"'),
        ("/back\\slash", '"/back\\\\slash"'),
    ],
)
def test_a_path_reaches_the_command_as_it_is(path: str, word: str) -> None:
    unit = systemd.unit(dataclasses.replace(FACTS, config=Path(path)))
    assert settings(unit)["ExecStart"].endswith(f" -c {word}")


@pytest.mark.parametrize("path", ["/new\nline", "/ends with\\"])
def test_a_path_that_a_unit_cannot_hold_is_an_error(path: str) -> None:
    with pytest.raises(systemd.CannotExport, match="rename it"):
        systemd.unit(dataclasses.replace(FACTS, folder=Path(path)))


def test_a_config_with_errors_is_exit_code_2_and_no_unit(stoker: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("stoker: {port: 80}\n")
    ran = stoker("export", "systemd", "-c", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert f"{file}:1: stoker.port" in ran.err


def test_without_a_config_it_is_the_one_in_this_folder(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert stoker("export", "systemd").code == 2
    (tmp_path / "stoker.yaml").write_text(ONE)
    ran = stoker("export", "systemd")
    assert settings(ran.out)["ExecStart"].endswith(f"-c {tmp_path}/stoker.yaml")
