"""The control socket never leaves a caller without a word: too long, no text, a mistake of the supervisor's own."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine.messages import Faults
from supervisor.control.async_client import AsyncControlClient
from supervisor.control.client import ControlClient
from supervisor.control.events import EventLog, Warned
from supervisor.control.messages import (
    MAX_CALL_BYTES,
    Answer,
    AnyCommand,
    CommandRefused,
    DrainReplica,
    EventNotice,
    Reload,
    SetReplicaFaults,
    decode_call,
    decode_from_supervisor,
    encode,
    encode_call,
)
from supervisor.control.server import ControlServer

TOO_LONG = SetReplicaFaults(replica="x" * 16 * 1024 * 1024, faults=Faults())
REASON = re.compile(rf"a command of 16777\d+ bytes; {MAX_CALL_BYTES} are the most")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """A socket on which somebody listens who never answers."""
    path = str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        yield path


def test_a_command_over_the_limit_is_refused_with_the_reason_without_waiting_for_an_answer(listener: str) -> None:
    began = time.monotonic()
    with ControlClient(listener) as client, pytest.raises(CommandRefused, match=REASON):
        client.ask(TOO_LONG, timeout_s=3600)
    assert time.monotonic() - began < 60

    async def in_a_loop() -> None:
        client = AsyncControlClient(listener)
        try:
            with pytest.raises(CommandRefused, match=REASON):
                await client.ask(TOO_LONG, timeout_s=3600)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(in_a_loop(), 60))


def test_text_that_is_no_utf_8_is_sent_in_a_readable_way() -> None:
    event = Warned(message="/tmp/\udcff was removed")
    notice = decode_from_supervisor(encode(EventNotice(event)))
    assert notice == EventNotice(Warned(message=r"/tmp/\udcff was removed"))
    call = decode_call(encode_call(1, DrainReplica(replica="\udcff")))
    assert call.command == DrainReplica(replica=r"\udcff")


@pytest.mark.parametrize("later", [False, True])
def test_a_mistake_of_the_supervisors_own_is_told_at_once_and_logged(tmp_path: Path, later: bool) -> None:
    def fail(command: AnyCommand, client: bytes) -> asyncio.Future[Answer]:
        if not later:
            raise ZeroDivisionError("a mistake of ours")
        failed: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        failed.set_exception(ZeroDivisionError("a mistake of ours"))
        return failed

    async def scene() -> None:
        logged: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(repr(context["exception"])))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        path = str(tmp_path / "control")
        server = ControlServer(context, path, EventLog(), fail, lambda: pytest.fail("no inventory"), pytest.fail)
        client = AsyncControlClient(path)
        try:
            with pytest.raises(CommandRefused, match="Reload: a mistake of the supervisor's own") as refused:
                await client.ask(Reload(), timeout_s=3600)
        finally:
            await client.close()
            server.close()
            context.destroy(linger=0)
        assert refused.value.code == "internal"
        assert logged == ["ZeroDivisionError('a mistake of ours')"]

    asyncio.run(asyncio.wait_for(scene(), 60))
