"""The wire between supervisor and engine: typed messages in msgpack, one structure a kind (spec 2).

Frames on the ZeroMQ link (the supervisor binds a ROUTER, each engine connects a DEALER):

    supervisor -> engine   [identity] [header: ToEngine]   [body, after Request only]
    engine -> supervisor   [identity] [header: ToSupervisor] [body, after Answer and Chunk only]

A body is never part of a header, so neither side re-encodes it: the caller's bytes reach the engine as they came,
and the engine's bytes reach the caller. Never pickle. The identity is a random token that the supervisor hands to one
incarnation through its standard input; a frame under any other identity is dropped and counted.
This module is light on purpose: both sides import it, and neither torch nor zmq is needed to read it.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from engine.errors import ProtocolError

PROTOCOL = 1
"""Version of this wire. A peer that registers with another one is refused."""

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Largest request or answer body (spec 11: 413 beyond it)."""

MAX_FRAME_BYTES = MAX_BODY_BYTES + 1024 * 1024
"""Limit given to ZeroMQ itself, so that a peer cannot announce more and have it buffered."""

HEARTBEAT_S = 1.0
"""Seconds between an engine's heartbeats (spec 5)."""


class Route(enum.IntEnum):
    """What a request asks for; the number travels, the name is for people."""

    EMBEDDINGS = 1
    COMPLETIONS = 2
    CHAT = 3
    CLASSIFY = 4
    RERANK = 5


class Phase(enum.StrEnum):
    """What an engine that is not registered yet is busy with."""

    LOADING = "loading"
    WARMING = "warming"


class ExitCode(enum.IntEnum):
    """Why an engine process ended by itself; the sentence of each is in `EXIT_REASONS`."""

    LEFT = 0
    LOAD_FAILED = 71
    LOAD_FINAL = 72
    ORPHANED = 73
    BAD_LAUNCH = 74
    BROKEN = 75


EXIT_REASONS = {
    ExitCode.LEFT: "left when told to",
    ExitCode.LOAD_FAILED: "could not load",
    ExitCode.LOAD_FINAL: "cannot serve this artifact",
    ExitCode.ORPHANED: "its supervisor was gone",
    ExitCode.BAD_LAUNCH: "was not given a launch specification it could read",
    ExitCode.BROKEN: "its device thread ended with an error, which stands in its log",
}


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of every message: positional on the wire, so a header is a few bytes."""


# ---------------------------------------------------------------------------------------------- supervisor to engine


class Request(Message, frozen=True, tag="q"):
    """One exchange; the body follows in a frame of its own. `budget_s` is the time left until its deadline."""

    exchange: int
    route: int
    stream: bool
    budget_s: float


class Cancel(Message, frozen=True, tag="c"):
    """Nobody waits for this exchange any more: drop its rows that are not in a forward yet, end its generation."""

    exchange: int


class Ask(Message, frozen=True, tag="?"):
    """Health is asked now: answer with a heartbeat at once."""


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a stub engine does wrong on purpose (spec 10), so that each rule of dispatch can be seen at work.

    Those marked (start) are looked at while the replica starts; the others act at once when they are set.
    """

    hang: bool = False
    """Forwards do not return until it is cleared; heartbeats go on."""
    slow_ms: float = 0.0
    """Added to each forward and each token, in milliseconds."""
    crash: bool = False
    """The process ends now with SIGSEGV."""
    leave: bool = False
    """The process ends now with code 0, unasked."""
    children: int = 0
    """Starts that many children that ignore SIGTERM and keep its output open."""
    say: str = ""
    """Prints this text, as it is."""
    say_times: int = 1
    """How often it prints it, as fast as it can."""
    crash_on_request: bool = False
    """The process ends at the next request that reaches it."""
    refuse: bool = False
    """Every request is answered with 400."""
    fail: bool = False
    """Every request is answered with 500."""
    garbage: bool = False
    """Sends malformed frames beside each answer."""
    mute: bool = False
    """Sends no heartbeats."""
    hold_gil_ms: float = 0.0
    """Each forward keeps the interpreter to itself that long: no heartbeat can leave."""
    noise: bool = False
    """Answers change from run to run, so that the golden check fails (start)."""
    wrong_card: bool = False
    """Registers with other dimensions and limits than its siblings (start)."""
    wrong_limits: bool = False
    """Registers with other limits than it was given, or than its siblings found, and agrees in all else (start)."""
    exit_while_loading: bool = False
    """The process ends with code 7 before it is ready (start)."""


