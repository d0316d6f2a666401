"""How an engine process comes into being: a fresh interpreter, or a fork of a template that has the weights (spec 5).

One interface for both: `start` promises a process, and the observer is told when there is one, or why there is none. A
plain spawn tells within the call, a fork when the template has loaded and forked.
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

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_PRIVATE = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "STOKER_SIMULATE_DEVICES"})
"""Variables that are the supervisor's own and would only confuse an engine."""


class Starting(Observer, Protocol):
    """Who waits for a process."""

    def on_started(self, child: Child, kind: str) -> None:
        """It lives. Everything else is told through `Observer`."""

    def on_waiting(self, why: str) -> None:
        """It takes a while, because of that."""

    def on_start_failed(self, reason: str, exit_code: int | None) -> None:
        """There will be none. exit_code: of the template that could not load, if it was that."""


class Promise(Protocol):
    """A process that is on its way."""

    def cancel(self) -> bool:
        """Take it back; False where it is too late, and `on_started` comes all the same."""


class Launcher(Protocol):
    """A way to start engine processes."""

    def start(self, spec: LaunchSpec, env: Mapping[str, str], observer: Starting) -> Promise:
        """Start one. Raises OSError or StokerError where that cannot even be tried."""


class Kept:
    """A promise that was kept within the call."""

    def cancel(self) -> bool:
        """Too late."""
        return False


class SpawnLauncher:
    """A fresh interpreter for each replica: imports and loads everything itself."""

    def start(self, spec: LaunchSpec, env: Mapping[str, str], observer: Starting) -> Promise:
        launch = framed_launch(spec)
        reader, lifeline = os.pipe()
        try:
            os.write(lifeline, launch)  # the pipe is empty and takes it whole
            child = spawn([sys.executable, "-P", "-m", "engine.process"], reader, lifeline, env, observer)
        finally:
            os.close(reader)
        observer.on_started(child, "spawn")
        return Kept()


def encode_launch(spec: LaunchSpec) -> bytes:
    """A launch specification as bytes. Raises StokerError where it is too large for a pipe."""
    data = encode(spec)
    if len(data) > MOST_LAUNCH_BYTES:
        raise StokerError(f"engine arguments of {len(data)} bytes; {MOST_LAUNCH_BYTES} are the most")
    return data


def framed_launch(spec: LaunchSpec) -> bytes:
    """The same as it comes on standard input: four bytes of length before it. Raises StokerError."""
    data = encode_launch(spec)
    return len(data).to_bytes(4, "big") + data


def engine_environment(threads: int, visibility: Mapping[str, str], reproducible: str | None) -> dict[str, str]:
    """The environment of an engine: the supervisor's own, with threads, devices and reproducibility decided.

    threads: intra-op threads for OpenMP and MKL. reproducible: value of MKL_CBWR, None to leave it.

    OpenMP's threads sleep while they wait, unless the user says otherwise: by default they spin, and where a neighbour
    takes a core, two spinning threads take it from the one that they wait for. Measured with MiniLM at 2 threads on 2
    cores with busy neighbours, a text of 20 tokens: median 82 ms spinning, 24 ms sleeping.
    """
    env = {name: value for name, value in os.environ.items() if name not in _PRIVATE}
    for name in THREAD_VARIABLES:
        env[name] = str(threads)
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    env["PYTHONUNBUFFERED"] = "1"
    env["TOKENIZERS_PARALLELISM"] = "false"
    env.update(visibility)
    if reproducible is not None:
        env["MKL_CBWR"] = reproducible
    return env


def template_environment(env: Mapping[str, str]) -> dict[str, str]:
    """A replica's environment for the template that it is forked from, which must start no thread (spec 5).

    The replica itself sets its number of threads after the fork, through torch.
    """
    return {**env, **dict.fromkeys(THREAD_VARIABLES, "1")}


def identity_of(fields: Mapping[str, object]) -> str:
    """A text that is equal for replicas that are interchangeable, from what makes them so."""
    return msgspec.json.encode(dict(sorted(fields.items())), order="deterministic").decode()
