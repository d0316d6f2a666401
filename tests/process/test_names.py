"""Names, paths and places: several supervisors side by side, one a name, socket paths that fit (spec 15)."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

from supervisor.control.events import Warned
from tests.conftest import Serve
from tests.support import LONG_S, RUNTIME_VARIABLE, Running, stub_config


def cli(running: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ui.cli.main", *arguments],
        env=running.environ,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_two_supervisors_with_different_names_run_side_by_side(serve: Serve) -> None:
    one, other = serve(stub_config(replicas=1), name="one"), serve(stub_config(replicas=1), name="other")
    for running in (one, other):
        running.wait_ready(1)
        assert running.embed().status == 200
    assert one.stop() == 0
    assert other.embed().status == 200


def test_a_second_one_with_the_same_name_says_who_runs_and_leaves_that_one_alone(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    second = cli(running, "serve", "--headless", "-c", str(running.config), "--name", "test")
    assert second.returncode == 1
    assert f"pid {running.process.pid}" in second.stderr and "already running" in second.stderr
    assert running.embed().status == 200
    assert running.replica("stub/0").incarnation == 1


def test_a_runtime_folder_too_deep_for_a_socket_path_gets_a_shorter_one(tmp_path: Path) -> None:
    deep = tmp_path / ("deep-" * 20) / ("deeper-" * 12)
    deep.mkdir(parents=True)
    running = Running(deep, stub_config(replicas=1))
    try:
        running.wait_ready(1)
        assert running.embed().status == 200
        assert len(str(running.runtime.control)) <= 107 and str(deep) not in str(running.runtime.control)
        status = cli(running, "status", "--name", "test")
        assert status.returncode == 0 and "stub/0" in status.stdout
    finally:
        running.close()


def test_a_name_that_cannot_be_used_is_one_clear_sentence(serve: Serve, tmp_path: Path) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    for name in ("x" * 65, "../up", ""):
        answer = cli(running, "serve", "--headless", "-c", str(running.config), "--name", name)
        assert answer.returncode == 2
        assert "1 to 64 letters" in answer.stderr and "Traceback" not in answer.stderr


def test_folder_and_sockets_are_the_users_own(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    assert stat.S_IMODE(running.runtime.folder.stat().st_mode) == 0o700
    for socket in (running.runtime.control, running.runtime.engines):
        assert stat.S_ISSOCK(socket.stat().st_mode)
        assert stat.S_IMODE(socket.stat().st_mode) & 0o077 == 0


def test_a_runtime_folder_that_somebody_removes_is_told_of_while_replicas_serve_on(serve: Serve) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    assert running.embed().status == 200
    shutil.rmtree(running.runtime.folder)
    deadline = time.monotonic() + LONG_S
    while "was removed by somebody else" not in running.log():
        assert time.monotonic() < deadline, running.log()
        time.sleep(0.05)
    assert f"kill {running.process.pid}" in running.log()
    assert running.embed().status == 200


def test_an_address_that_is_taken_is_one_clear_sentence_and_starts_nothing(serve: Serve, tmp_path: Path) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    taken = f"{running.address[0]}:{running.address[1]}"
    answer = cli(running, "serve", "--headless", "-c", str(running.config), "--name", "late", "--listen", taken)
    assert answer.returncode == 1
    assert f"cannot listen on {taken}" in answer.stderr and "Traceback" not in answer.stderr


def test_an_address_beyond_loopback_without_a_key_is_warned_of(serve: Serve) -> None:
    running = serve(stub_config(replicas=1).replace("127.0.0.1:0", "0.0.0.0:0"))
    running.wait_ready(1)
    assert any("open to the network" in event.message for event in running.events(Warned))


def test_what_cannot_be_started_says_why_and_leaves_nothing(serve: Serve, tmp_path: Path) -> None:
    running = serve(stub_config(replicas=1))
    running.wait_ready(1)
    running.environ["CUDA_VISIBLE_DEVICES"] = ""
    for config, words in [
        (stub_config(replicas=1) + "  api_key_env: NOBODY_SET_THIS\n", "NOBODY_SET_THIS, which is not set"),
        (stub_config(replicas=1).replace("device: cpu", 'device: "cuda:7"'), "cuda:7"),
    ]:
        file = tmp_path / "bad.yaml"
        file.write_text(config)
        answer = cli(running, "serve", "--headless", "-c", str(file), "--name", "bad")
        assert answer.returncode == 1, answer.stderr
        assert words in answer.stderr and "Traceback" not in answer.stderr
        assert not (running.root / "bad").exists()


def test_an_api_key_is_asked_for_and_never_shown(serve: Serve) -> None:
    config = stub_config(replicas=1) + "  api_key_env: TEST_STOKER_KEY\n"
    running = serve(config, environ={"TEST_STOKER_KEY": "s3cret-value"})
    running.wait_ready(1)
    assert running.embed().status == 401
    body = {"input": "x"}
    assert running.post("/v1/embeddings", body, {"authorization": "Bearer wrong"}).status == 401
    assert running.post("/v1/embeddings", body, {"authorization": "Bearer s3cret-value"}).status == 200
    assert running.get("/health").status == 200
    assert "s3cret-value" not in running.log() and RUNTIME_VARIABLE in running.environ
    assert (
        b"s3cret-value"
        not in running.request("GET", "/v1/inventory", b"", {"authorization": "Bearer s3cret-value"}).body
    )
