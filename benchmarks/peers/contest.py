"""Starts one contestant, Stoker or a peer, waits until it answers, and leaves no process of it behind."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks.fleet import serving
from benchmarks.peers.environments import BENCH, Peer
from tests.support import processes_of

MARK = "STOKER_BENCH_RUN"
"""In the environment of all processes of a peer, also of those that left its process group (Ray's do)."""
START_LIMIT_S = 120.0
STOP_LIMIT_S = 10.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class NotStarted(Exception):
    """It ended, or did not answer in time; the message holds its last words."""


@dataclasses.dataclass(frozen=True)
class Serving:
    """A server that answers. processes: all that belong to it, now."""

    address: tuple[str, int]
    path: str
    processes: Callable[[], list[psutil.Process]]

    def cpu_s(self) -> float:
        """Processor time of all its processes so far."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextlib.contextmanager
def stoker(config: str, replicas: int) -> Iterator[Serving]:
    """Stoker with a document, its replicas ready."""
    with serving(config, replicas) as running:
        yield Serving(running.address, "/v1/embeddings", lambda: processes_of(running.root))


@contextlib.contextmanager
def peer(one: Peer, task: str, path: str, probe: bytes, environ: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """A peer that has answered the probe with 200. task, path: what it serves, where. Raises NotStarted."""
    mark, port = secrets.token_hex(8), free_port()
    env = {**os.environ, **ONE_THREAD, MARK: mark, "BENCH_TASK": task, "BENCH_PORT": str(port)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", **(environ or {})}
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        # Their files go with them. Sockets lie there, so the path must be short.
        env |= {"TMPDIR": folder}
        process = _launch(one, task, env)
        try:
            _await_answer(process, port, path, probe, _log(one, task))
            yield Serving(("127.0.0.1", port), path, lambda: _marked(mark))
        finally:
            _end(process, mark)


def _log(one: Peer, task: str) -> Path:
    return BENCH / "logs" / f"{one.folder.name}.{task}.log"


def _launch(one: Peer, task: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    log = _log(one, task)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [one.python, str(Path(__file__).parent / one.script)],
            env=env,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(address: tuple[str, int], path: str, body: bytes) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=START_LIMIT_S)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _await_answer(process: subprocess.Popen[bytes], port: int, path: str, probe: bytes, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    said: object = "nothing"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotStarted(f"ended with {process.returncode}: {_last_words(log)}")
        try:
            status, answer = post(("127.0.0.1", port), path, probe)
        except (OSError, http.client.HTTPException) as error:
            said = error
        else:
            if status == http.HTTPStatus.OK:
                return
            said = f"{status} {answer[:200]!r}"
        time.sleep(0.05)
    raise NotStarted(f"no 200 within {START_LIMIT_S:g} s, last {said}; {log}")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """SIGTERM to the one that was started, then SIGKILL to whatever carries the mark still."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    deadline = time.monotonic() + STOP_LIMIT_S
    while (left := _marked(mark)) and time.monotonic() < deadline:
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=1)
    process.wait()
