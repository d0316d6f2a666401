"""How an engine process comes into being: one interface, so that a plain spawn and a fork from a template look the same.

The environment is part of it: OpenMP, MKL and the device visibility must be decided before the first library loads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Protocol

import msgspec

from engine.errors import StokerError
from engine.messages import LaunchSpec, encode
from supervisor.host.processes import Child, Observer, spawn

MOST_LAUNCH_BYTES = 60_000
"""A pipe takes 64 KiB without a reader; a specification beyond that would make the supervisor wait."""

_PRIVATE = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "STOKER_SIMULATE_DEVICES"})
"""Variables that are the supervisor's own and would only confuse an engine."""


class Launcher(Protocol):
    """A way to start an engine process."""

    kind: str

    def start(self, spec: LaunchSpec, env: Mapping[str, str], observer: Observer) -> Child:
        """Start it. Raises OSError or StokerError where it cannot be started."""


class SpawnLauncher:
    """A fresh interpreter for each replica: imports and loads everything itself."""

    kind = "spawn"

    def start(self, spec: LaunchSpec, env: Mapping[str, str], observer: Observer) -> Child:
        data = encode(spec)
        if len(data) > MOST_LAUNCH_BYTES:
            raise StokerError(f"engine arguments of {len(data)} bytes; {MOST_LAUNCH_BYTES} are the most")
        command = [sys.executable, "-P", "-m", "engine.process"]
        return spawn(command, len(data).to_bytes(4, "big") + data, env, observer)


def engine_environment(threads: int, visibility: Mapping[str, str], reproducible: str | None) -> dict[str, str]:
    """The environment of an engine: the supervisor's own, with threads, devices and reproducibility decided.

    threads: intra-op threads for OpenMP and MKL. reproducible: value of MKL_CBWR, None to leave it.
    """
    env = {name: value for name, value in os.environ.items() if name not in _PRIVATE}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env[name] = str(threads)
    env["PYTHONUNBUFFERED"] = "1"
    env["TOKENIZERS_PARALLELISM"] = "false"
    env.update(visibility)
    if reproducible is not None:
        env["MKL_CBWR"] = reproducible
    return env


def identity_of(fields: Mapping[str, object]) -> str:
    """A text that is equal for replicas that are interchangeable, from what makes them so."""
    return msgspec.json.encode(dict(sorted(fields.items())), order="deterministic").decode()
