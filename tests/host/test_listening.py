"""The HTTP side's socket file: there while somebody listens, gone with them, and never somebody else's."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from engine.errors import StokerError
from supervisor.host.listening import listen, listening


def test_the_file_goes_with_the_listener_and_not_with_one_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(f"unix://{path}") as bound:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(StokerError, match="in use"), listening(f"unix://{path}"):
            pass
        assert path.exists()
    assert bound.fileno() == -1 and not path.exists()


def test_a_file_that_took_its_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(f"unix://{path}"):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
    assert path.exists()


def test_a_file_that_is_gone_already_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(f"unix://{path}"):
        path.unlink()


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".example"])
def test_a_name_that_cannot_be_one_is_refused_in_words(host: str) -> None:
    with pytest.raises(StokerError, match=r"cannot listen on .*choose another address"):
        listen(f"{host}:8000")
