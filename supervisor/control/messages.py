"""The control socket's wire (spec 2, 12): commands, their answers, status and the streams, one structure a kind.

Frames (the supervisor binds a ROUTER, a client connects a DEALER):

    client -> supervisor   [call: Call]
    supervisor -> client   [reply: Reply]        one for each call, by its id
                           [notice: Notice]      to subscribers, as things happen

msgpack, typed, versioned, validated. Light: the CLI imports this and nothing of the supervisor's inside.
"""

from __future__ import annotations

import msgspec

from engine.errors import ProtocolError, StokerError
from engine.messages import Card, Faults, ThreadTable
from supervisor.control.events import AnyEvent
from supervisor.control.texts import all_readable

CONTROL_PROTOCOL = 1
MAX_CALL_BYTES = 1024 * 1024
"""Limit of one command."""


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command"):
    """Base of everything that can be asked."""


class GetStatus(Command, frozen=True, tag="status"):
    """The inventory now."""


class GetReplica(Command, frozen=True, kw_only=True, tag="replica"):
    """Everything about one replica: its row, its history, its ejections. Answer: `ReplicaDetails`."""

    replica: str


class Scale(Command, frozen=True, kw_only=True, tag="scale"):
    """Ask for that many replicas, or for `delta` more; the last asked number wins."""

    deployment: str
    replicas: int | None = None
    delta: int | None = None


class Trial(Command, frozen=True, kw_only=True, tag="trial"):
    """So many replicas for a measurement: the config is not written. None: back to those before the first trial.

    It lasts no longer than the connection that asks for it; meanwhile others are refused a trial.
    """

    deployment: str
    replicas: int | None = None


class DrainReplica(Command, frozen=True, kw_only=True, tag="drain"):
    """Take a replica out by hand; it stays out until it is restarted. incarnation: only if it is still that one."""

    replica: str
    incarnation: int | None = None


class Restart(Command, frozen=True, kw_only=True, tag="restart"):
    """A replica by name, or a whole deployment one replica at a time."""

    target: str
    incarnation: int | None = None


class Kill(Command, frozen=True, kw_only=True, tag="kill"):
    """SIGKILL to a replica's process group, if it is still that incarnation."""

    replica: str
    incarnation: int


class Eject(Command, frozen=True, kw_only=True, tag="eject"):
    """Take a ready replica out of rotation as its timeouts would, if it is still that incarnation."""

    replica: str
    incarnation: int | None = None


class Readmit(Command, frozen=True, kw_only=True, tag="readmit"):
    """Bring a replica back into rotation, everything forgiven, if it is still that incarnation."""

    replica: str
    incarnation: int | None = None


class SetReplicaFaults(Command, frozen=True, kw_only=True, tag="faults"):
    """Faults of a stub replica, in place of those that were set."""

    replica: str
    faults: Faults


class Reload(Command, frozen=True, tag="reload"):
    """Read the config file again."""


class Stop(Command, frozen=True, kw_only=True, tag="stop"):
    """Drain everything and leave. Asked a second time, or with `now`, the drain is cut."""

    now: bool = False


class GetEvents(Command, frozen=True, kw_only=True, tag="events"):
    """The kept events after `since`."""

    since: int = 0


class GetLogs(Command, frozen=True, kw_only=True, tag="logs"):
    """The last lines of one replica, of those of a deployment (with its template's), or of all."""

    replica: str | None = None
    lines: int = 200
    deployment: str | None = None


class Subscribe(Command, frozen=True, kw_only=True, tag="subscribe"):
    """Hear events after `since`, and log lines, until the client goes. Answer: `Subscribed`.

    replica, deployment: whose log lines; of all where neither is named.
    """

    events: bool = True
    logs: bool = False
    replica: str | None = None
    since: int | None = None
    deployment: str | None = None


