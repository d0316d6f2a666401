"""A slot that is fed over HTTP: what its server says goes to its exchanges, and its drain waits for the server too.

A foreign server may be asked by others besides Stoker. So what Stoker itself proxies, which it counts exactly, is
waited for first, as every slot does; then the server's own gauges must be zero, for long enough that neither a gauge
that lags nor a request between two looks is missed (spec 10):

    draining: [exchanges of ours] -> [gauges, each 0.5 s: zero for 6 s in a row] -> it ends
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod

from supervisor.control.events import DrainStarted, Warned
from supervisor.core.lifecycle import COMING_UP, State
from supervisor.core.plurals import count
from supervisor.links.foreign_metrics import LOOKED_FOR, Unreadable, in_flight_of
from supervisor.links.health import Health
from supervisor.links.http import HttpCarrier
from supervisor.links.rewrite import Broken, excerpt, said
from supervisor.slots.base import Home, Make, Slot

POLL_S = 0.5
"""From one look at the server's gauges to the next while it drains (spec 10)."""
QUIET_S = 6.0
"""How long they must be zero: they lag behind, and a server may take a request in between two looks."""
METRICS_LIMIT_S = 5.0
"""A metrics page that takes longer cannot be read."""


class HttpFed(Slot):
    """Implements `links.http.Receiver`: its server is ready while its health says so. And its drain."""

    def __init__(self, home: Home, deployment: str, number: int, born: int, make: Make) -> None:
        super().__init__(home, deployment, number, born, make)
        self._way: HttpCarrier | None = None
        self._watching: asyncio.Task[None] | None = None
        self._watched = False
        self._server_has = 0

    # ------------------------------------------------------------------------------------- what differs

    @abstractmethod
    def _metrics_path(self) -> str:
        """The page of the server that has its gauges."""

    def _waits_for_server(self) -> bool:
        """Whether the end of its drain depends on what else its server has."""
        return self.drain_timeout_s > 0

    # ------------------------------------------------------------------------------------- links.http.Receiver

    def on_answer(self, number: int, status: int, body: bytes) -> None:
        """What comes for a target that is gone is dropped, here and below."""
        if self.target is not None:
            self._home.exchanges.on_answer(self.target, number, status, body)

    def on_chunk(self, number: int, data: bytes) -> None:
        if self.target is not None:
            self._home.exchanges.on_chunk(self.target, number, data)

    def on_end(self, number: int) -> None:
        if self.target is not None:
            self._home.exchanges.on_end(self.target, number)

    def on_broken(self, number: int, reason: str) -> None:
        if self.target is not None:
            self._home.exchanges.on_broken(self.target, number, reason)

    def on_health(self, health: Health) -> None:
        """In rotation while it is healthy; what it has in flight goes on either way."""
        if health.ready and self.state in COMING_UP and self._way is not None:
            self._enter_pool(self._way, None)
        elif health.ready and self.state is State.UNRESPONSIVE:
            self._move(State.READY, "its health is back")
        elif not health.ready and self.state is State.READY:
            self._move(State.UNRESPONSIVE, health.reason)
        elif not health.ready and self.state in COMING_UP:
            self.reason = health.reason

    # ------------------------------------------------------------------------------------- its life

    def _begin(self) -> None:
        super()._begin()
        self._watched = False
        self._server_has = 0

    def _hang_up(self) -> None:
        """Let go of the server: its connections are closed, nobody looks at it any more."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._way is not None:
            self._way.forget()
            self._way = None

    # ------------------------------------------------------------------------------------- drain by metrics

    def _stop(self, cut: int) -> None:
        """What Stoker proxies is done, or cut. What else the server has is waited for, once."""
        was_ready = self.target is not None and self._way is not None
        must_watch = was_ready and not cut and not self._watched and self._waits_for_server()
        if self.state is State.DRAINING and must_watch:
            self._watch()
        else:
            super()._stop(cut)

    def cut_drain(self) -> None:
        """See `Slot.cut_drain`. What is left may be the server's alone."""
        if self.state is not State.DRAINING or not self._watched:
            super().cut_drain()
            return
        has = f"with {count(self._server_has, 'request')} in its server"
        when = has if self._server_has else f"before its server was idle for {QUIET_S:g} s"
        self._home.publish(Warned(message=f"the drain of {self.name} was cut {when}"))
        self._stop(cut=self._server_has if self.managed else 0)  # a server of others goes on with what it has

    def _watch(self) -> None:
        self._watched = True
        if self.drain_until is None:
            self._publish(DrainStarted, in_flight=0, ceiling_s=self.drain_timeout_s, why=self.reason)
            self.drain_until = self._drain_started + self.drain_timeout_s
            self._after(self.drain_timeout_s, self.cut_drain)
        self._watching = asyncio.get_running_loop().create_task(self._until_quiet())

    async def _until_quiet(self) -> None:
        """Wait until the server has had nothing for long enough; not at all where it does not say what it has."""
        why, zero_since = self.reason, None
        while self._waits_for_server():
            started = time.monotonic()
            found = await self._in_server()
            if isinstance(found, str):
                self._home.publish(Warned(message=f"{self.name} leaves without waiting for its server: {found}"))
                break
            self._server_has = found
            self.reason = f"{why}; its server has {found or 'none'}"
            now = time.monotonic()
            if found:
                zero_since = None
            elif zero_since is None:
                zero_since = now
            elif now - zero_since >= QUIET_S:
                break
            await asyncio.sleep(max(0.0, started + POLL_S - now))
        self._watching = None
        self._stop(cut=0)

    async def _in_server(self) -> int | str:
        """How many requests the server has by its own metrics, or why that cannot be said."""
        assert self._way is not None
        path = self._metrics_path()
        try:
            async with asyncio.timeout(METRICS_LIMIT_S):
                status, page = await self._way.server.get(path)
        except TimeoutError:
            return f"its {path} with {LOOKED_FOR} did not answer within {METRICS_LIMIT_S:g} s"
        except Broken as error:
            return f"its {path} with {LOOKED_FOR} cannot be read ({error})"
        if status != 200:
            words = f": {text}" if (text := excerpt(page)) else ""
            return f"its {path} with {LOOKED_FOR} answered {said(status)}{words}"
        found = in_flight_of(page.decode(errors="replace"))
        return f"its {path} has no {found.metric} that can be read" if isinstance(found, Unreadable) else found
