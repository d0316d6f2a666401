"""SIGHUP as often as somebody likes: reloads do not pile up, and the end does not wait for them (spec 8)."""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path
from unittest import mock

import pytest

from engine.errors import StokerError
from supervisor.config.load import parse_config
from supervisor.config.schema import Placement
from supervisor.document import Document
from supervisor.host.runtime import RuntimeDir
from supervisor.supervisor import ServeOptions, Supervisor
from tests.support import stub_config


def test_however_many_signals_come_during_a_reload_one_more_follows(tmp_path: Path) -> None:
    text = stub_config(1)
    options = ServeOptions(parse_config(text, "test").config, text, None, "test", "127.0.0.1:0")
    reloads: list[asyncio.Event] = []

    async def reload() -> list[str]:
        reloads.append(asyncio.Event())
        await reloads[-1].wait()
        return []

    async def scene() -> None:
        supervisor = Supervisor(options, RuntimeDir("test", tmp_path))
        supervisor._loop = asyncio.get_running_loop()

        async def begun(count: int) -> None:
            while len(reloads) < count:
                await asyncio.sleep(0)

        with mock.patch.object(supervisor, "reload", reload):
            for _ in range(100):
                supervisor._reload_by_signal()
            await begun(1)
            reloads[0].set()
            await begun(2)
            reloads[1].set()
            await asyncio.gather(*supervisor._tasks)
            supervisor._reload_by_signal()
            await begun(3)
            reloads[2].set()
            await asyncio.gather(*supervisor._tasks)
        assert len(reloads) == 3 and not supervisor._tasks

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_at_the_end_what_is_to_be_written_is_written_and_what_is_to_be_read_is_not(tmp_path: Path) -> None:
    path = tmp_path / "stoker.yaml"
    path.write_text(stub_config(1))

    async def scene() -> None:
        document = Document(path, path.read_text())
        blocked = concurrent.futures.Future[None]()
        document._disk.submit(blocked.result)
        reads = [document.read() for _ in range(50)]
        saved = document.set_placements("stub", [Placement(device="cpu"), Placement(device="cpu")])
        closing = asyncio.get_running_loop().run_in_executor(None, document.close)
        while not document._closing:
            await asyncio.sleep(0)
        blocked.set_result(None)
        assert await saved is None
        await closing
        for read in reads:
            with pytest.raises(StokerError, match="the supervisor is stopping"):
                await read

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert path.read_text().count("device: cpu") == 2