AnyCommand = (
    GetStatus
    | GetReplica
    | Scale
    | Trial
    | DrainReplica
    | Restart
    | Kill
    | Eject
    | Readmit
    | SetReplicaFaults
    | Reload
    | Stop
    | GetEvents
    | GetLogs
    | Subscribe
)


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One command under an id of the client's choice."""

    protocol: int
    id: int
    command: AnyCommand


# ------------------------------------------------------------------------------------------------------- answers


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as status, dashboard and `/v1/inventory` show it. Times in seconds, sizes in bytes."""

    name: str
    deployment: str
    incarnation: int
    pid: int | None
    device: str
    state: str
    reason: str
    in_flight: int
    outstanding_bytes: int
    restarts: int
    threads: int | None
    rss_bytes: int
    gpu_bytes: int
    cpu_percent: float
    requests_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    requests: int
    failures: int
    age_s: float
    in_state_s: float
    forward_age_s: float
    queued_rows: int
    engine_in_flight: int
    cancelled_rows: int
    forwards: int
    rows: int
    tokens: int = 0
    busy_s: float = 0.0
    """Seconds spent in forwards; rows, tokens and this grow within an incarnation only."""
    cached_rows: int = 0
    """Rows that it did not compute because it had computed their like before."""
    backoff_s: float = 0.0
    ejected_s: float = 0.0
    timeouts: int = 0
    """Timeouts in a row that count towards an ejection."""
    withheld: str | None = None
    """Why it serves on although its timeouts would eject it: `no_peer_answered` or `max_ejection_percent`."""
    drain_left_s: float = 0.0
    drain_ceiling_s: float = 0.0
    """How long its drain may take in all; 0 where none runs. It began when the state did."""
    restart_in_s: float = 0.0
    cordoned: bool = False
    managed: bool = True
    endpoint: str | None = None
    started_by: str | None = None
    ready_after_s: float | None = None
    last_exit: str | None = None
    last_lines: list[str] = []
    card: Card | None = None
    limits: dict[str, int] = {}
    """What it holds a forward and its memory to; `card.calibrated` names those that it found by itself."""
    cores: list[int] = []
    thread_table: ThreadTable | None = None


class ResultCacheStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that are given again without a replica (spec 10). hits, misses: requests that were looked up so far."""

    active: bool
    """Whether it remembers now: one replica serves, and its task is deterministic."""
    entries: int
    bytes: int
    hits: int
    misses: int


class DeploymentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment; its counts come from the very rows in `replicas`."""

    name: str
    artifact: str | None
    engine: str
    task: str
    state: str
    desired_replicas: int
    ready_replicas: int
    restarts: int
    requests_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    requests: int
    failures: int
    limits: dict[str, int | None]
    warnings: list[str]
    replicas: list[ReplicaStatus]
    result_cache: ResultCacheStatus | None = None
    retries: int = 1
    """Further replicas that are tried where one dies before the first byte of its answer."""


class SupervisorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor itself."""

    name: str
    version: str
    pid: int
    listen: str
    state: str
    uptime_s: float
    rss_bytes: int
    cpu_percent: float
    cpu_budget: int
    cpu_threads_used: int
    memory_total_bytes: int
    memory_used_bytes: int
    config: str | None
    log_dir: str | None
    last_event: int


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    utilisation: float | None
    simulated: bool


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """All deployments together; the percentiles are those of all their requests."""

    requests_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    in_flight: int = 0
    requests: int = 0
    failures: int = 0


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What `stoker status --json` and `/v1/inventory` print."""

    deployments: list[DeploymentStatus]
    supervisor: SupervisorStatus
    devices: list[DeviceStatus]
    warnings: list[str]
    totals: Totals = Totals()


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """One move in a slot's life. time: wall-clock seconds. exit: how the incarnation's process ended, if it did."""

    time: float
    incarnation: int
    state: str
    reason: str = ""
    exit: str | None = None


WITHHELD = {
    "no_peer_answered": "no other replica has answered since",
    "max_ejection_percent": "max_ejection_percent are out already",
}
"""Why an ejection is withheld, in words."""


class EjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica stands with `outlier_detection` (spec 7). Times in seconds."""

    timeouts: int
    needed: int
    """Timeouts in a row that eject it; 0: ejection is off."""
    ejected_s: float
    by_hand: bool
    next_s: float
    """How long the next ejection would last."""
    withheld: str | None
    ejections: int
    readmissions: int
    """Of the slot, over all its incarnations."""


