"""The supervisor: one process, one event loop, no torch (spec 2). It ties the rooms together, and decides nothing.

lock the name -> sockets -> fleet from the config -> gateway -> serve until told to stop -> drain -> leave
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib.metadata
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from engine.errors import StokerError
from supervisor.commands import Commands, Reread
from supervisor.config.schema import Config
from supervisor.control.events import (
    EventLog,
    Reloaded,
    ReloadFailed,
    SupervisorStarted,
    SupervisorStopping,
    Warned,
)
from supervisor.control.messages import LogLine as ControlLine
from supervisor.control.server import ControlServer
from supervisor.control.texts import readable
from supervisor.core.body_room import BodyRoom, Ebb
from supervisor.core.plurals import count
from supervisor.directory import Directory
from supervisor.document import Document
from supervisor.fleet import Fleet, Surroundings
from supervisor.gateway.app import Gateway
from supervisor.gateway.metrics import exposition
from supervisor.gateway.server import serving
from supervisor.gateway.status import StatusPages
from supervisor.host.cpu import cpu_budget
from supervisor.host.descriptors import for_clients, raise_limit
from supervisor.host.devices import list_devices
from supervisor.host.listening import display, listening
from supervisor.host.logs import LogLine, LogThread, RotatingLog
from supervisor.host.memory import KEPT_BYTES, body_bound, give_back_freed_memory, keep_freed_memory
from supervisor.host.processes import STOP_S, adopt_orphans
from supervisor.host.runtime import RuntimeDir
from supervisor.host.systemd import notify, watchdog_interval
from supervisor.inventory import Identity, InventoryMaker
from supervisor.links.http import HttpLink
from supervisor.links.zeromq import EngineLink
from supervisor.native.doors import IpcDoor
from supervisor.native.server import NativeServer
from supervisor.slots.making import Machine, check_environment
from supervisor.telling import EVENTS_FILE, BadFrames, EventLines, EventRecords, Stream

HEADROOM_S = 10.0
"""Between the end of the drain and the stop of the processes, in the promised worst case (spec 8)."""
LEAVING_S = 8.0
"""Of that, for the last answers and log lines once the processes are gone, or are given up."""
FOLDER_EACH_S = 2.0
"""Between two looks whether the sockets are still where engines and commands find them."""
ROOM_EACH_S = 10.0
"""Between two looks at the room for bodies."""
PEAK_BYTES = 256 * 1024 * 1024
"""After bodies held more than this together, memory is given back, once that is over."""
STDERR = 2
FLUSH_LOGS_S = 2.0
LINGER_MS = 500
"""How long the last answers on the control socket may take to leave, in milliseconds."""


@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """What `stoker serve` decided. `warnings`: of the config's loader, shown once at the start."""

    config: Config
    text: str
    path: Path | None
    name: str
    listen: str
    runtime_root: Path | None = None
    warnings: tuple[str, ...] = ()


def run(options: ServeOptions) -> int:
    """Serve until told to stop; the exit code. Raises StokerError where it cannot start."""
    check_environment(os.environ)
    runtime = RuntimeDir(options.name, options.runtime_root, _path(options.config.stoker.log_dir))
    with runtime.acquire(options.listen, time.time()) as lock:
        del lock
        adopt_orphans()
        raise_limit()
        keep_freed_memory()
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Supervisor(options, runtime).serve())


