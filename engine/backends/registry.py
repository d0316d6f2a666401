"""Which backend an engine name stands for. Each is imported only when it is asked for: torch costs seconds."""

from __future__ import annotations

from engine.backends.base import Backend, LoadError
from engine.messages import LaunchSpec


def build(spec: LaunchSpec) -> Backend:
    """The backend of a launch specification. Raises LoadError for an engine that is not here."""
    match spec.engine:
        case "stub":
            from engine.backends.stub import StubBackend

            return StubBackend(spec)
        case "transformers":
            from engine.backends.transformers import TransformersBackend

            return TransformersBackend(spec)
        case other:
            raise LoadError(f"engine {other!r} is not built yet; there are: transformers, stub", final=True)