class ReplicaDetails(msgspec.Struct, frozen=True, kw_only=True, tag="details"):
    """One replica with what a row has no room for. history: the slot's last moves, oldest first."""

    replica: ReplicaStatus
    history: list[StateChange]
    ejection: EjectionStatus | None
    """None while it has no place in rotation: before it registered, after it left."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The command was taken; it is under way, not done. asked, existing, ready: replicas, where they matter."""

    text: str
    asked: int | None = None
    existing: int | None = None
    ready: int | None = None
    saved: bool | None = None
    event: int = 0


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    time: float
    replica: str
    incarnation: int
    text: str


class Lines(msgspec.Struct, frozen=True, kw_only=True, tag="lines"):
    lines: list[LogLine]


class Events(msgspec.Struct, frozen=True, kw_only=True, tag="events"):
    """Kept events in order; `missed` earlier ones are kept no more."""

    events: list[AnyEvent]
    missed: int


class Subscribed(msgspec.Struct, frozen=True, kw_only=True, tag="subscribed"):
    """The snapshot that the stream continues without a gap: notices start at `inventory.supervisor.last_event + 1`."""

    inventory: Inventory
    events: list[AnyEvent]
    missed: int


class Status(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    inventory: Inventory


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The command was not taken, and why."""

    message: str
    code: str = "refused"


Answer = Accepted | Lines | Events | Subscribed | Status | ReplicaDetails | Refused


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    id: int
    answer: Answer


class EventNotice(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    event: AnyEvent


class LogNotice(msgspec.Struct, frozen=True, array_like=True, tag="log"):
    """Lines of one moment, and how many were left out after them because they came too fast or were not read."""

    lines: list[LogLine]
    skipped: int


class Missed(msgspec.Struct, frozen=True, array_like=True, tag="missed"):
    """This subscriber was too slow: so many events were not sent to it."""

    count: int


FromSupervisor = Reply | EventNotice | LogNotice | Missed


class CommandRefused(StokerError):
    """A command that the supervisor did not take; the text says why and what to do."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


_encoder = msgspec.msgpack.Encoder()
_call = msgspec.msgpack.Decoder(Call)
_from_supervisor = msgspec.msgpack.Decoder(FromSupervisor)


def encode(message: Call | FromSupervisor) -> bytes:
    """A message as a frame."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:  # a path, or an argument, that is no UTF-8
        return _encoder.encode(all_readable(msgspec.to_builtins(message, builtin_types=(bytes,))))


def encode_call(number: int, command: AnyCommand) -> bytes:
    """A client's call as a frame. Raises CommandRefused where it is longer than the socket takes: libzmq would end the
    connection without a word."""
    frame = encode(Call(CONTROL_PROTOCOL, number, command))
    if len(frame) > MAX_CALL_BYTES:
        raise CommandRefused(f"a command of {len(frame)} bytes; {MAX_CALL_BYTES} are the most", "invalid")
    return frame


def decode_call(frame: bytes) -> Call:
    """Read a client's call. Raises ProtocolError."""
    try:
        call = _call.decode(frame)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"not a call: {error}") from error
    if call.protocol != CONTROL_PROTOCOL:
        raise ProtocolError(f"control protocol {call.protocol}, expected {CONTROL_PROTOCOL}")
    return call


def decode_from_supervisor(frame: bytes) -> FromSupervisor:
    """Read what a supervisor sent. Raises ProtocolError."""
    try:
        return _from_supervisor.decode(frame)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"not a supervisor's message: {error}; is it another version of stoker?") from error
