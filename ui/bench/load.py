"""Load a server as planned. `run` is all that most callers need; `load_of` is for bodies of one's own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import uvloop

from ui.bench.asking import ask_once, joined
from ui.bench.bodies import Bodies, Source
from ui.bench.closed import ClosedLoad
from ui.bench.connection import Server
from ui.bench.measured import Summary
from ui.bench.open import OpenLoad
from ui.bench.plan import OnTick, Plan
from ui.bench.running import Load


def run(plan: Plan, server: Server, key: str | None = None, on_tick: OnTick = lambda far: None) -> Summary:
    """Ask once, then load the server as planned; what was found, also where Ctrl-C ended it early.

    Raises NotMeasurable where the first request is not answered.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(plan, server, key, on_tick))


async def measure(plan: Plan, server: Server, key: str | None, on_tick: OnTick) -> Summary:
    """The same, in a loop that runs already."""
    bodies = Bodies(plan.shape, first=time.time_ns() >> 10)
    head = server.request("POST", plan.shape.path, key)
    await ask_once(server, joined(head, bodies.make()), plan.timeout_s)
    load = load_of(plan, server, head, bodies, on_tick)
    with _until_told(load.interrupt):
        return await load.run()


def load_of(plan: Plan, server: Server, head: bytes, bodies: Source, on_tick: OnTick = lambda far: None) -> Load:
    """The load of a plan, not begun. head: of each request (`Server.request`); bodies: one for each."""
    kind: type[Load] = ClosedLoad if plan.rate is None else OpenLoad
    return kind(plan, server, head, bodies, on_tick)


@contextlib.contextmanager
def _until_told(interrupt: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run and not the process, which has something to show."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
