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

import dataclasses
import os
import socket
import sys
import time

import msgspec

from engine.errors import StokerError
from supervisor.config.engine_options import CommandOptions
from supervisor.core.lifecycle import Ending, State
from supervisor.host import descriptors
from supervisor.host.logs import ReplicaLog
from supervisor.host.processes import Child, Exit, spawn
from supervisor.host.usage import Usage
from supervisor.links.health import Health
from supervisor.slots.base import Facts, Home, ManagedMake
from supervisor.slots.http_fed import HttpFed
from supervisor.slots.managed import DEAD_S, ManagedSlot

KIND = "command"
LAUNCHER = (sys.executable, "-P", "-m", "engine.exec_command")
CANNOT_EXECUTE = (126, 127)
"""Exit codes of a command that is not there or cannot be executed, as `engine.exec_command` and shells have them."""


class CommandSlot(ManagedSlot, HttpFed):
    """Fed as an attached one is; its process lives as any of ours."""

    def __init__(self, home: Home, deployment: str, number: int, born: int, make: ManagedMake, log: ReplicaLog) -> None:
        super().__init__(home, deployment, number, born, make, log)
        self._port: Port | None = None
        self._unwell_since: float | None = None
        self._usage: Usage | None = None

    def facts(self, now: float) -> Facts:
        endpoint = self._way.server.shown if self._way is not None else None
        facts = dataclasses.replace(super().facts(now), endpoint=endpoint)
        if self._usage is None:
            return facts
        return dataclasses.replace(facts, rss_bytes=self._usage.rss_bytes, cpu_share=self._usage.cpu_share)

    def tick(self, now: float) -> None:
        """A server that was ready and is not for that long will not come back by itself."""
        if self.state is State.UNRESPONSIVE and self._unwell_since is not None and now - self._unwell_since > DEAD_S:
            self.kill(f"not healthy for {now - self._unwell_since:.0f} s: {self.reason}")

    # ------------------------------------------------------------------------------------- how it starts and ends

    def _launch(self) -> None:
        self._unwell_since = None
        if not descriptors.are_left():
            raise StokerError(descriptors.TOO_FEW)
        options = self._command_options()
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
        """The way to the server, probed from now on."""
        model = options.model or self._make.spec.artifact
        endpoint = f"http://127.0.0.1:{port.number}"
        self._way = self._home.http_link.carrier(endpoint, model, self.deployment, self, options.health_path)

    def _command_options(self) -> CommandOptions:
        return msgspec.convert(self._make.spec.options, CommandOptions)

    def _metrics_path(self) -> str:
        return self._command_options().metrics_path

    def on_started(self, child: Child, kind: str) -> None:
        super().on_started(child, kind)
        self._home.meter.watch(child.pid, self._on_usage)

    def _on_usage(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self) -> None:
        """Connections that stay open would keep a server from leaving."""
        self._hang_up()
        super()._end()

    def on_exit(self, ending: Exit) -> None:
        super().on_exit(ending)
        self._hang_up()

    def on_group_gone(self) -> None:
        if self._child is not None:
            self._home.meter.forget(self._child.pid)
        self._usage = None
        super().on_group_gone()

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
        return f"its command {self._command_options().command[0]!r} cannot be executed ({words})" if cannot else words

    # ------------------------------------------------------------------------------------- links.http.Receiver

    def on_health(self, health: Health) -> None:
        """See HttpFed; since when it is not well."""
        self._unwell_since = None if health.ready else self._unwell_since or time.monotonic()
        super().on_health(health)


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
