"""One supervisor a name, in a folder of its own, found again by clients (spec 15)."""

from __future__ import annotations

import fcntl
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import StokerError
from supervisor.host import runtime
from supervisor.host.runtime import (
    SOCKET_PATH_BYTES,
    AlreadyRunning,
    RuntimeDir,
    RuntimeLock,
    log_root,
    running_supervisors,
    runtime_root,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def home(root: Path, tmp_path: Path) -> RuntimeDir:
    return RuntimeDir("blue", root, tmp_path / "logs", tmp_path / "short")


def acquire(home: RuntimeDir) -> RuntimeLock:
    return home.acquire("127.0.0.1:8100", 1_900_000_000.0)


@pytest.fixture
def held(home: RuntimeDir) -> Iterator[RuntimeLock]:
    with acquire(home) as lock:
        yield lock


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- where things are --------------------------------------------------------------------------


def test_the_root_is_what_the_user_says_then_xdg_then_tmp(tmp_path: Path) -> None:
    xdg = str(tmp_path)
    assert runtime_root({"STOKER_RUNTIME_DIR": "/a/b", "XDG_RUNTIME_DIR": xdg}) == Path("/a/b")
    assert runtime_root({"XDG_RUNTIME_DIR": xdg}) == tmp_path / "stoker"
    assert runtime_root({}) == Path(f"/tmp/stoker-{os.geteuid()}")


def test_a_relative_root_does_not_move_with_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert runtime_root({"STOKER_RUNTIME_DIR": "here"}) == tmp_path / "here"


@pytest.mark.parametrize("xdg", ["/no/such/folder", "relative", ""])
def test_an_xdg_folder_that_is_not_there_is_not_used(xdg: str) -> None:
    assert runtime_root({"XDG_RUNTIME_DIR": xdg}) == Path(f"/tmp/stoker-{os.geteuid()}")


@needs_root
def test_an_xdg_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    assert runtime_root({"XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/tmp/stoker-0")


def test_logs_are_kept_outside_of_the_runtime_folder(tmp_path: Path) -> None:
    assert log_root(tmp_path / "mine", {}) == tmp_path / "mine"
    assert log_root(None, {"XDG_STATE_HOME": "/state", "HOME": "/h"}) == Path("/state/stoker")
    assert log_root(None, {"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/stoker")
    assert log_root(None, {"HOME": "/h"}) == Path("/h/.local/state/stoker")


@pytest.mark.parametrize("name", ["a", "prod", "A.b_c-9", "0" * 64])
def test_a_good_name_is_a_folder(root: Path, name: str) -> None:
    assert RuntimeDir(name, root).folder == root / name


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "_x", "a/b", "a b", "ä", "a\n", "x" * 65])
def test_a_bad_name_is_refused_with_what_is_allowed(root: Path, name: str) -> None:
    with pytest.raises(StokerError, match="expected 1 to 64 letters, digits"):
        RuntimeDir(name, root)


def test_naming_a_folder_touches_no_file(home: RuntimeDir, tmp_path: Path) -> None:
    assert files_below(tmp_path) == []


# --- socket paths ------------------------------------------------------------------------------


@given(length=st.integers(1, 400))
def test_server_and_client_derive_the_same_socket_path_and_it_always_fits(length: int) -> None:
    parts = [("d" * 100) for _ in range(length // 100)] + ["e" * (length % 100 + 1)]
    deep = Path("/run", *parts)
    server, client = RuntimeDir("blue", deep), RuntimeDir("blue", deep)
    assert server.control == client.control
    for path in (server.control, server.engines, server.clients):
        assert len(os.fsencode(path)) <= SOCKET_PATH_BYTES
    assert (server.sockets == server.folder) == (len(str(deep)) + len("/blue/control.sock") <= SOCKET_PATH_BYTES)


def test_a_short_folder_is_used_where_a_socket_path_would_be_too_long(tmp_path: Path) -> None:
    home = RuntimeDir("blue", tmp_path / ("d" * 120), tmp_path / "logs", tmp_path / "s")
    assert home.sockets.parent == tmp_path / "s"
    with acquire(home), socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home.control))
        assert home.sockets.stat().st_mode & 0o777 == 0o700
        assert [found.name for found in running_supervisors(home.root)] == ["blue"]
    assert not home.sockets.exists() and not home.folder.exists()


def test_the_short_folder_is_in_tmp_for_everybody_to_derive(tmp_path: Path) -> None:
    short = RuntimeDir("blue", tmp_path / ("d" * 120)).sockets
    assert re.fullmatch(rf"/tmp/stoker-{os.geteuid()}/x-[0-9a-f]{{12}}", str(short))


def test_two_names_have_two_short_folders(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    assert RuntimeDir("blue", deep).sockets != RuntimeDir("green", deep).sockets


@pytest.mark.parametrize(("real", "link"), [("d" * 120, "l"), ("d", "l" * 120), ("d" * 120, "l" * 120)])
def test_every_way_to_a_root_leads_to_the_same_sockets(tmp_path: Path, real: str, link: str) -> None:
    (tmp_path / real).mkdir()
    (tmp_path / link).symlink_to(tmp_path / real)
    straight, around = (RuntimeDir("blue", tmp_path / way / "run") for way in (real, link))
    assert straight.control == around.control
    assert straight.lock == around.lock


def test_where_not_even_the_short_folder_fits_one_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="set STOKER_RUNTIME_DIR to a shorter folder"):
        RuntimeDir("blue", tmp_path / ("d" * 120), short_root=tmp_path / ("s" * 120))


# --- folders -----------------------------------------------------------------------------------


def test_folders_are_made_for_this_user_alone(root: Path, held: RuntimeLock) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in (root, root / "blue", root / "blue/lock")}
    assert modes == {"run": 0o700, "blue": 0o700, "lock": 0o600}


