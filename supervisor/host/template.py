"""The supervisor's side of templates: one a set of weights, asked to fork, replaced when it dies (spec 5).

A template loads while its first replicas wait; when it is ready each of them costs milliseconds. Where it cannot be
forked (it says so itself, or the platform has no fork that serves) replicas are spawned.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from engine.errors import ProtocolError, StokerError
from engine.messages import (
    PROTOCOL,
    Forked,
    ForkRequest,
    LaunchSpec,
    TemplateReady,
    decode_from_template,
    encode,
)
from supervisor.host import descriptors
from supervisor.host.launcher import Promise, SpawnLauncher, Starting, encode_launch, template_environment
from supervisor.host.processes import Child, Exit, spawn

MOST_MESSAGE_BYTES = 4096
STOP_TEMPLATE_S = 2.0
FORK_S = 30.0
"""A fork takes milliseconds; a template that was asked for one this long ago is stuck (stopped, starved), and goes."""
LOADING = "the shared weights are being loaded"
"""What a replica waits for until its template can be forked."""
IDLE_S = 600.0
"""A template that nothing was forked from for this long may go where memory is short."""

TellTemplate = Callable[[str, str], None]
"""Told of a template by name what happened to it, in words."""


class TemplateLauncher:
    """Forks replicas from templates, and spawns where that cannot serve.

    on_output: told of what templates print, by their name (that of the deployment they were started for, with
    `/template`). on_event: told of what happens to them, by their artifact.
    """

    def __init__(self, on_output: Callable[[str, bytes], None], on_event: TellTemplate) -> None:
        self._templates: dict[str, Template] = {}
        self._spawner = SpawnLauncher()
        self._unforkable: set[str] = set()
        self._on_output = on_output
        self._on_event = on_event
        self.on_empty: Callable[[], None] = lambda: None

    def start(self, spec: LaunchSpec, env: Mapping[str, str], observer: Starting) -> Promise:
        if not descriptors.are_left():
            raise StokerError(descriptors.TOO_FEW)
        key = template_key(spec)
        if key in self._unforkable or not can_fork(spec):
            return self._spawner.start(spec, env, observer)
        promise = ForkPromise(spec, dict(env), observer)
        self._living(key, spec, env).take(promise)
        return promise

    def _living(self, key: str, spec: LaunchSpec, env: Mapping[str, str]) -> Template:
        """The template of those weights, a new one where there is none. Raises OSError."""
        template = self._templates.get(key)
        if template is None or template.is_leaving:
            template = self._templates[key] = Template(self, key, spec, template_environment(env))
        return template

    def ask_another(self, template: Template, promise: ForkPromise) -> None:
        """That template is gone, which was not told yet."""
        try:
            self._living(template.key, promise.spec, promise.env).take(promise)
        except OSError as error:
            promise.observer.on_start_failed(f"could not be started: {error}", None)

    def tick(self, now: float, memory_is_short: bool) -> None:
        """Once a second: end templates that are stuck; where memory is short, let idle ones go."""
        for template in self._templates.values():
            if template.is_stuck(now):
                template.kill(f"no fork in {FORK_S:.0f} s")
            elif memory_is_short and template.is_idle(now):
                self._on_event(template.artifact, "is dropped: memory is short and nothing was forked for a while")
                template.stop()

    def retain(self, specs: list[LaunchSpec]) -> None:
        """Let the templates go that none of these specifications would be forked from."""
        wanted = {template_key(spec) for spec in specs}
        for key, template in list(self._templates.items()):
            if key not in wanted:
                template.stop()

    @property
    def pids(self) -> dict[str, int]:
        """The templates that live, by artifact."""
        living = (template for template in self._templates.values() if not template.is_over)
        return {template.artifact: template.pid for template in living}

    def spawn_instead(self, template: Template, promises: list[ForkPromise], why: str) -> None:
        """A template cannot be forked: from now on its replicas are spawned."""
        self._unforkable.add(template.key)
        self._on_event(template.artifact, f"cannot be forked ({why}); its replicas are spawned")
        template.stop()
        for promise in promises:
            self._spawn(promise)

    def spawn_once(self, template: Template, promise: ForkPromise, why: str) -> None:
        """This one cannot be asked for; others may."""
        self._on_event(template.artifact, f"was not asked for {promise.spec.replica} ({why}); it is spawned")
        self._spawn(promise)

    def _spawn(self, promise: ForkPromise) -> None:
        try:
            self._spawner.start(promise.spec, promise.env, promise.observer)
        except (OSError, StokerError) as error:
            promise.observer.on_start_failed(f"could not be started: {error}", None)

    def on_loaded(self, template: Template, seconds: float) -> None:
        """A template is ready."""
        self._on_event(template.artifact, f"loaded in {seconds:.2f} s (pid {template.pid})")

    def on_template_output(self, template: Template, data: bytes) -> None:
        """A template printed."""
        self._on_output(template.name, data)

    def on_over(self, template: Template, reason: str) -> None:
        """A template's process is gone."""
        if self._templates.get(template.key) is template:
            del self._templates[template.key]
        self._on_event(template.artifact, f"ended: {reason}")
        if not self._templates:
            self.on_empty()


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A fork that a template was asked for: our ends of its pipes, and when that was."""

    promise: ForkPromise
    output: int
    lifeline: int
    at: float


class Template:
    """One template process. Implements `processes.Observer` for it."""

    def __init__(self, launcher: TemplateLauncher, key: str, spec: LaunchSpec, env: Mapping[str, str]) -> None:
        self.key = key
        self.artifact = spec.artifact
        self.name = f"{spec.replica.rpartition('/')[0]}/template"
        self.is_over = False
        self._launcher = launcher
        self._env = dict(env)
        self._ready = False
        self._stopping = False
        self._last_fork = time.monotonic()
        self._numbers = itertools.count(1)
        self._waiting: list[ForkPromise] = []
        self._asked: dict[int, _Asked] = {}
        self._why_killed = ""
        self._last_words = b""
        self._loop = asyncio.get_running_loop()
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        ours.send(encode_launch(msgspec.structs.replace(spec, identity=b"")))
        ours.setblocking(False)
        command = [sys.executable, "-P", "-m", "engine.template"]
        with theirs:
            self._child = spawn(command, theirs.fileno(), os.dup(ours.fileno()), env, self)
        self.pid = self._child.pid
        self._loop.add_reader(ours.fileno(), self._hear)

    def take(self, promise: ForkPromise) -> None:
        """A replica of this template, as soon as it has loaded."""
        promise.template = self
        self._waiting.append(promise)
        if self._ready:
            self._ask_all()
        else:
            promise.observer.on_waiting(LOADING)

    @property
    def is_leaving(self) -> bool:
        """Whether it takes no more requests."""
        return self.is_over or self._stopping

    def is_idle(self, now: float) -> bool:
        """Whether nothing was asked of it for a while."""
        return self._ready and not self._stopping and not self._asked and now - self._last_fork > IDLE_S

    def is_stuck(self, now: float) -> bool:
        """Whether it owes a fork for far too long."""
        return any(now - asked.at > FORK_S for asked in self._asked.values())

    def kill(self, why: str) -> None:
        """End it at once; who waits for it is told why, and the next start makes a new one."""
        self._why_killed = why
        self._stopping = True
        self._child.kill()

    def stop(self) -> None:
        """Nobody needs it any more."""
        if not self._stopping:
            self._stopping = True
            self._child.terminate(STOP_TEMPLATE_S)

    def withdraw(self, promise: ForkPromise) -> bool:
        """Take a promise back that was not passed on yet."""
        if promise in self._waiting:
            self._waiting.remove(promise)
            return True
        return False

    # ------------------------------------------------------------------------------------- processes.Observer

    def on_output(self, data: bytes) -> None:
        self._last_words = (self._last_words + data)[-4096:]
        self._launcher.on_template_output(self, data)

    def on_exit(self, ending: Exit) -> None:
        self.is_over = True
        while self._hear():  # a replica that it told of as its last word is ours
            pass
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        lines = self._last_words.decode(errors="backslashreplace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        how = f"was killed: {self._why_killed}" if self._why_killed else f"ended with {ending.describe()}"
        reason = f"the template {how}{said}"
        for asked in self._asked.values():
            os.close(asked.output)
            os.close(asked.lifeline)
        failed = [*self._waiting, *(asked.promise for asked in self._asked.values())]
        self._waiting.clear()
        self._asked.clear()
        for promise in failed:
            promise.observer.on_start_failed(reason, ending.code)

    def on_group_gone(self) -> None:
        self.is_over = True
        self._launcher.on_over(self, self._child.ending.describe() if self._child.ending else "gone")

    # ------------------------------------------------------------------------------------- inside

    def _hear(self) -> bool:
        """Take one message in. False where there is none."""
        try:
            data = self._socket.recv(MOST_MESSAGE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket.fileno())
            return False
        try:
            message = decode_from_template(data)
        except ProtocolError:
            self.stop()
            return False
        match message:
            case TemplateReady() if not self.is_over:
                self._on_ready(message)
            case Forked():
                self._on_forked(message)
        return True

    def _on_ready(self, message: TemplateReady) -> None:
        if message.protocol != PROTOCOL or message.obstacle is not None:
            why = message.obstacle or f"it speaks protocol {message.protocol}, expected {PROTOCOL}"
            waiting, self._waiting = self._waiting, []
            self._launcher.spawn_instead(self, waiting, why)
            return
        self._ready = True
        self._launcher.on_loaded(self, message.seconds)
        self._ask_all()

    def _ask_all(self) -> None:
        """Ask for those who wait, as far as its socket takes requests now; the rest when it takes more."""
        while self._waiting:
            promise = self._waiting.pop(0)
            try:
                self._ask(promise)
            except BlockingIOError:
                self._waiting.insert(0, promise)
                self._loop.add_writer(self._socket.fileno(), self._ask_all)
                return
            except (BrokenPipeError, ConnectionResetError):
                self._stopping = True
                self._launcher.ask_another(self, promise)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self._launcher.spawn_once(self, promise, "that is too large for one message")
                else:
                    promise.observer.on_start_failed(f"the template could not be asked: {error}", None)
        self._loop.remove_writer(self._socket.fileno())

    def _ask(self, promise: ForkPromise) -> None:
        """Hand the request over, with the ends of two pipes: the replica's output, and its lifeline. Raises OSError."""
        self._last_fork = now = time.monotonic()
        number = next(self._numbers)
        request = encode(ForkRequest(number, promise.spec, difference(self._env, promise.env)))
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            output, their_output = _pipe(ours, theirs)
            their_lifeline, lifeline = _pipe(theirs, ours)
            socket.send_fds(self._socket, [request], [their_output, their_lifeline])
            ours.pop_all()
        self._asked[number] = _Asked(promise, output, lifeline, now)

    def _on_forked(self, message: Forked) -> None:
        asked = self._asked.pop(message.number, None)
        if asked is None:
            return  # a number of its own
        observer = asked.promise.observer
        try:
            child = Child(message.pid, asked.output, asked.lifeline, observer)
        except OSError as error:
            os.close(asked.output)
            os.close(asked.lifeline)  # its end tells the replica to end
            observer.on_start_failed(f"could not be watched: {error}", None)
            return
        observer.on_started(child, "fork")


