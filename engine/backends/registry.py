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
        case "python":
            from engine.backends.python import PythonBackend

            return PythonBackend(spec)
        case other:
            raise LoadError(f"no engine is called {other!r}; there are: transformers, python, stub", final=True)
