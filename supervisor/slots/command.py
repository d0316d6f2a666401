"""A slot with a foreign server behind it that Stoker starts and stops: vLLM, SGLang, llama-server (spec 10).

    spawn -> engine.exec_command -> the command, told its port       a process of ours, as `managed` has it
    supervisor --HTTP--> 127.0.0.1:port                              proxied and probed, as `attached` is

The port is picked by the kernel and stays reserved: the supervisor keeps a socket bound to it that never listens. With
SO_REUSEADDR and SO_REUSEPORT set on it a server that sets either one may bind beside it (nearly all do, or
connections of their last run that linger would fail them), and to everyone else the port is taken. A port that was
only looked up and let go would be anybody's for as long as the server loads, which takes minutes. Where a server ended
before it was ready, the next one gets a port that is not kept, in case it is one of the few that set neither.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import sys
import time

import msgspec

from supervisor.config.schema import CommandOptions
from supervisor.control.events import DrainStarted, Warned
from supervisor.core.lifecycle import COMING_UP, Ending, State
from supervisor.host.logs import ReplicaLog
from supervisor.host.processes import Exit, spawn
from supervisor.links.foreign_metrics import Unreadable, in_flight_of
from supervisor.links.health import Health, HealthProbe
from supervisor.links.http import HttpCarrier
from supervisor.links.rewrite import Broken, said
from supervisor.slots.base import Facts, Home, ManagedMake
from supervisor.slots.http_fed import HttpFed
from supervisor.slots.managed import DEAD_S, ManagedSlot

KIND = "command"
LAUNCHER = (sys.executable, "-P", "-m", "engine.exec_command")
HEALTH_PATH = "/health"
"""What the HTTP link probes by itself."""
POLL_S = 0.5
"""From one look at the server's gauges to the next while it drains (spec 10)."""
QUIET_S = 6.0
"""How long they must be zero: they lag behind, and a server may take a request in between two looks."""
METRICS_LIMIT_S = 5.0
"""A metrics page that takes longer cannot be read."""
CANNOT_EXECUTE = (126, 127)
"""Exit codes of a command that is not there or cannot be executed, as `engine.exec_command` and shells have them."""