class Supervisor:
    """One running supervisor."""

    def __init__(self, options: ServeOptions, runtime: RuntimeDir) -> None:
        self._options = options
        self._runtime = runtime
        self._started = time.monotonic()
        self._stop_asked = asyncio.Event()
        self._empty = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reload_signals = 0

    async def serve(self) -> int:
        """From sockets to the last process; the exit code."""
        self._loop = asyncio.get_running_loop()
        self._document = Document(self._options.path, self._options.text)
        self.events = EventLog()
        self._bad_frames = BadFrames(self.events)
        async with contextlib.AsyncExitStack() as stack:
            words = LogThread(lambda _: None)  # of its own: a terminal that stands still holds up no file
            stack.callback(words.close, FLUSH_LOGS_S)
            self.events.listen(EventLines(words.sink(Stream(STDERR))))
            listener = stack.enter_context(listening(self._options.listen))
            context = stack.enter_context(_zmq_context())
            stack.callback(self._document.close)
            self._log_thread = LogThread(self._on_log_problem)
            stack.callback(self._log_thread.close, FLUSH_LOGS_S)
            file = RotatingLog(self._runtime.logs / EVENTS_FILE, self._on_log_problem)
            self.events.listen(EventRecords(self._log_thread.sink(file)))
            self._build(context, stack, display(listener))
            self._watch_signals()
            gc.freeze()  # what is here stays: no collection looks at it again, which would hold requests up for 11 ms
            self._announce(display(listener))
            self.fleet.apply(self._options.config)
            http = serving(self._gateway, listener, for_clients(), self._room, self._on_full)
            await stack.enter_async_context(http)
            notify("READY=1\nSTATUS=serving")
            self._feed_watchdog()
            self._watch_folder()
            self._watch_room()
            await self._until_stopped()
        return 0

    # --------------------------------------------------------------------------------------------- building

    def _build(self, context: zmq.Context[zmq.Socket[bytes]], stack: contextlib.AsyncExitStack, address: str) -> None:
        """Every room, each with its end on the stack, so that one that cannot be built leaves nothing behind."""
        options, config = self._options, self._options.config
        cores = cpu_budget().cores
        report = list_devices()
        self._problems = report.problems
        api_key = _api_key(config.stoker.api_key_env)
        self._body_bound = body_bound()
        self._room = BodyRoom(self._body_bound.most)
        self._ebb = Ebb(PEAK_BYTES, KEPT_BYTES)
        on_bad_frame = partial(self._bad_frames.count, "engines")
        link = EngineLink(context, str(self._runtime.engines), self._room, on_bad_frame)
        stack.callback(link.close)
        http_link = HttpLink()
        stack.push_async_callback(http_link.close)
        self.fleet = Fleet(
            self.events,
            Surroundings(
                link=link,
                http_link=http_link,
                machine=Machine(link.endpoint, cores, report.devices, os.environ),
                logs=self._runtime.logs,
                log_thread=self._log_thread,
                on_log=self._on_log,
            ),
        )
        stack.callback(self.fleet.close)
        self.fleet.on_empty = self._empty.set
        identity = Identity(
            name=options.name,
            version=importlib.metadata.version("stoker"),
            pid=os.getpid(),
            listen=address,
            started=self._started,
            cpu_cores=cores,
            config=readable(str(options.path)) if options.path is not None else None,
            log_dir=readable(str(self._runtime.logs)),
        )
        inventory = InventoryMaker(self.fleet, identity, report.devices, self._state)
        commands = Commands(self.fleet, inventory.make, self)
        self.control = ControlServer(
            context,
            str(self._runtime.control),
            self.events,
            commands.handle,
            inventory.make,
            partial(self._bad_frames.count, "control"),
        )
        stack.callback(self.control.close)
        pages = StatusPages(
            self.fleet,
            inventory.make,
            exposition(self.fleet, lambda: self._bad_frames.totals),
            time.time(),
            self._save_soon if config.stoker.admin_scale else None,
        )
        self._directory = Directory(self.fleet, config.default_deployment)
        self._gateway = Gateway(self.fleet.exchanges, self._directory, pages, api_key)
        native = NativeServer(
            context,
            IpcDoor(self._runtime.clients),
            self.fleet.exchanges,
            self._directory,
            self._room,
            partial(self._bad_frames.count, "clients"),
        )
        stack.callback(native.close)

    def _announce(self, address: str) -> None:
        options = self._options
        self.events.publish(SupervisorStarted(name=options.name, pid=os.getpid(), listen=address))
        for warning in (*options.warnings, *self._problems):
            self.events.publish(Warned(message=warning))
        if not _is_private(address) and options.config.stoker.api_key_env is None:
            self.events.publish(
                Warned(message=f"{address} is open to the network and no API key is set (stoker.api_key_env)")
            )

    # --------------------------------------------------------------------------------------------- the document

    async def reload(self) -> Reread:
        """Read the config again and make it the desired state; a line for each deployment that changes.

        Raises StokerError with what is wrong; then everything is as it was.
        """
        try:
            loaded_at = self._document.edits
            loaded = await self._document.read()
            while self._document.edits != loaded_at:  # a scale came meanwhile: what was read is not the last word
                loaded_at, loaded = self._document.edits, await self._document.read()
            if self._stop_asked.is_set():
                raise StokerError("the supervisor is stopping")
            differences = self.fleet.apply(loaded.config)
        except StokerError as error:
            self.events.publish(ReloadFailed(problem=str(error)))
            raise
        self._directory.default = loaded.config.default_deployment
        warnings = [*loaded.warnings, *self._fixed_settings(loaded.config)]
        for warning in warnings:
            self.events.publish(Warned(message=warning))
        self.events.publish(Reloaded(differences=differences))
        return Reread(differences, warnings)

    def save_placements(self, deployment: str) -> asyncio.Future[str | None]:
        """See `commands.Keeper`."""
        return self._document.set_placements(deployment, self.fleet.groups[deployment].lasting)

    def attend(self, caller: bytes, on_gone: Callable[[], None]) -> None:
        """See `commands.Keeper`."""
        self.control.attend(caller, on_gone)

    def _save_soon(self, deployment: str) -> None:
        """Write a deployment's replicas back, and tell where that fails."""

        def saved(done: asyncio.Future[str | None]) -> None:
            if (problem := done.result()) is not None:
                self.events.publish(Warned(message=f"{deployment}: in force, but not saved to the config: {problem}"))

        self.save_placements(deployment).add_done_callback(saved)

    def _fixed_settings(self, config: Config) -> list[str]:
        """Settings that changed in the file and need a new start."""
        before = self._options.config.stoker
        return [
            f"stoker.{name} changed; it takes effect at the next start"
            for name in ("listen", "api_key_env", "name", "log_dir", "admin_scale")
            if getattr(before, name) != getattr(config.stoker, name)
        ]

    def _reload_by_signal(self) -> None:
        """However many come while one reload goes on, one more follows, which sees the file as it is then."""
        self._reload_signals += 1
        if self._reload_signals > 1:
            return
        self._tasks.add(task := self._loop.create_task(self.reload()))
        task.add_done_callback(self._reloaded)

    def _reloaded(self, task: asyncio.Task[Reread]) -> None:
        """A refusal was told by an event; anything else is a mistake of ours, and is told, too."""
        self._tasks.discard(task)
        more, self._reload_signals = self._reload_signals > 1, 0
        if more and not self._stop_asked.is_set():
            self._reload_by_signal()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StokerError):
            self.events.publish(ReloadFailed(problem=f"a mistake of the supervisor's own: {error!r}"))
            self._loop.call_exception_handler({"message": "reload by a signal", "exception": error, "task": task})

    # --------------------------------------------------------------------------------------------- stopping

    def stop(self, why: str, now: bool = False) -> float:
        """Drain and leave; asked again, or `now`, cut the drain. The seconds it takes at the worst."""
        now = now or self._stop_asked.is_set()
        worst = HEADROOM_S + STOP_S if now else self._worst_case_s()
        if not self._stop_asked.is_set():
            self.events.publish(SupervisorStopping(why=why, worst_case_s=worst))
            self._stop_asked.set()
            notify("STOPPING=1\nSTATUS=draining")
            self.fleet.stop(why)
        if now:
            self.fleet.cut_drains()
        self._loop.call_later(worst - LEAVING_S, self._give_up)
        return worst

    def _worst_case_s(self) -> float:
        """The longest drain, also one that goes on under an older config, and the stop of the processes."""
        now = time.monotonic()
        drains = [group.deployment.drain_timeout_s for group in self.fleet.groups.values()]
        drains += [slot.drain_until - now for slot in self.fleet.slots() if slot.drain_until is not None]
        return max(drains, default=0.0) + HEADROOM_S + STOP_S

    def _feed_watchdog(self) -> None:
        """Tell systemd that the loop turns, where it wants to hear it."""
        if (interval := watchdog_interval()) is not None:
            notify("WATCHDOG=1")
            self._loop.call_later(interval, self._feed_watchdog)

    def _watch_folder(self) -> None:
        """A runtime folder may be cleaned away (a logout does that to /run/user/UID): say what that means, once."""
        lost = [path for path in (self._runtime.control, self._runtime.engines) if not path.exists()]
        if not lost:
            self._loop.call_later(FOLDER_EACH_S, self._watch_folder)
            return
        what = "what is ready serves on, but no new replica can reach this supervisor and no command finds it"
        remedy = f"stop it with 'kill {os.getpid()}', start it again, and set STOKER_RUNTIME_DIR to a folder that stays"
        self.events.publish(Warned(message=f"{lost[0]} was removed by somebody else: {what}; {remedy}"))

    def _watch_room(self) -> None:
        """Now and then: tell how many bodies found no room, and give memory back after a peak."""
        self._loop.call_later(ROOM_EACH_S, self._watch_room)
        room = self._room
        refused, room.refused = room.refused, 0
        if refused:
            most = f"{room.most // 1024**2} MiB, {self._body_bound.told}"
            message = (
                f"{count(refused, 'request')} got 429: the bodies of others fill what all may take together ({most})"
            )
            self.events.publish(Warned(message=message))
        peak, room.peak = room.peak, room.held
        if self._ebb.look(peak):
            give_back_freed_memory()

    async def _until_stopped(self) -> None:
        """Until the last process is gone, and no longer than was promised."""
        await self._stop_asked.wait()
        await self._empty.wait()

    def _give_up(self) -> None:
        """The time that was promised is over: leave, also where a process does not."""
        if not self._empty.is_set():
            self.fleet.cut_drains()
            left = ", ".join(f"{slot.name} ({slot.state})" for slot in self.fleet.slots()) or "a template"
            self.events.publish(Warned(message=f"the time for stopping is over; left to the kernel: {left}"))
            self._empty.set()

    def _watch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop, number.name)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload_by_signal)

    def _state(self) -> str:
        return "stopping" if self._stop_asked.is_set() else "running"

    # --------------------------------------------------------------------------------------------- telling

    def _on_log(self, lines: list[LogLine]) -> None:
        self.control.on_log(
            [
                ControlLine(time=line.time, replica=line.replica, incarnation=line.incarnation, text=line.text)
                for line in lines
            ]
        )

    def _on_full(self, refused: int) -> None:
        most = f"{for_clients()} are open, half of the files that this process may open"
        what = f"{count(refused, 'HTTP connection')} got 503 and no more: {most}"
        message = f"{what} (`ulimit -n`, systemd: LimitNOFILE)"
        self.events.publish(Warned(message=message))

    def _on_log_problem(self, message: str) -> None:
        """Called on the log thread, or on the loop: publish on the loop either way."""
        self._loop.call_soon_threadsafe(self.events.publish, Warned(message=message))


@contextlib.contextmanager
def _zmq_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=LINGER_MS)  # also where building failed half-way and sockets are still open


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise StokerError(f"stoker.api_key_env names {variable}, which is not set; set it or remove the entry")
    return key


def _is_private(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        import ipaddress

        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text is not None else None