class SetFaults(Message, frozen=True, tag="f"):
    """New faults of a stub engine; other engines ignore it. Replaces the faults that were set before."""

    faults: Faults


ToEngine = Request | Cancel | Ask | SetFaults


# ---------------------------------------------------------------------------------------------- engine to supervisor


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica says of itself when it registers (spec 1). Lengths and limits are in tokens and rows."""

    artifact: str
    engine: str
    task: str
    device: str
    dtype: str
    threads: int
    max_num_seqs: int
    max_num_batched_tokens: int
    revision: str | None = None
    dimensions: int | None = None
    max_model_len: int | None = None
    weights_digest: str | None = None
    golden: str = "unverified"
    reproducible: str | None = None
    deterministic: bool = False
    """The same request has the same answer: what it answered may be given again (spec 10)."""
    versions: dict[str, str] = {}
    calibrated: list[str] = []
    """The limits among these that the replica found by itself, because the config sets none."""
    kv_cache_bytes: int | None = None
    """Most memory for keys and values of the texts that are being written."""
    encoder: str | None = None
    """What it was told to compute with, where there is a choice (`engine_args.encoder`)."""
    scoring: str | None = None
    """How a reranker comes to its scores, where it is no cross-encoder."""

    @property
    def limits(self) -> dict[str, int]:
        """What it holds a forward and its memory to, by name."""
        limits = {"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens}
        return limits if self.kv_cache_bytes is None else {**limits, "kv_cache_bytes": self.kv_cache_bytes}


class Register(Message, frozen=True, tag="r"):
    """The replica can serve: weights loaded, golden check passed. Its first message with a card."""

    protocol: int
    pid: int
    card: Card


class Progress(Message, frozen=True, tag="p"):
    """Life before `Register`: which phase the start is in."""

    protocol: int
    phase: Phase


class LoadFailed(Message, frozen=True, tag="!"):
    """The replica cannot serve and leaves. `final`: trying the same artifact again cannot help (golden check)."""

    reason: str
    final: bool


class Heartbeat(Message, frozen=True, tag="h"):
    """Each second, and when asked. Counters only grow within an incarnation; times in seconds, sizes in bytes.

    forward_age_s: age of the running forward, 0 when none runs. cancelled_rows: rows that left before they were
    computed, generations that stopped before their end, and (as one) requests that left before they were read.
    """

    in_flight: int
    queued_rows: int
    forward_age_s: float
    forwards: int
    rows: int
    tokens: int
    busy_s: float
    cpu_s: float
    cancelled_rows: int
    rss_bytes: int
    gpu_bytes: int
    threads: int
    nan_outputs: int = 0
    """Answers that had no JSON: the model gave NaN or infinity."""
    cached_rows: int = 0
    """Rows that were not computed because their like was before."""


class Answer(Message, frozen=True, tag="a"):
    """The whole answer of an exchange, as JSON for the caller in the next frame, with its HTTP status."""

    exchange: int
    status: int


class Chunk(Message, frozen=True, tag="k"):
    """The next bytes of a streamed answer, as they are to go to the caller."""

    exchange: int


class End(Message, frozen=True, tag="e"):
    """A streamed answer is complete."""

    exchange: int


class CountTime(msgspec.Struct, frozen=True):
    """How long forwards of a range take at a thread count: the median of so many passes, in seconds."""

    count: int
    samples: int
    seconds: float


class ThreadRange(msgspec.Struct, frozen=True, kw_only=True):
    """What the learning of threads knows of one range of sizes. learned: the best count; gain: time that it saves."""

    label: str
    state: str
    forwards: int = 0
    times: list[CountTime] = []
    learned: int | None = None
    gain: float = 0.0


class ThreadDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A forward whose answer had other bits at another thread count: that count, and the tokens of each row."""

    count: int
    lengths: list[int]

    @property
    def shape(self) -> str:
        """Rows and their lengths in words."""
        low, high = min(self.lengths, default=0), max(self.lengths, default=0)
        lengths = str(high) if low == high else f"{low} to {high}"
        return f"{len(self.lengths)} x {lengths} tokens"


