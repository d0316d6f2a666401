"""Saving a config: all of it or nothing, and the reason where it is nothing (spec 3)."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config.saving import NotSaved, save


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "stoker.yaml"
    path.write_text("old\n")
    return path


def untouched(path: Path) -> bool:
    """The old text is there and nothing else is in the folder."""
    return path.read_text() == "old\n" and list(path.parent.iterdir()) == [path]


def failing(code: int) -> object:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_the_text_is_saved_byte_for_byte(path: Path) -> None:
    save(path, "\ufeffé\r\nb\rno end")
    assert path.read_bytes() == "\ufeffé\r\nb\rno end".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    save(tmp_path / "new.yaml", "text")
    assert (tmp_path / "new.yaml").read_text() == "text"


def test_the_mode_of_the_file_stays(path: Path) -> None:
    for mode in (0o640, 0o600, 0o666):
        path.chmod(mode)
        save(path, "new")
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_symbolic_link_is_written_through(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "link.yaml"
    link.symlink_to("../stoker.yaml")
    save(link, "new")
    assert link.is_symlink() and path.read_text() == "new" and list(folder.iterdir()) == [link]


def test_the_new_file_is_on_disk_before_it_takes_the_old_one_s_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> None:
        steps.append("rename")
        assert source.parent == target.parent
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    save(path, "new")
    assert steps == ["sync file", "rename", "sync folder"]


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EBUSY])
def test_a_failed_step_leaves_the_old_file_and_nothing_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    monkeypatch.setattr(os, step, failing(code))
    with pytest.raises(NotSaved, match=os.strerror(code)):
        save(path, "new")
    monkeypatch.undo()
    assert untouched(path)


def test_a_read_only_file_is_not_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(NotSaved, match="was not saved: it is read-only"):
        save(path, "new")
    assert untouched(path)


def test_a_folder_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(NotSaved, match="No such file"):
        save(tmp_path / "none" / "a.yaml", "new")


def test_a_disk_that_is_full_leaves_the_old_file(path: Path) -> None:
    code = f"""
import pathlib, resource, signal
from supervisor.config.saving import NotSaved, save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save(pathlib.Path({str(path)!r}), "x" * 100_000)
except NotSaved as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert "was not saved: File too large" in run.stdout
    assert untouched(path)