class ForkPromise:
    """A replica that a template is to fork. `template`: the one that it waits for, or that was asked."""

    def __init__(self, spec: LaunchSpec, env: dict[str, str], observer: Starting) -> None:
        self.spec = spec
        self.env = env
        self.observer = observer
        self.template: Template | None = None

    def cancel(self) -> bool:
        """See Promise: possible until the template was asked."""
        return self.template is not None and self.template.withdraw(self)


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What turns one environment into another, None where a variable goes. A whole one may be too large for a message:
    on Kubernetes each service brings seven variables."""
    gone = dict.fromkeys(before.keys() - after.keys())
    return {**gone, **{name: value for name, value in after.items() if before.get(name) != value}}


def _pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these stacks. Raises OSError."""
    reader, writer = os.pipe()
    reading.callback(os.close, reader)
    writing.callback(os.close, writer)
    return reader, writer


def template_key(spec: LaunchSpec) -> str:
    """Equal for replicas that one template can be forked for: the same weights, loaded in the same way."""
    kind = spec.device.partition(":")[0]
    parts = (
        spec.engine,
        spec.artifact,
        spec.revision,
        spec.task,
        spec.dtype,
        spec.max_model_len,
        spec.trust_remote_code,
        {name: value for name, value in spec.options.items() if name != "faults"},
        kind,
        spec.simulated,
        spec.reproducible,
    )
    return msgspec.json.encode(parts, order="deterministic").decode()


def can_fork(spec: LaunchSpec) -> bool:
    """Whether a forked start serves: it needs Linux's child subreaper and parent-death signal.

    A user's own class may touch a GPU while it loads, which cannot be seen and does not survive a fork; so it is forked
    only where its engine arguments say `forkable: true`.
    """
    if spec.engine == "python" and spec.options.get("forkable") is not True:
        return False
    return sys.platform == "linux" and os.environ.get("STOKER_START") != "spawn"