def test_a_folder_of_this_user_is_closed_to_others(root: Path, home: RuntimeDir) -> None:
    root.mkdir(mode=0o755)
    home.folder.mkdir(mode=0o755)
    with acquire(home):
        assert home.folder.stat().st_mode & 0o777 == 0o700


def test_a_root_that_others_can_write_is_refused(root: Path, home: RuntimeDir) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(StokerError, match=r"can be written by other users \(mode 0777\): run 'chmod 700"):
        acquire(home)


@pytest.mark.parametrize("which", ["root", "folder"])
def test_a_symbolic_link_is_refused(root: Path, home: RuntimeDir, tmp_path: Path, which: str) -> None:
    place = root if which == "root" else home.folder
    place.parent.mkdir(exist_ok=True, mode=0o700)
    (tmp_path / "trap").mkdir()
    place.symlink_to(tmp_path / "trap")
    with pytest.raises(StokerError, match="is a symbolic link to"):
        acquire(home)


@pytest.mark.parametrize("which", ["root", "folder"])
@needs_root
def test_a_folder_of_somebody_else_is_refused(root: Path, home: RuntimeDir, which: str) -> None:
    place = root if which == "root" else home.folder
    place.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    os.chown(place, 12345, -1)
    with pytest.raises(StokerError, match="belongs to user 12345, not to you"):
        acquire(home)


@needs_root
@pytest.mark.parametrize("which", ["root", "folder"])
def test_a_client_does_not_trust_a_folder_of_somebody_else(
    root: Path, home: RuntimeDir, held: RuntimeLock, which: str
) -> None:
    place = root if which == "root" else home.folder
    os.chown(place, 12345, -1)
    with pytest.raises(StokerError, match="belongs to user 12345"):
        home.running()
    if which == "root":
        with pytest.raises(StokerError, match="belongs to user 12345"):
            running_supervisors(root)


def test_a_file_in_the_place_of_a_folder_is_refused(root: Path, home: RuntimeDir) -> None:
    root.write_text("")
    with pytest.raises(StokerError, match="is not a folder"):
        acquire(home)


def test_a_lock_that_is_a_symbolic_link_is_refused(home: RuntimeDir, tmp_path: Path) -> None:
    home.folder.mkdir(parents=True, mode=0o700)
    home.root.chmod(0o700)
    (tmp_path / "precious").write_text("keep")
    home.lock.symlink_to(tmp_path / "precious")
    with pytest.raises(StokerError, match="cannot be used"):
        acquire(home)
    assert (tmp_path / "precious").read_text() == "keep"


# --- the lock ----------------------------------------------------------------------------------


def test_a_second_supervisor_of_the_name_is_told_who_runs(home: RuntimeDir, held: RuntimeLock) -> None:
    with pytest.raises(AlreadyRunning) as refused:
        acquire(home)
    assert (refused.value.name, refused.value.pid, refused.value.listen) == (
        "blue",
        os.getpid(),
        "127.0.0.1:8100",
    )
    assert str(os.getpid()) in str(refused.value) and "--name" in str(refused.value)


def test_a_refused_second_one_leaves_the_first_untouched(home: RuntimeDir, held: RuntimeLock) -> None:
    home.control.touch()
    with pytest.raises(AlreadyRunning):
        acquire(home)
    assert home.control.exists()
    assert home.running() is not None


def test_names_do_not_meet(root: Path, held: RuntimeLock, tmp_path: Path) -> None:
    with RuntimeDir("green", root, tmp_path / "logs").acquire(":0", 0.0):
        assert [found.name for found in running_supervisors(root)] == ["blue", "green"]


def test_after_release_nothing_is_left_and_the_name_is_free(home: RuntimeDir, root: Path) -> None:
    lock = acquire(home)
    for path in (home.control, home.engines, home.clients):
        path.touch()
    lock.release()
    lock.release()
    assert files_below(root) == []
    with acquire(home):
        pass


def test_release_keeps_logs_and_removes_an_empty_log_folder(home: RuntimeDir) -> None:
    home.logs.mkdir(parents=True)
    acquire(home).release()
    assert not home.logs.exists()
    home.logs.mkdir()
    (home.logs / "primary-0.log").write_text("last words\n")
    acquire(home).release()
    assert (home.logs / "primary-0.log").read_text() == "last words\n"


