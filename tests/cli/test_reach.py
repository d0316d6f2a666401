"""Which supervisor a command means."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.control.client import NotRunning
from supervisor.control.messages import Eject, GetStatus
from tests.cli.conftest import Stoker
from tests.cli.fake import FakeSupervisor
from ui.cli.reach import SeveralRunning, choose


@pytest.mark.parametrize(
    ("asked", "running", "meant"),
    [
        (None, ["default"], "default"),
        (None, ["default", "other"], "default"),
        (None, ["other"], "other"),
        ("other", ["default", "other"], "other"),
    ],
)
def test_the_name_that_is_meant(asked: str | None, running: list[str], meant: str) -> None:
    assert choose(asked, running) == meant


@pytest.mark.parametrize(
    ("asked", "running", "error", "said"),
    [
        (None, [], NotRunning, "stoker serve"),
        (None, ["a", "b"], SeveralRunning, "--name: a, b"),
        ("c", ["a"], NotRunning, "'c' is running .running now: a."),
        ("embeder", ["embedder"], NotRunning, "is running; did you mean 'embedder'. .running now: embedder."),
        ("c", [], NotRunning, "'c' is running; `stoker serve`"),
    ],
)
def test_a_command_never_guesses(asked: str | None, running: list[str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said.replace("`", ".").replace("?", ".")):
        choose(asked, running)


def test_the_only_one_that_runs_is_used_and_named(root: Path, stoker: Stoker) -> None:
    with FakeSupervisor(root, name="embedder") as fake:
        ran = stoker("eject", "primary/0")
    assert ran.code == 0
    assert ran.err.startswith("using the supervisor 'embedder', the only one that runs\n")
    assert fake.asked == [Eject(replica="primary/0")]


def test_between_two_a_name_is_needed(root: Path, stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeSupervisor(root, name="one") as one, FakeSupervisor(root, name="two") as two:
        unnamed = stoker("status")
        assert stoker("status", "--name", "two").code == 0
        monkeypatch.setenv("STOKER_NAME", "one")
        assert stoker("status").code == 0
    assert unnamed.code == 2
    assert "one, two" in unnamed.err
    assert one.asked == two.asked == [GetStatus()]


def test_the_runtime_folder_can_be_said(tmp_path: Path, stoker: Stoker) -> None:
    with FakeSupervisor(tmp_path / "elsewhere"):
        assert stoker("status").code == 3
        assert stoker("status", "--runtime-dir", str(tmp_path / "elsewhere")).code == 0


def test_a_folder_of_somebody_else_is_not_trusted(root: Path, stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeSupervisor(root):
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        ran = stoker("status")
        monkeypatch.undo()
    assert ran.code == 1
    assert "and you are user 12345" in ran.err


def test_a_name_that_is_none_is_one_clear_sentence(root: Path, stoker: Stoker) -> None:
    ran = stoker("status", "--name", "../else")
    assert ran.code == 3
    assert "no supervisor named '../else' is running" in ran.err


def test_a_folder_too_long_for_a_socket_still_works(tmp_path: Path, stoker: Stoker) -> None:
    deep = tmp_path / ("x" * 100)
    with FakeSupervisor(deep, name="n" * 64):
        assert stoker("status", "--runtime-dir", str(deep)).code == 0
