"""The one place where an error becomes an HTTP answer (spec 11): `{"error": {"message", "type", "param", "code"}}`.

The types and codes are those that OpenAI's clients turn into their exception classes.
"""

from __future__ import annotations

import dataclasses

import msgspec

from engine.errors import StokerError
from supervisor.exchanges import Failure

_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A sort of error on the HTTP side."""

    status: int
    type: str
    code: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def header_lines(self) -> bytes:
        """Its headers as they are sent."""
        return b"".join(b"%b: %b\r\n" % header for header in self.headers)


BAD_REQUEST = Kind(400, "invalid_request_error", "invalid_request")
UNAUTHORIZED = Kind(401, "authentication_error", "invalid_api_key", ((b"www-authenticate", b"Bearer"),))
FORBIDDEN = Kind(403, "permission_error", "forbidden")
NOT_FOUND = Kind(404, "invalid_request_error", "not_found")
MODEL_NOT_FOUND = Kind(404, "invalid_request_error", "model_not_found")
METHOD_NOT_ALLOWED = Kind(405, "invalid_request_error", "method_not_allowed")
REQUEST_TIMEOUT = Kind(408, "invalid_request_error", "request_timeout")
TOO_LARGE = Kind(413, "invalid_request_error", "request_too_large")
HEAD_TOO_LARGE = Kind(431, "invalid_request_error", "head_too_large")
INTERNAL = Kind(500, "server_error", "internal_error")

OF_FAILURE = {
    Failure.OVERLOADED: Kind(429, "rate_limit_error", "overloaded", ((b"retry-after", b"1"),)),
    Failure.UNAVAILABLE: Kind(503, "server_error", "unavailable", ((b"retry-after", b"1"),)),
    Failure.STOPPING: Kind(503, "server_error", "stopping"),
    Failure.REPLICA_LOST: Kind(502, "server_error", "replica_lost"),
    Failure.TIMEOUT: Kind(504, "server_error", "timeout"),
}


class HttpError(StokerError):
    """A request that the gateway answers itself, without a replica."""

    def __init__(self, kind: Kind, message: str, param: str | None = None, replica: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.param = param
        self.replica = replica


def body(kind: Kind, message: str, param: str | None = None) -> bytes:
    """The JSON of an error."""
    return _encode({"error": {"message": message, "type": kind.type, "param": param, "code": kind.code}})
