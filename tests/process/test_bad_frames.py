"""Whatever somebody writes to a bound socket is counted and dropped; serving goes on (spec 15)."""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from engine.messages import Answer, Chunk, Heartbeat, Register, Request, encode
from supervisor.control.events import BadFrames
from supervisor.control.messages import Call, GetStatus
from supervisor.control.messages import encode as encode_control
from tests.conftest import Serve
from tests.support import NOISE, Running, stub_config

ZMTP_GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32


def raw(data: bytes) -> Callable[[str], None]:
    """Bytes on a bare connection."""

    def send(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(2)
            try:
                while connection.recv(4096):
                    pass
            except (TimeoutError, ConnectionResetError):
                return

    return send


def frames(*parts: bytes) -> Callable[[str], None]:
    """Valid ZMTP with any frames in it."""

    def send(path: str) -> None:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(f"ipc://{path}")
        dealer.send_multipart(parts)
        dealer.close(linger=2000)
        context.term()

    return send


class Harmful:
    """A pickle that would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (open, (str(self.path), "w"))


READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"

NONSENSE: dict[str, Callable[[str], None]] = {
    "random bytes": raw(NOISE),
    "an HTTP GET": raw(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
    "half a greeting": raw(ZMTP_GREETING[:20]),
    "a gibibyte announced": raw(ZMTP_GREETING + READY + b"\x02" + struct.pack(">Q", 1 << 30) + b"x" * 100),
    "garbage": frames(NOISE[:64]),
    "an empty frame": frames(b""),
    "a frame too many": frames(encode(Answer(1, 200)), b"{}", b"more"),
    "a hundred frames": frames(*[b"x"] * 100),
    "another protocol version": frames(encode_control(Call(99, 1, GetStatus()))),
    "an answer from nobody": frames(encode(Answer(1, 200)), b"{}"),
    "deep nesting": frames(b"\x91" * 100_000),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """One supervisor that is written to by everybody."""
    with Running(tmp_path_factory.mktemp("frames"), stub_config()) as running:
        running.wait_ready(2)
        yield running


def bad_frames(running: Running, where: str) -> float:
    for line in running.get("/metrics").body.decode().splitlines():
        if line.startswith(f'stoker_bad_frames_total{{socket="{where}"}}'):
            return float(line.rpartition(" ")[2])
    return 0.0


@pytest.mark.parametrize("where", ["engines", "control", "clients"])
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_at_a_socket_is_dropped_and_serving_goes_on(shared: Running, where: str, name: str) -> None:
    path = str(getattr(shared.runtime, where))
    before = bad_frames(shared, where)
    NONSENSE[name](path)
    if name != "a gibibyte announced":  # libzmq ends that connection by itself and tells nobody
        deadline = time.monotonic() + 10
        while bad_frames(shared, where) == before:
            assert time.monotonic() < deadline, "it was not counted"
    assert shared.embed().status == 200
    assert all((row.state, row.incarnation) == ("ready", 1) for row in shared.replicas())


@pytest.mark.parametrize("where", ["engines", "control", "clients"])
def test_a_pickle_is_never_loaded(shared: Running, where: str, tmp_path: Path) -> None:
    trap = tmp_path / "made-by-a-pickle"
    frames(pickle.dumps(Harmful(trap)))(str(getattr(shared.runtime, where)))
    assert shared.embed().status == 200
    assert not trap.exists()


def test_a_flood_of_nonsense_is_told_of_at_a_bounded_rate(shared: Running) -> None:
    before = len(shared.events(BadFrames))
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"ipc://{shared.runtime.engines}")
    for _ in range(20_000):
        dealer.send(b"nonsense")
    dealer.close(linger=5000)
    context.term()
    assert shared.embed().status == 200
    assert len(shared.events(BadFrames)) - before <= 4


def test_garbage_beside_the_answers_of_an_engine_disturbs_nothing(serve: Serve) -> None:
    running = serve(stub_config())
    running.wait_ready(2)
    running.faults("stub/0", garbage=True)
    assert {running.embed().status for _ in range(20)} == {200}
    assert bad_frames(running, "engines") >= 10
    assert {row.failures for row in running.replicas()} == {0}


def test_every_message_of_the_wire_survives_its_round_trip() -> None:
    from engine.messages import decode_to_engine, decode_to_supervisor

    for message in (Answer(7, 200), Chunk(9)):
        assert decode_to_supervisor(encode(message)) == message
    assert decode_to_engine(encode(Request(1, 2, True, 0.5))) == Request(1, 2, True, 0.5)
    assert Heartbeat.__struct_fields__ and Register.__struct_fields__