class ThreadTable(msgspec.Struct, frozen=True, kw_only=True):
    """The learning of one replica (spec 9). certified: whether a clean record covers it, None where none is needed.

    explored_s, checked_s: what shadow passes cost so far, of busy_s in all forwards; seconds.
    """

    mode: int
    configured: int
    state: str
    explored_s: float = 0.0
    checked_s: float = 0.0
    busy_s: float = 0.0
    certified: bool | None = None
    drift: ThreadDrift | None = None
    ranges: list[ThreadRange] = []


class ThreadNews(msgspec.Struct, frozen=True, kw_only=True):
    """What the learning came to: `learned`, `adopted`, `relearning` or `retired` (with the drift), for a range."""

    kind: Literal["learned", "adopted", "relearning", "retired"]
    label: str
    count: int
    gain: float = 0.0
    drift: ThreadDrift | None = None


class ThreadReport(Message, frozen=True, tag="t"):
    """The learning of threads, whenever it came to something, and with a heartbeat after it took a sample."""

    table: ThreadTable
    news: list[ThreadNews]


ToSupervisor = Register | Progress | LoadFailed | Heartbeat | Answer | Chunk | End | ThreadReport

WITH_BODY = (Request, Answer, Chunk)
"""Messages that are followed by a body frame; all others stand alone."""


# ------------------------------------------------------------------------------------------------------ launch


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine process must know to become a replica. It comes by standard input, never by argv."""

    endpoint: str
    identity: bytes
    supervisor_pid: int
    replica: str
    incarnation: int
    artifact: str
    device: str
    threads: int
    revision: str | None = None
    engine: str = "transformers"
    task: str = "auto"
    dtype: str = "auto"
    max_model_len: int = 0
    trust_remote_code: bool = False
    options: dict[str, object] = {}
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    result_cache_entries: int = 0
    sharing: int = 1
    """Replicas of its deployment on the same device, itself included: they share the memory that is free there."""
    simulated: bool = False
    reproducible: str | None = None
    """Value of MKL_CBWR in its environment."""
    adaptive: int = 0
    """Learning of threads (spec 9): 0 off, 1 report, 2 serve."""
    cores: list[int] | None = None
    """Logical cores that it pins itself to."""


class ForkRequest(Message, frozen=True, tag="F"):
    """To a template: fork a replica. Two descriptors come along: its output, its lifeline.

    env: how its environment differs from the one that the template was started with; None removes a variable.
    """

    number: int
    spec: LaunchSpec
    env: dict[str, str | None]


class TemplateReady(Message, frozen=True, tag="R"):
    """From a template: the weights are loaded, it can be forked. obstacle: why it cannot be forked after all."""

    protocol: int
    obstacle: str | None
    seconds: float


class Forked(Message, frozen=True, tag="f"):
    """From a template: the replica of that request lives, and is a child of the supervisor by now."""

    number: int
    pid: int


FromTemplate = TemplateReady | Forked

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_supervisor = msgspec.msgpack.Decoder(ToSupervisor)
_launch = msgspec.msgpack.Decoder(LaunchSpec)
_fork_request = msgspec.msgpack.Decoder(ForkRequest)
_from_template = msgspec.msgpack.Decoder(FromTemplate)

encode = _encoder.encode
"""Header or launch specification to bytes."""


def decode_to_engine(header: bytes) -> ToEngine:
    """Read a header that the supervisor sent. Raises ProtocolError."""
    try:
        return _to_engine.decode(header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"not a message for an engine: {error}") from error


def decode_to_supervisor(header: bytes) -> ToSupervisor:
    """Read a header that an engine sent. Raises ProtocolError."""
    try:
        return _to_supervisor.decode(header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(f"not a message of an engine: {error}") from error


def decode_launch(data: bytes) -> LaunchSpec:
    """Read the launch specification from an engine's standard input. Raises ProtocolError."""
    try:
        return _launch.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a launch specification: {error}") from error


def decode_fork_request(data: bytes) -> ForkRequest:
    """Read what a supervisor asks of a template. Raises ProtocolError."""
    try:
        return _fork_request.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a fork request: {error}") from error


def decode_from_template(data: bytes) -> FromTemplate:
    """Read what a template says. Raises ProtocolError."""
    try:
        return _from_template.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message of a template: {error}") from error
