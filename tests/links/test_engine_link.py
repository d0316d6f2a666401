"""Large bodies on their way to an engine hold room until they have left, also where nobody waits any more (spec 11)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
import zmq

from engine.messages import Ask, Request, ToSupervisor
from supervisor.core.body_room import BodyRoom
from supervisor.links.zeromq import TRACKED_BYTES, EngineCarrier, EngineLink
from tests.support import LONG_S

ENGINE = b"\1engine"
BODY = b"x" * (8 * TRACKED_BYTES)
SENT = 8


class Peer:
    """What the engine says is of no interest."""

    def on_message(self, message: ToSupervisor, body: bytes | None) -> None:
        """See above."""


class Scene:
    """A link with one engine, played by a socket that takes next to nothing in until it is read."""

    def __init__(self, folder: Path) -> None:
        self.bad: list[str] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.room = BodyRoom(2 * SENT * len(BODY))
        self.link = EngineLink(self.context, str(folder / "engines"), self.room, self.bad.append)
        self.engine = self.context.socket(zmq.DEALER)
        self.engine.setsockopt(zmq.IDENTITY, ENGINE)
        self.engine.setsockopt(zmq.RCVHWM, 1)
        self.engine.connect(self.link.endpoint)
        self.carrier = self.link.admit(ENGINE, Peer())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Scene]:
        try:
            await until(lambda: self.link.send(ENGINE, Ask(), None))
            yield self
        finally:
            self.link.close()
            self.engine.close(linger=0)
            self.context.destroy(linger=0)
            assert self.bad == []

    def send_and_cancel(self, carrier: EngineCarrier, body: bytes) -> None:
        """As when callers leave at once."""
        for exchange in range(SENT):
            assert carrier.send(Request(exchange, 1, False, 1.0), body)
        for exchange in range(SENT):
            carrier.cancel(exchange)


async def until(holds: Callable[[], bool]) -> None:
    """Turn the loop until it is so."""
    while not holds():
        await asyncio.sleep(0.001)


def run(folder: Path, script: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LONG_S), Scene(folder).running() as scene:
            await script(scene)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("end", ["it takes them", "it dies"])
def test_cancelled_bodies_hold_room_until_an_engine_that_stood_still_takes_them_or_dies(
    tmp_path: Path, end: str
) -> None:
    async def script(scene: Scene) -> None:
        scene.send_and_cancel(scene.carrier, BODY)
        await asyncio.sleep(0)
        assert scene.room.held >= (SENT - 3) * len(BODY), "one or two lie in buffers on the way"
        if end == "it dies":
            scene.engine.close(linger=0)
        else:
            taken = 0
            while taken < SENT:
                with contextlib.suppress(zmq.Again):
                    frames = scene.engine.recv_multipart(zmq.NOBLOCK)
                    taken += frames[-1] == BODY
                await asyncio.sleep(0)
        await until(lambda: scene.room.held == 0)

    run(tmp_path, script)


def test_bodies_that_have_left_and_small_ones_hold_nothing_when_they_are_cancelled(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        scene.send_and_cancel(scene.carrier, BODY[: TRACKED_BYTES - 1])
        assert scene.room.held == 0
        for _ in range(2 * SENT + 1):
            await asyncio.to_thread(scene.engine.recv_multipart)
        assert scene.carrier.send(Request(100, 1, False, 1.0), BODY)
        await asyncio.to_thread(scene.engine.recv_multipart)
        tracker, _ = scene.carrier._tracked[100]
        await until(lambda: tracker.done)
        scene.carrier.cancel(100)
        assert scene.room.held == 0 and not scene.carrier._tracked

    run(tmp_path, script)


def test_what_is_remembered_of_bodies_that_have_left_goes_with_the_next_one(tmp_path: Path) -> None:
    async def script(scene: Scene) -> None:
        for exchange in range(3 * SENT):
            assert scene.carrier.send(Request(exchange, 1, False, 1.0), BODY)
            while (await asyncio.to_thread(scene.engine.recv_multipart))[-1] != BODY:
                pass
            tracker, _ = scene.carrier._tracked[exchange]
            await until(lambda tracker=tracker: tracker.done)
            assert list(scene.carrier._tracked) == [exchange]

    run(tmp_path, script)