def test_release_leaves_alone_what_a_successor_made(home: RuntimeDir, root: Path) -> None:
    """Somebody emptied the folder by hand; another supervisor took the name; the first one leaves."""
    first = acquire(home)
    home.lock.unlink()
    with acquire(home):
        home.control.touch()
        first.release()
        assert home.control.exists() and home.running() is not None


def test_leftovers_of_a_killed_supervisor_are_no_obstacle(home: RuntimeDir, root: Path) -> None:
    home.folder.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    home.lock.write_text('{"pid": 1, "started": 0.0, "listen": ":1", "name": "blue"}')
    home.control.touch()
    assert running_supervisors(root) == [] and home.running() is None
    with acquire(home):
        assert not home.control.exists()
        found = home.running()
        assert found and found.holder and found.holder.pid == os.getpid()


@pytest.mark.parametrize("nonsense", [b"", b"not json", b'{"pid": "x"}', b'{"name": "\xff"}', b"\xff\x00"])
def test_a_lock_that_says_nonsense_is_still_held(home: RuntimeDir, held: RuntimeLock, nonsense: bytes) -> None:
    home.lock.write_bytes(nonsense)
    with pytest.raises(AlreadyRunning, match="pid unknown"):
        acquire(home)
    assert [found.holder for found in running_supervisors(home.root)] == [None]


def test_two_that_look_at_the_same_time_do_not_take_each_other_for_a_supervisor(home: RuntimeDir) -> None:
    acquire(home).release()
    home.folder.mkdir(mode=0o700)
    with home.lock.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert running_supervisors(home.root) == []


def test_no_root_is_no_supervisor(tmp_path: Path) -> None:
    assert running_supervisors(tmp_path / "never") == []


def test_a_lock_file_removed_between_open_and_lock_is_not_taken_for_the_lock(
    home: RuntimeDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classical race: whoever locks an unlinked file holds nothing."""
    really, unlinked = runtime._lock, []

    def unlink_once(descriptor: int, kind: int) -> bool:
        if not unlinked:
            unlinked.append(home.lock.unlink())
        return really(descriptor, kind)

    monkeypatch.setattr(runtime, "_lock", unlink_once)
    with acquire(home):
        monkeypatch.undo()
        assert home.running() is not None
        with pytest.raises(AlreadyRunning):
            acquire(home)


def test_never_two_at_once_whatever_looks_and_leaves_meanwhile(home: RuntimeDir, root: Path) -> None:
    inside, most, taken = [0], [0], [0]
    guard, done = threading.Lock(), threading.Event()

    def owner() -> None:
        while taken[0] < 300:
            try:
                lock = acquire(home)
            except AlreadyRunning:
                continue
            with guard:
                inside[0] += 1
                taken[0] += 1
                most[0] = max(most[0], inside[0])
            with guard:
                inside[0] -= 1
            lock.release()

    def watcher() -> None:
        while not done.is_set():
            running_supervisors(root)

    watching = threading.Thread(target=watcher)
    owners = [threading.Thread(target=owner) for _ in range(3)]
    for thread in (watching, *owners):
        thread.start()
    for thread in owners:
        thread.join()
    done.set()
    watching.join()
    assert taken[0] >= 300 and most[0] == 1
    assert files_below(root) == []


def test_being_looked_at_delays_a_start_and_does_not_make_it_fail(
    home: RuntimeDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire(home).release()
    home.folder.mkdir(mode=0o700)
    looking = home.lock.open("w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(runtime.time, "sleep", lambda _: looking.close())
    with acquire(home):
        assert looking.closed and home.running() is not None


HOLD = """
import os, subprocess, sys
from pathlib import Path
from supervisor.host.runtime import RuntimeDir
root, logs, gate = sys.argv[1:]
lock = RuntimeDir("blue", Path(root), Path(logs)).acquire(":1", 0.0)
child = subprocess.Popen([sys.executable, "-c", f"import os; os.read({gate}, 1)"], close_fds=False)
print(child.pid, flush=True)
os.read(int(gate), 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="watches the orphan through a pidfd")
def test_a_kill_frees_the_name_although_a_child_lives_on(home: RuntimeDir, root: Path, tmp_path: Path) -> None:
    """SIGKILL leaves no time to clean up; an engine that outlives the supervisor must not hold its lock."""
    gate, opener = os.pipe()
    command = [sys.executable, "-c", HOLD, str(root), str(tmp_path / "logs"), str(gate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[gate]) as holder:
        assert holder.stdout is not None
        orphan = os.pidfd_open(int(holder.stdout.readline()))
        with pytest.raises(AlreadyRunning) as refused:
            acquire(home)
        assert refused.value.pid == holder.pid
        holder.kill()
        holder.wait()
        with acquire(home):
            assert home.running() is not None
        assert select.select([orphan], [], [], 0)[0] == []
        os.close(opener)
        os.close(gate)
        assert select.select([orphan], [], [], 30)[0] == [orphan]
        os.close(orphan)