class CommandSlot(ManagedSlot, HttpFed):
    """Implements `links.http.Receiver` for what its server says; its process lives as any of ours."""

    def __init__(self, home: Home, deployment: str, number: int, born: int, make: ManagedMake, log: ReplicaLog) -> None:
        super().__init__(home, deployment, number, born, make, log)
        self._port: Port | None = None
        self._way: HttpCarrier | None = None
        self._probe: HealthProbe | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watched = False
        self._server_has = 0
        self._unwell_since: float | None = None

    def facts(self, now: float) -> Facts:
        endpoint = self._way.server.shown if self._way is not None else None
        return dataclasses.replace(super().facts(now), endpoint=endpoint)

    def tick(self, now: float) -> None:
        """A server that was ready and is not for that long will not come back by itself."""
        if self.state is State.UNRESPONSIVE and self._unwell_since is not None and now - self._unwell_since > DEAD_S:
            self.kill(f"not healthy for {now - self._unwell_since:.0f} s: {self.reason}")

    # ------------------------------------------------------------------------------------- how it starts and ends

    def _launch(self) -> None:
        self._watched = False
        self._server_has = 0
        self._unwell_since = None
        options = msgspec.convert(self._make.spec.options, CommandOptions)
        self._port = port = Port()
        if self.record.quick_exits:
            port.free()
        command = [part.replace("{port}", str(port.number)) for part in options.command]
        env = {**self._make.env, **options.env}
        if options.port_env is not None:
            env[options.port_env] = str(port.number)
        cores = ",".join(map(str, self._cores))
        ties = [str(os.getpid()), cores, self._make.spec.artifact]
        reader, lifeline = os.pipe()
        try:
            child = spawn([*LAUNCHER, *ties, *command], reader, lifeline, env, self)
        finally:
            os.close(reader)
        self.on_started(child, KIND)
        self._move(State.LOADING)
        self._connect(port, options)

    def _connect(self, port: Port, options: CommandOptions) -> None:
        """The way to the server, probed from now on; by a probe of our own where its health is on another page."""
        model = options.model or self._make.spec.artifact
        carrier = self._home.http_link.carrier(f"http://127.0.0.1:{port.number}", model, self.deployment, self)
        self._way = carrier
        self._probe = None
        if options.health_path != HEALTH_PATH:

            async def fetch(path: str) -> tuple[int, bytes]:
                return await carrier.server.get(options.health_path if path == HEALTH_PATH else path)

            self._probe = HealthProbe(carrier.server.shown, fetch, model, self._on_found)
            self._tasks.append(asyncio.get_running_loop().create_task(self._probe.run()))

    def _end(self) -> None:
        """Connections that stay open would keep a server from leaving."""
        self._hang_up()
        super()._end()

    def on_exit(self, ending: Exit) -> None:
        super().on_exit(ending)
        self._hang_up()

    def _hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        if self._way is not None:
            self._way.forget()
            self._way = None

    def _let_go(self) -> None:
        self._hang_up()
        if self._port is not None:
            self._port.free()

    def _judge(self, ending: Exit, ran_s: float) -> Ending:
        final = not self._was_ready and ending.code in CANNOT_EXECUTE
        return Ending(ran_s, self._was_ready, load_failed=not self._was_ready, final=final)

    def _describe(self, ending: Exit) -> str:
        words = super()._describe(ending)
        cannot = not self._was_ready and ending.code in CANNOT_EXECUTE
        return f"its command cannot be executed ({words})" if cannot else words

    # ------------------------------------------------------------------------------------- drain by metrics

    def _stop(self, cut: int) -> None:
        """What Stoker proxies is done, or cut. What else the server has is waited for, once."""
        must_watch = not self._watched and not cut and self._was_ready and self.drain_timeout_s > 0
        if self.state is not State.DRAINING or self._way is None or not must_watch:
            super()._stop(cut)
            return
        self._watched = True
        if self.drain_until is None:
            self._publish(DrainStarted, in_flight=0, ceiling_s=self.drain_timeout_s, why=self.reason)
            self.drain_until = self._drain_started + self.drain_timeout_s
            self._after(self.drain_timeout_s, self.cut_drain)
        self._tasks.append(asyncio.get_running_loop().create_task(self._until_quiet(self._way)))

    def cut_drain(self) -> None:
        if self.state is not State.DRAINING or not self._watched:
            super().cut_drain()
            return
        has = f"with {self._server_has} requests in its server"
        when = has if self._server_has else f"before its server was idle for {QUIET_S:g} s"
        self._home.publish(Warned(message=f"the drain of {self.name} was cut {when}"))
        self._stop(cut=self._server_has)

    async def _until_quiet(self, carrier: HttpCarrier) -> None:
        """Wait until the server has had nothing for long enough; not at all where it does not say what it has."""
        zero_since: float | None = None
        while True:
            started = time.monotonic()
            found = await self._in_server(carrier)
            if isinstance(found, str):
                self._home.publish(Warned(message=f"{self.name} is stopped without waiting for its server: {found}"))
                break
            self._server_has = found
            now = time.monotonic()
            zero_since = None if found else zero_since or now
            if zero_since is not None and now - zero_since >= QUIET_S:
                break
            await asyncio.sleep(max(0.0, started + POLL_S - now))
        self._stop(cut=0)

    async def _in_server(self, carrier: HttpCarrier) -> int | str:
        """How many requests the server has by its own metrics, or why that cannot be said."""
        path = msgspec.convert(self._make.spec.options, CommandOptions).metrics_path
        try:
            async with asyncio.timeout(METRICS_LIMIT_S):
                status, page = await carrier.server.get(path)
        except TimeoutError:
            return f"its {path} did not answer within {METRICS_LIMIT_S:g} s"
        except Broken as error:
            return f"its {path} cannot be read: {error}"
        if status != 200:
            return f"its {path} answered {said(status)}"
        found = in_flight_of(page.decode(errors="replace"))
        return f"its {path} has no {found.metric} that can be read" if isinstance(found, Unreadable) else found

    # ------------------------------------------------------------------------------------- links.http.Receiver

    def on_health(self, health: Health) -> None:
        """What the link's own probe found; where it is not the one that counts, it says when to ask."""
        if self._probe is None:
            self._on_found(health)
        else:
            self._probe.ask()

    def _on_found(self, health: Health) -> None:
        """In rotation while it is healthy; what it has in flight goes on either way."""
        self._unwell_since = None if health.ready else self._unwell_since or time.monotonic()
        if health.ready and self.state in COMING_UP and self._way is not None:
            self._enter_pool(self._way, None)
        elif health.ready and self.state is State.UNRESPONSIVE:
            self._move(State.READY, "its health is back")
        elif not health.ready and self.state is State.READY:
            self._move(State.UNRESPONSIVE, health.reason)
        elif not health.ready and self.state in COMING_UP:
            self.reason = health.reason


class Port:
    """A free port of the loopback, nobody else's until `free`."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def free(self) -> None:
        """Keep it no longer."""
        self._socket.close()
