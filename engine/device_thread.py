"""The thread that computes. It alone calls the backend, so a forward never meets another one.

Each turn: take what arrived (requests, cancellations), tokenise it, run one forward over the rows that the batcher
packs together, run one step of the generations that are under way, say the answers. It waits only when there is
nothing to do. What it hears and says goes over a `Wire`; that somebody answers the supervisor while it computes is not
its business (`engine.custody`).

Whatever a backend raises for a request, user code that leaves by `SystemExit` included, is that request's answer (500)
and a traceback in the log. Only an error of this thread's own ends the process.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine import golden
from engine.backends.answers import NotFiniteError, OutputError
from engine.backends.base import Backend, Generation, Job, LoadError, RequestError, Row, error_body
from engine.backends.registry import build
from engine.batching import Batcher
from engine.calibration import Pass
from engine.errors import log_traceback, words_of
from engine.messages import (
    HEARTBEAT_S,
    MAX_BODY_BYTES,
    PROTOCOL,
    Answer,
    Chunk,
    End,
    Faults,
    LaunchSpec,
    LoadFailed,
    Phase,
    Progress,
    Register,
    Route,
    ToSupervisor,
)
from engine.row_cache import RowCache
from engine.threads.shadows import Threads, Untouched, threads_for


class Work(msgspec.Struct, frozen=True, gc=False):
    """A request on its way into the device thread. `deadline` is monotonic seconds."""

    exchange: int
    route: int
    stream: bool
    body: bytes
    deadline: float


Arrival = Work | int
"""A request, or the number of an exchange that nobody waits for any more."""

Outgoing = tuple[ToSupervisor, bytes | None]


class Wire(Protocol):
    """Where work comes from and answers go. All but `put` say what was put, in order, before they return or wait."""

    def put(self, message: ToSupervisor, body: bytes | None = None) -> None:
        """Say this soon."""

    def flush(self) -> None:
        """Say it now."""

    def take(self) -> list[Arrival]:
        """Everything that arrived by now, in order."""

    def wait(self) -> list[Arrival]:
        """The same, and there is something."""

    def something_waits(self) -> bool:
        """Whether there is something to take."""

    def fail(self, reason: LoadFailed) -> None:
        """The last word: there is nothing to serve."""

    def abandon(self) -> None:
        """Nobody computes any more: the process is to end."""


@dataclasses.dataclass(slots=True)
class Gauges:
    """What the heartbeat reports of the device thread. Written here, read by whoever sends it."""

    queued_rows: int = 0
    forward_started: float | None = None
    forwards: int = 0
    rows: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    cancelled_rows: int = 0
    nan_outputs: int = 0
    cached_rows: int = 0
    gpu_bytes: int = 0
    threads: int = 0


class _OpenJob:
    """A job whose rows are not all computed yet.

    outputs: one a row, None where there is none yet. computed: the rows that the cache did not have, in order; the
    batcher knows them by their place here.
    """

    __slots__ = ("computed", "exchange", "job", "missing", "outputs")

    def __init__(self, exchange: int, job: Job, outputs: list[Any]) -> None:
        self.exchange = exchange
        self.job = job
        self.outputs = outputs
        self.computed = [place for place, output in enumerate(outputs) if output is None]
        self.missing = len(self.computed)

    def row(self, index: int) -> Row:
        """The row that the batcher knows by this number."""
        return self.job.rows[self.computed[index]]


@dataclasses.dataclass(slots=True)
class _OpenGeneration:
    generation: Generation
    stream: bool


class DeviceThread(threading.Thread):
    """Loads the backend where none was handed in, registers, then serves until the process ends."""

    _backend: Backend

    def __init__(self, spec: LaunchSpec, wire: Wire, loaded: Backend | None = None) -> None:
        super().__init__(name="device", daemon=True)
        self.gauges = Gauges()
        self._spec = spec
        self._loaded = loaded
        self._wire = wire
        self._memory_seen = float("-inf")
        self._jobs: dict[int, _OpenJob] = {}
        self._generations: dict[int, _OpenGeneration] = {}
        self._batcher: Batcher[int] = Batcher(max_tokens=1, max_rows=1)
        self._known = RowCache(spec.result_cache_entries)
        self.threads: Threads = Untouched(spec.threads)

    # ------------------------------------------------------------------------------- on any thread

    def set_faults(self, faults: Faults) -> None:
        """Hand new faults to a stub, at once, also while its forward hangs."""
        if hasattr(self, "_backend"):
            self._backend.set_faults(faults)

    # ------------------------------------------------------------------------------- on this thread

    def run(self) -> None:
        """Load, check, register, serve. What goes wrong before serving ends the process with its reason."""
        try:
            self._start_up()
        except LoadError as error:
            self._wire.fail(LoadFailed(str(error), error.final))
            return
        except BaseException as error:
            log_traceback(error)
            self._wire.fail(LoadFailed(words_of(error), False))
            return
        try:
            while True:
                self._turn()
        finally:  # an error of ours, which goes on to the log: a process that only talks would seem alive
            self._wire.abandon()

    def _start_up(self) -> None:
        if self._loaded is None:
            self._wire.put(Progress(PROTOCOL, Phase.LOADING))
            self._wire.flush()
            self._backend = build(self._spec)
            self._backend.load()
        else:
            self._backend = self._loaded
        self._wire.put(Progress(PROTOCOL, Phase.WARMING))
        self._wire.flush()
        self._backend.warm()
        passes: list[Pass] = []
        verdict = golden.check(self._backend, passes.append)
        self._backend.calibrate(passes)
        self._batcher = Batcher(max_tokens=self._backend.max_num_batched_tokens, max_rows=self._backend.max_num_seqs)
        card = self._backend.card()
        self.threads = threads_for(self._spec, self._backend, card)
        self.gauges.threads = self.threads.size
        self._look_at_memory()
        said = msgspec.structs.replace(card, golden=verdict, threads=self.threads.size)
        self._wire.put(Register(PROTOCOL, os.getpid(), said))
        if (report := self.threads.report()) is not None:
            self._wire.put(report)

    def _turn(self) -> None:
        busy = len(self._batcher) or self._generations
        self._admit(self._wire.take() if busy else self._wire.wait())
        rows = self._batcher.next_forward()
        self.gauges.queued_rows = len(self._batcher)
        if rows:
            self._wire.flush()
            self._forward(rows)
        if self._generations:
            self._wire.flush()
            self._step()
        self._look_at_memory()

    def _look_at_memory(self) -> None:
        """Device memory for the heartbeat, asked on this thread and no more often than the heartbeat tells it."""
        now = time.monotonic()
        if now - self._memory_seen >= HEARTBEAT_S:
            self._memory_seen = now
            self.gauges.gpu_bytes = self._backend.gpu_bytes()

    def _admit(self, arrived: Sequence[Arrival]) -> None:
        """Tokenise the new requests that somebody still waits for; forget the cancelled ones."""
        cancelled = {item for item in arrived if isinstance(item, int)}
        for exchange in cancelled:
            self._forget(exchange)
        now = time.monotonic()
        for item in arrived:
            if isinstance(item, int):
                continue
            if item.exchange in cancelled or item.deadline <= now:
                self.gauges.cancelled_rows += 1
            else:
                self._prepare(item)

    def _prepare(self, work: Work) -> None:
        try:
            prepared = self._backend.prepare(Route(work.route), work.body, work.stream)
        except RequestError as error:
            self._refuse(work.exchange, error)
            return
        except BaseException as error:
            self._break(work.exchange, error)
            return
        if isinstance(prepared, Job):
            self._open(work.exchange, prepared)
        else:
            self._generations[work.exchange] = _OpenGeneration(prepared, work.stream)

    def _open(self, exchange: int, job: Job) -> None:
        """Have the rows computed that are not known; where all are, that is the answer."""
        opened = self._jobs[exchange] = _OpenJob(exchange, job, [self._known.find(row) for row in job.rows])
        self.gauges.cached_rows += len(job.rows) - opened.missing
        if opened.missing:
            self._batcher.add(exchange, [opened.row(index).tokens for index in range(opened.missing)])
        else:
            self._finish(opened)

    def _forget(self, exchange: int) -> None:
        """Drop what is not computed yet of an exchange that nobody waits for."""
        if self._jobs.pop(exchange, None) is not None:
            self.gauges.cancelled_rows += self._batcher.drop(exchange)
        if (opened := self._generations.pop(exchange, None)) is not None:
            self.gauges.cancelled_rows += 1
            self._backend.release(opened.generation)

    def _forward(self, keys: list[tuple[int, int]]) -> None:
        rows = [self._jobs[exchange].row(index) for exchange, index in keys]
        before = self.gauges.busy_s
        try:
            outputs = self._timed_forward(rows)
        except BaseException as error:
            self._isolate(keys, error)
            return
        for (exchange, index), output in zip(keys, outputs, strict=True):
            self._deliver(exchange, index, output)
        self._learn(rows, outputs, self.gauges.busy_s - before)

    def _learn(self, rows: Sequence[Row], outputs: Sequence[Any], seconds: float) -> None:
        """What the learning of threads makes of a served forward (spec 9): passes over it again, while nobody waits."""
        started = time.monotonic()
        self.gauges.forward_started = started
        self.threads.after(rows, outputs, seconds, self._work_waits)
        self.gauges.forward_started = None
        self.gauges.busy_s += time.monotonic() - started
        if (report := self.threads.news()) is not None:
            self._wire.put(report)

    def _work_waits(self) -> bool:
        return bool(len(self._batcher) or self._generations or self._wire.something_waits())

    def _timed_forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        self.threads.before(rows)
        self.gauges.threads = self.threads.size
        started = time.monotonic()
        self.gauges.forward_started = started
        try:
            return self._backend.forward(rows)
        finally:
            self.gauges.forward_started = None
            self.gauges.busy_s += time.monotonic() - started
            self.gauges.forwards += 1
            self.gauges.rows += len(rows)
            self.gauges.tokens += max([row.tokens for row in rows]) * len(rows)

    def _isolate(self, keys: list[tuple[int, int]], error: BaseException) -> None:
        """A forward failed: its requests are tried one by one, so that a poison input fails alone."""
        exchanges = list(dict.fromkeys(exchange for exchange, _ in keys))
        if len(exchanges) == 1:
            self._abandon(exchanges[0], error)
            return
        for exchange in exchanges:
            own = [key for key in keys if key[0] == exchange]
            self._forward(own)
            self._wire.flush()

    def _deliver(self, exchange: int, index: int, output: Any) -> None:
        opened = self._jobs.get(exchange)
        if opened is None:
            return
        opened.outputs[opened.computed[index]] = output
        opened.missing -= 1
        if not opened.missing:
            self._finish(opened)

    def _finish(self, opened: _OpenJob) -> None:
        """Answer a job that has all its outputs; what could be served is worth keeping."""
        del self._jobs[opened.exchange]
        try:
            body = _fitting(opened.job.answer(opened.outputs))
        except BaseException as error:
            self._break(opened.exchange, error)
            return
        self._wire.put(Answer(opened.exchange, 200), body)
        for place in opened.computed:
            self._known.keep(opened.job.rows[place], opened.outputs[place])

    def _step(self) -> None:
        """One decode step of every generation under way; what it brought goes out, what ended leaves."""
        self.threads.before_step()
        running = list(
            itertools.islice(self._generations.items(), self._backend.max_num_seqs)
        )  # first come, first served
        self.gauges.queued_rows = len(self._batcher) + len(self._generations) - len(running)
        started = time.monotonic()
        self.gauges.forward_started = started
        try:
            self._backend.step([opened.generation for _, opened in running])
        except BaseException as error:
            for exchange, _ in running:
                self._abandon(exchange, error)
            return
        finally:
            self.gauges.forward_started = None
            self.gauges.busy_s += time.monotonic() - started
            self.gauges.forwards += 1
            self.gauges.rows += len(running)
            self.gauges.tokens += len(running)
        for exchange, opened in running:
            self._speak(exchange, opened)

    def _speak(self, exchange: int, opened: _OpenGeneration) -> None:
        generation = opened.generation
        if generation.error is not None:
            self._abandon(exchange, generation.error)
            return
        try:
            if opened.stream and (piece := generation.take()) is not None:
                self._wire.put(Chunk(exchange), _fitting(piece))
            body = None if opened.stream or not generation.done else _fitting(generation.answer())
        except BaseException as error:
            self._abandon(exchange, error)
            return
        if not generation.done:
            return
        del self._generations[exchange]
        self._backend.release(generation)
        if body is None:
            self._wire.put(End(exchange))
        else:
            self._wire.put(Answer(exchange, 200), body)

    # ------------------------------------------------------------------------------- what went wrong

    def _refuse(self, exchange: int, error: RequestError) -> None:
        body = error_body(str(error), kind="invalid_request_error", code="invalid_request", param=error.param)
        self._wire.put(Answer(exchange, error.status), body)

    def _break(self, exchange: int, error: BaseException) -> None:
        """An error of the engine or of user code: 500 for this caller, the traceback in the replica's log."""
        self.gauges.nan_outputs += isinstance(error, NotFiniteError)
        log_traceback(error)
        self._wire.put(Answer(exchange, 500), error_body(words_of(error), kind="server_error", code="engine_error"))

    def _abandon(self, exchange: int, error: BaseException) -> None:
        self._batcher.drop(exchange)
        self._jobs.pop(exchange, None)
        if (opened := self._generations.pop(exchange, None)) is not None:
            self._backend.release(opened.generation)
        self._break(exchange, error)


def _fitting(body: bytes) -> bytes:
    """The body where the wire takes it, else raises OutputError: ZeroMQ would drop it and the connection, unsaid."""
    if len(body) > MAX_BODY_BYTES:
        found = f"found {len(body) / 2**20:.0f} MiB; ask for less in one request"
        raise OutputError(f"expected an answer of at most {MAX_BODY_BYTES >> 20} MiB, {found}")
    return body
