"""A slot with processes of ours behind it, one after another: started, heard, seen to end, started again (spec 5)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import msgspec

from engine.errors import StokerError
from engine.messages import (
    EXIT_REASONS,
    PROTOCOL,
    Answer,
    Card,
    Chunk,
    End,
    ExitCode,
    Faults,
    Heartbeat,
    LoadFailed,
    Phase,
    Progress,
    Register,
    ThreadReport,
    ThreadTable,
    ToSupervisor,
)
from supervisor.control.events import (
    ReplicaExited,
    ReplicaFailed,
    ReplicaStarted,
    ThreadsAdopted,
    ThreadsLearned,
    ThreadsRelearning,
    ThreadsRetired,
    ThreadsUncertified,
)
from supervisor.core.lifecycle import COMING_UP, Ending, GiveUp, State, after_exit
from supervisor.host.launcher import Promise
from supervisor.host.logs import ReplicaLog
from supervisor.host.processes import STOP_S, Child, Exit
from supervisor.links.zeromq import EngineCarrier
from supervisor.slots.base import Facts, Home, Intent, Make, ManagedMake, Slot

SHARE_S = 0.5
"""Least time over which a share of a core is told."""
SILENT_S = 5.0
"""Without a heartbeat for this long a replica is `unresponsive` and out of rotation (spec 5)."""
DEAD_S = 30.0
"""Without a heartbeat for this long it is killed and restarted."""
START_FAULTS = ("noise", "wrong_card", "wrong_limits", "exit_while_loading")
"""Faults of a stub that are looked at while it starts; all others act when they are set, and end with the process."""
LAST_LINES = 20
"""Log lines that are shown with an exit."""


class ManagedSlot(Slot):
    """Implements `processes.Observer` and `links.zeromq.Peer` for its incarnations."""

    managed = True

    def __init__(self, home: Home, deployment: str, number: int, born: int, make: ManagedMake, log: ReplicaLog) -> None:
        super().__init__(home, deployment, number, born, make)
        self.log = log
        self._make = make
        self._faults: Faults | None = None
        self._child: Child | None = None
        self._promise: Promise | None = None
        self._carrier: EngineCarrier | None = None
        self._heartbeat: Heartbeat | None = None
        self._thread_table: ThreadTable | None = None
        self._cores: Sequence[int] = ()
        self._cpu_share = 0.0
        self._cpu_since: tuple[float, float] | None = None
        """When its share of a core was counted last, and its CPU seconds then."""
        self._identity = b""
        self._heard = 0.0
        self._load_failure: LoadFailed | None = None
        self._registered: Card | None = None
        self._why_killed = ""

    def facts(self, now: float) -> Facts:
        child, spec = self._child, self._make.spec
        if child is None:
            return Facts(spec.device, threads=spec.threads)
        return Facts(
            device=spec.device,
            pid=child.pid if child.alive else None,
            threads=spec.threads,
            age_s=now - child.started,
            cpu_share=self._cpu_share,
            rss_bytes=self._heartbeat.rss_bytes if self._heartbeat is not None else 0,
            heartbeat=self._heartbeat,
            cores=self._cores,
            thread_table=self._thread_table,
        )

    @property
    def cores(self) -> Sequence[int]:
        """Logical cores that its process is pinned to; none where it is not, or does not run."""
        return self._cores if self._has_process() else ()

    def remake(self, make: Make) -> None:
        super().remake(make)
        assert isinstance(make, ManagedMake)
        self._make = make

    # ------------------------------------------------------------------------------------- told by the fleet

    def start(self) -> None:
        self._begin()
        self._heartbeat, self._cpu_since, self._cpu_share = None, None, 0.0
        self._thread_table = None
        self._load_failure = None
        self._registered = None
        self._why_killed = ""
        self._identity = b"\1" + secrets.token_bytes(16)
        self._heard = self._began
        self.log.begin(self.incarnation)
        self._move(State.STARTING)
        self._cores = self._home.free_cores(self, self._make.spec.threads) if self._make.spread else ()
        try:
            self._launch()
        except (OSError, StokerError) as error:
            self.on_start_failed(f"could not be started: {error}", None)

    def kill(self, why: str) -> None:
        """SIGKILL to the process group; where there is none yet, it is not started after all."""
        self._why_killed = why
        if self._child is not None:
            self._child.kill()
        elif self._promise is not None and self._promise.cancel():
            self.on_start_failed(why, None)

    def set_faults(self, faults: Faults) -> None:
        """New faults for a stub engine, also for those of its starts."""
        self._faults = faults
        if self._carrier is not None:
            self._carrier.set_faults(faults)

    def tick(self, now: float) -> None:
        """Is it still heard of, and do forwards take too long, those of the golden check included (spec 5)?"""
        if self._child is None or not self._child.alive or self.state in (State.DRAINING, State.STOPPING):
            return
        silent = now - self._heard
        if silent > DEAD_S and self.state not in COMING_UP:
            self.kill(f"no heartbeat for {silent:.0f} s")
        elif silent > SILENT_S and self.state is State.READY:
            self._move(State.UNRESPONSIVE, f"no heartbeat for {silent:.0f} s")
        limit, awake = self._make.restart_hung_s, now - self._home.awake_since
        if limit and self._heartbeat is not None and min(self._heartbeat.forward_age_s, awake) > limit:
            self.kill(f"a forward ran for {self._heartbeat.forward_age_s:.0f} s")
        elif limit and self.state is State.WARMING and min(now - self.since, awake) > limit:
            self.kill(f"its first forwards ran for {now - self.since:.0f} s")

    def close(self) -> None:
        self.log.close()

    def _has_process(self) -> bool:
        return self._child is not None or self._promise is not None

    def _end(self) -> None:
        if self._child is not None:
            self._child.terminate(STOP_S)
        elif self._promise is None or self._promise.cancel():
            self._promise = None
            self._let_go()
            self._gone()

    # ------------------------------------------------------------------------------------- launcher.Starting

    def on_started(self, child: Child, kind: str) -> None:
        """There is a process. Where it is not wanted any more it goes at once."""
        self._promise = None
        self._child = child
        self.started_by = kind
        self._publish(ReplicaStarted, pid=child.pid, device=self._make.spec.device, how=kind)
        if self.state is State.STOPPING:
            child.terminate(STOP_S)
        elif self._why_killed:
            child.kill()
        else:
            self._join()

    def on_waiting(self, why: str) -> None:
        if self.state in COMING_UP:
            self._move(State.LOADING, why)

    def on_start_failed(self, reason: str, exit_code: int | None) -> None:
        """There is no process and none comes."""
        self._promise = None
        self._let_go()
        self._exited(reason)
        if self.state is State.STOPPING:
            self._gone()
            return
        ran = time.monotonic() - self._began
        final = exit_code == ExitCode.LOAD_FINAL
        self._ended(reason, Ending(ran, False, load_failed=not self._why_killed, final=final))
        self._rest_or_wait()

    # ------------------------------------------------------------------------------------- told by the process

    def on_output(self, data: bytes) -> None:
        self.log.feed(data, time.time(), time.monotonic())

    def on_exit(self, ending: Exit) -> None:
        """The process is gone: what it had in flight is lost, and the policy says what follows."""
        assert self._child is not None
        self._home.link.look()
        self.log.begin(self.incarnation)
        how = self._describe(ending)
        self._exited(how)
        if self.state is State.DRAINING:
            self._end_drain(cut=len(self.target.open) if self.target is not None else 0)
            self._move(State.STOPPING)
        self._unpool(how)
        if self.state is State.STOPPING:
            return
        self._ended(how, self._judge(ending, time.monotonic() - self._child.started))

    def on_group_gone(self) -> None:
        """Nothing of it is left: now it may be stopped, restarted or forgotten."""
        self._child = None
        self._let_go()
        self._rest_or_wait()

    def on_message(self, message: ToSupervisor, body: bytes | None) -> None:
        """What the engine says. An exchange that is not open here any more is a late answer, never an error."""
        match message:
            case Answer() if self.target is not None and body is not None:
                self._home.exchanges.on_answer(self.target, message.exchange, message.status, body)
            case Chunk() if self.target is not None and body is not None:
                self._home.exchanges.on_chunk(self.target, message.exchange, body)
            case End() if self.target is not None:
                self._home.exchanges.on_end(self.target, message.exchange)
            case Heartbeat():
                self._on_heartbeat(message)
            case Progress():
                self._on_progress(message)
            case Register():
                self._on_register(message)
            case LoadFailed():
                self._load_failure = message
            case ThreadReport():
                self._on_threads(message)
            case _:
                pass

    def _on_heartbeat(self, message: Heartbeat) -> None:
        now = time.monotonic()
        since, cpu_s = self._cpu_since or (now, message.cpu_s)
        if now - since >= SHARE_S:  # heartbeats that waited come together
            self._cpu_share = max(0.0, (message.cpu_s - cpu_s) / (now - since))
        if self._cpu_since is None or now - since >= SHARE_S:
            self._cpu_since = (now, message.cpu_s)
        self._heartbeat = message
        self._heard = now
        if self.state is State.UNRESPONSIVE:
            self._move(State.READY, "heartbeats are back")

    def _on_threads(self, message: ThreadReport) -> None:
        before, self._thread_table = self._thread_table, message.table
        if before is None and message.table.certified is False:
            self._publish(ThreadsUncertified)
        for news in message.news:
            match news.kind:
                case "learned":
                    self._publish(ThreadsLearned, range=news.label, count=news.count, gain=news.gain)
                case "adopted":
                    self._publish(ThreadsAdopted, range=news.label, count=news.count, gain=news.gain)
                case "relearning":
                    self._publish(ThreadsRelearning, range=news.label)
                case "retired":
                    shape = news.drift.shape if news.drift is not None else ""
                    lengths = news.drift.lengths if news.drift is not None else []
                    self._publish(ThreadsRetired, range=news.label, count=news.count, shape=shape, lengths=lengths)

    def _on_progress(self, message: Progress) -> None:
        if message.protocol != PROTOCOL:
            self.kill(f"speaks protocol {message.protocol}, expected {PROTOCOL}")
        elif self.state in COMING_UP:
            self._move(State.LOADING if message.phase is Phase.LOADING else State.WARMING)

    def _on_register(self, message: Register) -> None:
        if message.protocol != PROTOCOL:
            self.kill(f"speaks protocol {message.protocol}, expected {PROTOCOL}")
            return
        self._heard = time.monotonic()
        self._registered = message.card
        self._join()

    def _join(self) -> None:
        """Into the pool, once it has registered and its process is known: a fork tells of these two in either order."""
        card, child, carrier = self._registered, self._child, self._carrier
        if card is None or child is None or carrier is None or self.state not in COMING_UP or not child.alive:
            return
        self._enter_pool(carrier, card)

    # ------------------------------------------------------------------------------------- inside

    def _launch(self) -> None:
        """Have the incarnation's process started; `on_started` tells of it. Raises OSError or StokerError."""
        spec = msgspec.structs.replace(
            self._make.spec,
            identity=self._identity,
            replica=self.name,
            incarnation=self.incarnation,
            cores=list(self._cores) or None,
            options=self._options(),
        )
        self._carrier = self._home.link.admit(self._identity, self)
        promise = self._home.launcher.start(spec, self._make.env, self)
        if self._child is None and self.state in COMING_UP:
            self._promise = promise

    def _options(self) -> dict[str, object]:
        """The engine's further arguments, with the faults of a stub's start that were set since."""
        options = self._make.spec.options
        if self._faults is None:
            return options
        chosen = {name: getattr(self._faults, name) for name in START_FAULTS if getattr(self._faults, name)}
        return {**options, "faults": chosen}

    def _let_go(self) -> None:
        """Nothing of the incarnation is left: give back what was held for it."""
        self._home.link.forget(self._identity)

    def _judge(self, ending: Exit, ran_s: float) -> Ending:
        """What an end that nobody asked for means to the restart policy."""
        final = ending.code == ExitCode.LOAD_FINAL
        return Ending(ran_s, self._was_ready, load_failed=final or ending.code == ExitCode.LOAD_FAILED, final=final)

    def _ended(self, why: str, ending: Ending) -> None:
        """It ended unasked: restart after a delay, or give up."""
        self.last_lines = [line.text for line in self.log.tail(LAST_LINES)]
        pid = self._child.pid if self._child is not None else 0
        verdict = after_exit(self.record, ending)
        if isinstance(verdict, GiveUp):
            reason = f"{why}; {verdict.why}"
            self._publish(ReplicaExited, pid=pid, reason=why, last_lines=self.last_lines)
            self._move(State.FAILED, reason)
            self._publish(ReplicaFailed, reason=reason)
            return
        self.record = verdict.record
        self.restart_at = time.monotonic() + verdict.delay_s
        self._publish(ReplicaExited, pid=pid, reason=why, restart_in_s=verdict.delay_s, last_lines=self.last_lines)
        self._move(State.RESTARTING, why)

    def _rest_or_wait(self) -> None:
        """The process is gone to the last of its group: what the intent asks for now."""
        if self.state is State.RESTARTING and self.intent is Intent.KEEP:
            delay = max(0.0, (self.restart_at or 0.0) - time.monotonic())
            self._after(delay, self._start_again)
        else:
            self._gone()

    def _start_again(self) -> None:
        if self.state is State.RESTARTING:
            self.restarts += 1
            self.start()

    def _describe(self, ending: Exit) -> str:
        words = ending.describe()
        if self._load_failure is not None:
            return f"{self._load_failure.reason} ({words})"
        if ending.code in list(ExitCode) and ending.code:
            words = f"{EXIT_REASONS[ExitCode(ending.code)]} ({words})"
        return f"{self._why_killed} ({words})" if self._why_killed else words
