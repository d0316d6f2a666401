"""Native clients: what HTTP offers, over ZeroMQ. Importing this brings the client's side alone."""

from engine.messages import Route
from supervisor.native.client import Answer, Client
from supervisor.native.errors import (
    BadRequest,
    EngineFailed,
    ModelNotFound,
    NoAnswer,
    NotRunning,
    Overloaded,
    ProtocolError,
    ReplicaLost,
    RequestFailed,
    StokerError,
    Stopping,
    Timeout,
    TooLarge,
    Unavailable,
)
from supervisor.native.streams import ByteStream, EventStream

__all__ = [
    "Answer",
    "BadRequest",
    "ByteStream",
    "Client",
    "EngineFailed",
    "EventStream",
    "ModelNotFound",
    "NoAnswer",
    "NotRunning",
    "Overloaded",
    "ProtocolError",
    "ReplicaLost",
    "RequestFailed",
    "Route",
    "StokerError",
    "Stopping",
    "Timeout",
    "TooLarge",
    "Unavailable",
]
