"""`stoker serve --daemon` with the real supervisor: in the background, out of the way, and honest when it fails."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.host.runtime import running_supervisors
from tests.cli.conftest import Ran, Stoker, command
from tests.cli.terminal import Terminal
from tests.cli.test_serve import ANYWHERE, wait_until_nothing_is_left

DAEMON = ("serve", "stub", "-dp", "2", "--daemon", *ANYWHERE)


@pytest.fixture(autouse=True)
def _nothing_is_left(root: Path) -> Iterator[None]:
    """Whatever a test does, its supervisor is gone afterwards, and so are its files in the runtime folder."""
    yield
    for running in running_supervisors(root):
        if running.holder is not None:
            os.kill(running.holder.pid, signal.SIGTERM)
    wait_until_nothing_is_left(root)


def facts(ran: Ran) -> dict[str, str]:
    """What it printed, by its first word."""
    lines = [line.split(maxsplit=1) for line in ran.out.splitlines()]
    return {words[0]: words[1] for words in lines}


def test_it_returns_when_the_supervisor_answers_and_says_where_it_is(
    process: Stoker, stoker: Stoker, tmp_path: Path
) -> None:
    ran = process(*DAEMON)
    assert ran.code == 0
    told = facts(ran)
    holder = running_supervisors()[0].holder
    assert holder is not None
    log = tmp_path / "state" / "stoker" / "mine" / "supervisor.log"
    assert told == {"name": "mine", "pid": str(holder.pid), "address": told["address"], "log": str(log)}
    host, _, port = told["address"].rpartition(":")
    socket.create_connection((host, int(port)), 5).close()
    assert "supervisor mine started" in log.read_text()
    for hint in ("stoker status --name mine", "stoker logs -f --name mine", "stoker stop --name mine"):
        assert f"`{hint}`" in ran.err
    assert stoker("scale", "primary", "2", "--wait").code == 0
    assert stoker("stop", "--wait").code == 0
    assert stoker("status").code == 3


def test_it_leaves_the_session_of_the_terminal_and_outlives_it(stoker: Stoker) -> None:
    with Terminal(command(*DAEMON), columns=200) as terminal:
        assert terminal.wait() == 0
    holder = running_supervisors()[0].holder
    assert holder is not None
    supervisor = psutil.Process(holder.pid)
    assert os.getsid(holder.pid) == holder.pid
    assert supervisor.terminal() is None
    assert stoker("status").code == 0


def test_warnings_of_its_start_are_said_to_whoever_started_it(process: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "foreign.yaml"
    file.write_text(
        "global:\n  model_catalog:\n    kbs: {}\n    deployments: {primary: {artifact: stub, device: cuda:7}}\n"
    )
    ran = process("serve", "-c", str(file), "--daemon", "--listen", "127.0.0.1:0", "--name", "mine")
    assert ran.code == 0
    assert "warning: primary: there is no device cuda:7 on this machine" in ran.err
    assert "kbs" in ran.err


def test_one_that_cannot_start_is_exit_code_1_with_the_reason(process: Stoker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = process("serve", "stub", "--daemon", "--name", "mine", "--listen", address)
    assert ran.code == 1
    assert ran.out == ""
    assert "the supervisor ended with 1" in ran.err
    assert address in ran.err


COMMAND = """
global: {{model_catalog: {{deployments: {{primary: {{artifact: owner/name, device: cpu, engine_args: {{
  engine: command, command: [sh, -c, "{script}"]}}}}}}}}}}
"""


def test_with_wait_it_returns_when_every_replica_is_ready(process: Stoker, stoker: Stoker) -> None:
    ran = process(*DAEMON, "--wait")
    assert ran.code == 0
    assert ran.err.endswith("primary: 2 of 2 ready\n")
    assert facts(ran)["name"] == "mine"
    assert [row.split()[1] for row in stoker("status").out.splitlines()[2:]] == ["ready", "ready"]


def test_with_wait_a_replica_that_cannot_come_up_is_exit_code_1_with_its_last_lines(
    process: Stoker, stoker: Stoker, tmp_path: Path
) -> None:
    file = tmp_path / "fails.yaml"
    file.write_text(COMMAND.format(script="echo no weights here; exit 127"))
    ran = process("serve", "-c", str(file), "--daemon", "--wait", "--listen", "127.0.0.1:0", "--name", "mine")
    assert ran.code == 1
    assert "stoker: primary/0 failed: its command 'sh' cannot be executed" in ran.err
    assert ran.err.endswith("the end of the log of primary:\nprimary/0#1 no weights here\n")
    assert stoker("status").code == 0, "it runs on, to be looked at"


def test_with_wait_a_replica_that_takes_too_long_is_exit_code_1(process: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "slow.yaml"
    file.write_text(COMMAND.format(script="echo still loading; exec sleep 600"))
    ran = process(
        *("serve", "-c", str(file), "--daemon", "--wait", "--timeout", "1", "--listen", "127.0.0.1:0"),
        *("--name", "mine"),
    )
    assert ran.code == 1
    assert "stoker: not done after 1.0s: primary: 0 of 1 ready" in ran.err
    assert "primary/0#1 still loading\n" in ran.err


def test_a_config_with_errors_is_exit_code_2_and_starts_nothing(process: Stoker, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("global: {model_catalog: {deployments: {a: {artefact: stub}}}}\n")
    ran = process("serve", "-c", str(file), "--daemon", "--name", "mine")
    assert ran.code == 2
    assert f"{file}:1" in ran.err
    assert not (tmp_path / "state").exists()


def test_a_second_one_of_the_same_name_leaves_the_first_alone(process: Stoker, stoker: Stoker) -> None:
    first = process(*DAEMON)
    second = process(*DAEMON)
    assert second.code == 1
    known = facts(first)
    assert f"already running on {known['address']} (pid {known['pid']})" in second.err
    assert stoker("status").code == 0


def test_it_excludes_headless(stoker: Stoker) -> None:
    ran = stoker(*DAEMON, "--headless")
    assert ran.code == 2
    assert "give one of them" in ran.err
