"""Words to systemd: sent where asked for, never in the way."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from supervisor.host.systemd import notify, watchdog_interval


def receiver(address: str | bytes) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(address)
    listening.setblocking(False)
    return listening


def test_a_state_reaches_the_socket_systemd_named(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with receiver(path) as systemd:
        assert notify("READY=1\nSTATUS=2 of 2 ready", {"NOTIFY_SOCKET": path})
        assert systemd.recv(100) == b"READY=1\nSTATUS=2 of 2 ready"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_a_state_reaches_an_abstract_socket() -> None:
    name = f"stoker-test-{os.getpid()}"
    with receiver(b"\0" + name.encode()) as systemd:
        assert notify("STOPPING=1", {"NOTIFY_SOCKET": f"@{name}"})
        assert systemd.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", [None, "", "relative", "vsock:2:1", "/nowhere/at/all", "/" + "x" * 300, "@"])
def test_nobody_listening_is_no_error(address: str | None) -> None:
    assert not notify("READY=1", {} if address is None else {"NOTIFY_SOCKET": address})


def test_a_full_socket_does_not_block(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with receiver(path):
        assert not all(notify("WATCHDOG=1", {"NOTIFY_SOCKET": path}) for _ in range(5000))


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": ""}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time(environ: dict[str, str], seconds: float | None) -> None:
    assert watchdog_interval(environ) == seconds
