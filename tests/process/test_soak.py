"""Actions at random under load lose nothing; a storm of commands never runs two processes for one slot (spec 8, 16)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import psutil

from benchmarks.soak import ENGINE, soak
from supervisor.control.messages import CommandRefused, Reload, Restart, Scale
from tests.conftest import Serve
from tests.support import Running, stub_config


def test_forty_random_actions_under_load_lose_no_unary_request_and_no_stream_silently(serve: Serve) -> None:
    running = serve(stub_config(replicas=4, engine_args=ENGINE))
    running.wait_ready(4)
    report = asyncio.run(soak(running, seconds=10, actions=40, seed=7))
    assert report.lost_unary == 0, report.examples
    assert report.silent_streams == 0
    assert report.streams["ended with an error event"] <= 6 * report.actions["kill -9"]
    assert report.unary["200"] > 100 and report.streams["complete"] > 10, "there was no load"


def replica_processes(running: Running) -> list[psutil.Process]:
    """Engine processes that live, without the template."""
    rows = {row.pid for row in running.replicas()}
    return [process for process in running.descendants() if process.pid in rows]


def test_fifty_concurrent_commands_leave_one_process_a_slot_and_the_list_is_the_truth(serve: Serve) -> None:
    running = serve(stub_config(replicas=3))
    running.wait_ready(3)
    dice = random.Random(3)
    commands = [
        dice.choice(
            [
                Scale(deployment="stub", replicas=dice.randint(2, 5)),
                Restart(target="stub"),
                Restart(target="stub/0"),
                Reload(),
            ]
        )
        for _ in range(50)
    ]
    over = threading.Event()
    crowded: list[str] = []

    def sample() -> None:
        while not over.is_set():
            counts = [event for event in running.replicas() if event.pid is not None]
            names = [row.name for row in counts]
            if len(names) != len(set(names)) or len({row.pid for row in counts}) != len(counts):
                crowded.append(str(names))

    def ask(number: int) -> None:
        with contextlib.suppress(CommandRefused):  # a replica that another command removed meanwhile
            running.ask(commands[number])

    sampler = threading.Thread(target=sample)
    sampler.start()
    running.together(ask, 50)
    running.accepted(Scale(deployment="stub", replicas=3))
    running.wait_status(
        lambda inventory: len(inventory.deployments[0].replicas) == 3 == inventory.deployments[0].ready_replicas
    )
    over.set()
    sampler.join()
    assert crowded == []
    engines = [p for p in running.descendants() if "ui.cli.main" not in p.cmdline()]
    assert len(engines) == 4, "three replicas and their template"
    assert {row.pid for row in running.replicas()} < {process.pid for process in engines}
    assert {running.embed().status for _ in range(6)} == {200}
