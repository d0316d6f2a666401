"""What a native request ends with instead of an answer: one class a kind of failure, as over HTTP (spec 11).

The wire carries status and code; `error_of` is the one place that turns them into a class. That no supervisor
is there, or that it does not answer, is told by the classes of the control client.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import ProtocolError, StokerError
from supervisor.control.client import NoAnswer, NotRunning

__all__ = [
    "BadRequest",
    "EngineFailed",
    "ModelNotFound",
    "NoAnswer",
    "NotRunning",
    "Overloaded",
    "ProtocolError",
    "ReplicaLost",
    "RequestFailed",
    "StokerError",
    "Stopping",
    "Timeout",
    "TooLarge",
    "Unavailable",
]


class RequestFailed(StokerError):
    """Root of all that a request can end with where a supervisor is there.

    status and code as over HTTP; param: the field at fault; replica: who answered so; retry_after_s: when to
    try again.
    """

    status = 500
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        replica: str | None = None,
        request_id: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = self.status if status is None else status
        self.code = self.code if code is None else code
        self.param = param
        self.replica = replica
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class BadRequest(RequestFailed):
    """The request cannot be answered as it stands; `param` names the field at fault."""

    status, code = 400, "invalid_request"


class ModelNotFound(RequestFailed):
    """No deployment answers that model."""

    status, code = 404, "model_not_found"


class TooLarge(RequestFailed):
    """The body is longer than 64 MiB."""

    status, code = 413, "request_too_large"


class Overloaded(RequestFailed):
    """All replicas are full, or too many answers wait to be read by this client."""

    status, code = 429, "overloaded"


class EngineFailed(RequestFailed):
    """The engine, or the model's own code, went wrong on this request."""

    status, code = 500, "engine_error"


class ReplicaLost(RequestFailed):
    """The replica died with the request, and no other one took it."""

    status, code = 502, "replica_lost"


class Unavailable(RequestFailed):
    """No replica is ready."""

    status, code = 503, "unavailable"


class Stopping(Unavailable):
    """The supervisor drains and leaves."""

    status, code = 503, "stopping"


class Timeout(RequestFailed):
    """No answer within the limit of the caller or of the deployment; the engine was told to cancel."""

    status, code = 504, "timeout"


KINDS: tuple[type[RequestFailed], ...] = (
    BadRequest,
    ModelNotFound,
    TooLarge,
    Overloaded,
    EngineFailed,
    ReplicaLost,
    Unavailable,
    Stopping,
    Timeout,
)
_BY_CODE = {kind.code: kind for kind in KINDS}
_BY_STATUS = {kind.status: kind for kind in reversed(KINDS)}


class _Described(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | int | None = None
    param: str | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Described


_decode = msgspec.json.Decoder(_ErrorBody).decode


def error_of(message: str, status: int, code: str, **facts: Any) -> RequestFailed:
    """The exception for a status and a code; facts: the other attributes of RequestFailed."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or (BadRequest if 400 <= status < 500 else EngineFailed)
    return kind(message, status=status, code=code, **facts)


def error_in(body: bytes, status: int, **facts: Any) -> RequestFailed:
    """The exception for an error that a replica described itself: as OpenAI's do, or in any words."""
    try:
        error = _decode(body).error
    except msgspec.MsgspecError:
        return error_of(body[:500].decode(errors="replace"), status, "", **facts)
    return error_of(error.message, status, str(error.code or ""), param=error.param, **facts)
