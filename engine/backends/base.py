"""What a backend is: the one interface between the engine's loops and a way to compute.

A backend never sees a socket, a thread or an exchange. It turns a request body into a job of rows, computes rows of
any jobs together in one forward, and turns a job's outputs into the answer's bytes. The device thread calls all of it
but `load` and `adopt`, which a template calls where there is one.

    body --prepare--> Job(rows) --forward(rows of several jobs)--> outputs --Job.answer--> bytes
    body --prepare--> Generation --step(several generations)--> pieces, until each is done
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from engine.calibration import Pass
from engine.errors import StokerError
from engine.messages import Card, Faults, LaunchSpec, Route


class RequestError(StokerError):
    """The caller's request cannot be answered as it stands: an HTTP status below 500 and the field at fault."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class LoadError(StokerError):
    """The replica cannot become ready. `final`: trying the same artifact again cannot help."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """One input of a request. `tokens` is its length, what batching packs by; `data` belongs to the backend.

    key: equal for rows that have the same output, whatever request they came with; None: it must be computed.
    """

    tokens: int
    data: Any
    key: Hashable | None = None


class Job(ABC):
    """A request that one or more forwards answer whole: its rows, in the order of the answer."""

    rows: Sequence[Row]

    @abstractmethod
    def answer(self, outputs: Sequence[Any]) -> bytes:
        """The answer's JSON from one output a row, in the order of `rows`."""


class Generation(ABC):
    """A request that is answered token by token. The device thread steps it until `done`, or until a step sets `error`:
    this one cannot go on, the others can."""

    tokens: int
    done: bool = False
    error: BaseException | None = None

    @abstractmethod
    def take(self) -> bytes | None:
        """The stream's bytes since the last call (server-sent events), None where there is nothing new."""

    @abstractmethod
    def answer(self) -> bytes:
        """The whole answer's JSON once `done`, for a caller that did not ask for a stream."""


class Backend(ABC):
    """A way to compute. One instance lives in one engine process and is used by its device thread alone."""

    max_num_seqs: int
    max_num_batched_tokens: int
    repeatable: bool = False
    """Whether `forward` may run the same rows again with nothing changed, as shadow passes do (spec 9)."""

    @abstractmethod
    def load(self) -> None:
        """Bring the weights into memory. Raises LoadError with a sentence for the user.

        A template runs it once and is forked for each replica: it must start no thread, run no parallel region and
        touch no GPU (spec 5).
        """

    def adopt(self, spec: LaunchSpec) -> None:
        """After a fork: become the replica of this specification, which differs in name, device and threads only."""
        raise NotImplementedError(f"{type(self).__name__} cannot be forked")

    def warm(self) -> None:
        """In the replica's own process, on its device thread: threads, device, a first forward. Raises LoadError."""

    def calibrate(self, passes: Sequence[Pass]) -> None:
        """After the golden check: find the limits that the specification leaves open. `passes`: the check's forwards.

        Raises LoadError.
        """

    @abstractmethod
    def card(self) -> Card:
        """What the replica says of itself; asked after `load`."""

    @abstractmethod
    def prepare(self, route: Route, body: bytes, stream: bool) -> Job | Generation:
        """Validate and tokenise a request. Raises RequestError (400, 404 for a route the task does not have)."""

    @abstractmethod
    def forward(self, rows: Sequence[Row]) -> Sequence[Any]:
        """One forward over rows of any jobs of this backend; one output a row, in order."""

    def step(self, generations: Sequence[Generation]) -> None:
        """One decode step of every generation given. Raises NotImplementedError where the task has none."""
        raise NotImplementedError

    def golden(self) -> Sequence[bytes]:
        """Bodies that the golden check sends through `prepare`, `forward` and `answer` twice (spec 5)."""
        return ()

    def golden_route(self) -> Route:
        """The route that the golden bodies are for."""
        return Route.EMBEDDINGS

    def release(self, generation: Generation) -> None:
        """A generation ended or was cancelled: free what it holds (cache slots)."""

    def gpu_bytes(self) -> int:
        """Device memory in use by this process, in bytes; 0 on a CPU."""
        return 0

    def set_faults(self, faults: Faults) -> None:
        """Faults of a stub; others have none. Called on whichever thread has the socket, also while a forward hangs."""


_json_encoder = msgspec.json.Encoder()


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> bytes:
    """The one error shape of the HTTP side (spec 11): `{"error": {"message", "type", "param", "code"}}`."""
    return _json_encoder.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
