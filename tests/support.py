"""Real supervisors for tests: started as a user would, spoken to over their own sockets, and proven to leave nothing.

Waiting is always for an event of the supervisor's own stream, or for a row of its status, never for a time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from engine.messages import Faults
from supervisor.control.client import ControlClient, NotRunning
from supervisor.control.events import AnyEvent, ReplicaReady
from supervisor.control.messages import (
    Accepted,
    AnyCommand,
    EventNotice,
    GetEvents,
    GetStatus,
    Inventory,
    ReplicaStatus,
    SetReplicaFaults,
    Status,
    Subscribe,
    Subscribed,
)
from supervisor.control.messages import Events as EventsAnswer
from supervisor.host.runtime import RuntimeDir

LONG_S = 60.0
"""A bound that only a hang reaches."""

RUNTIME_VARIABLE = "STOKER_RUNTIME_DIR"

NOISE = b"\x93" + random.Random(11).randbytes(4095)
"""Bytes that are no protocol, the same in each run: some others happen to begin like the oldest ZMTP, and libzmq waits
for more of them without a word."""


def stub_config(replicas: int = 2, engine_args: str = "", **keys: object) -> str:
    """A document with one deployment `stub`. `engine_args`: further YAML flow entries; keys: of the deployment."""
    lines = [f"        {key}: {json.dumps(value)}" for key, value in keys.items()]
    rows = ", ".join(["{device: cpu}"] * replicas)
    extra = "\n".join(lines)
    return f"""
global:
  model_catalog:
    deployments:
      stub:
        provider: model_runtime
        artifact: stub
        replicas: [{rows}]
        engine_args: {{engine: stub{", " + engine_args if engine_args else ""}}}
{extra}
    system: {{decision_model: {{deployment: stub}}}}
stoker:
  listen: 127.0.0.1:0
"""


class Answer:
    """An HTTP answer, read whole."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def replica(self) -> str:
        """Who answered."""
        return self.headers["x-stoker-replica"]


class Running:
    """A supervisor process and the means to speak to it."""

    def __init__(self, folder: Path, config: str, name: str = "test", environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.name = name
        self.config = folder / "stoker.yaml"
        self.config.write_text(config)
        self.root = folder / "run"
        self.environ = {**os.environ, RUNTIME_VARIABLE: str(self.root), "XDG_STATE_HOME": str(folder / "state")}
        self.environ.update(environ or {})
        self.runtime = RuntimeDir(name, self.root)
        self.stderr = folder / f"{name}.stderr"
        self.process = self.launch()

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process (again)."""
        serve = ["serve", "--headless", "-c", str(self.config), "--name", self.name]
        command = [sys.executable, "-m", "ui.cli.main", *serve]
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
        return self.process

    # ------------------------------------------------------------------------------------------- control

    @contextlib.contextmanager
    def client(self) -> Iterator[ControlClient]:
        """A client of its control socket, once it listens."""
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                client = ControlClient(str(self.runtime.control))
                break
            except NotRunning:
                assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log()}"
                assert time.monotonic() < deadline, "it does not listen"
                time.sleep(0.01)
        with client:
            yield client

    def ask(self, command: AnyCommand) -> Any:
        """The answer to one command."""
        with self.client() as client:
            return client.ask(command)

    def accepted(self, command: AnyCommand) -> Accepted:
        """The answer to a command that changes something."""
        answer = self.ask(command)
        assert isinstance(answer, Accepted)
        return answer

    def inventory(self) -> Inventory:
        """Its status now."""
        answer = self.ask(GetStatus())
        assert isinstance(answer, Status)
        return answer.inventory

    def replica(self, name: str) -> ReplicaStatus:
        """One row of its status."""
        return next(row for row in self.replicas() if row.name == name)

    def replicas(self) -> list[ReplicaStatus]:
        """All rows of its status."""
        return [row for deployment in self.inventory().deployments for row in deployment.replicas]

    def faults(self, replica: str, **faults: Any) -> None:
        """Set a stub's faults, and wait until they have reached it (its next heartbeat answers the same queue)."""
        self.accepted(SetReplicaFaults(replica=replica, faults=Faults(**faults)))

    def events(self, kind: type[AnyEvent] | None = None) -> list[Any]:
        """What happened so far."""
        answer = self.ask(GetEvents())
        assert isinstance(answer, EventsAnswer)
        return [event for event in answer.events if kind is None or isinstance(event, kind)]

    def wait_event(
        self, kind: type[Any], matches: Callable[[Any], bool] = lambda _: True, since: int = 0, limit_s: float = LONG_S
    ) -> Any:
        """The first event of a kind after `since` that matches."""
        deadline = time.monotonic() + limit_s
        with self.client() as client:
            answer = client.ask(Subscribe(since=since))
            assert isinstance(answer, Subscribed)
            for event in answer.events:
                if isinstance(event, kind) and matches(event):
                    return event
            for notice in client.notices(timeout_s=0.2):
                if isinstance(notice, EventNotice) and isinstance(notice.event, kind) and matches(notice.event):
                    return notice.event
                assert time.monotonic() < deadline, f"no {kind.__name__} within {limit_s} s:\n{self.log()}"
        raise AssertionError("the stream ended")

    def wait_ready(self, count: int, limit_s: float = LONG_S) -> None:
        """Until that many replicas have become ready since the start."""
        seen: set[str] = set()
        self.wait_event(ReplicaReady, lambda event: seen.add(event.replica) or len(seen) >= count, limit_s=limit_s)

    def wait_status(self, holds: Callable[[Inventory], bool], limit_s: float = LONG_S) -> Inventory:
        """Until its status says so; for what no event tells."""
        deadline = time.monotonic() + limit_s
        while not holds(inventory := self.inventory()):
            assert time.monotonic() < deadline, f"the status never came to it: {inventory}\n{self.log()}"
            time.sleep(0.02)
        return inventory

    def log(self) -> str:
        """What it printed."""
        return self.stderr.read_text(errors="replace")[-6000:]

    # ------------------------------------------------------------------------------------------- HTTP

    @property
    def address(self) -> tuple[str, int]:
        """Where its HTTP side listens."""
        if not hasattr(self, "_address"):
            host, _, port = self.inventory().supervisor.listen.rpartition(":")
            self._address = (host, int(port))
        return self._address

    @property
    def url(self) -> str:
        """Base of its HTTP side."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def connect(self, timeout_s: float = LONG_S) -> http.client.HTTPConnection:
        """A connection to its HTTP side."""
        return http.client.HTTPConnection(*self.address, timeout=timeout_s)

    def get(self, path: str) -> Answer:
        """GET a page."""
        return self.request("GET", path, b"")

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """POST JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, data, {"content-type": "application/json", **(headers or {})})

    def post_until_taken(self, path: str, body: Any) -> Answer:
        """The same by a client that heeds 503: after an error of its engine a replica backs off for 0.1 s (spec 6)."""
        deadline = time.monotonic() + LONG_S
        while (answer := self.post(path, body)).status == 503 and time.monotonic() < deadline:
            time.sleep(0.02)
        return answer

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own."""
        connection = self.connect()
        try:
            connection.request(method, path, body, dict(headers or {}))
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def embed(self, text: Any = "hello", timeout_ms: int | None = None, **more: Any) -> Answer:
        """One embeddings request to `stub`."""
        headers = {} if timeout_ms is None else {"X-Request-Timeout-Ms": str(timeout_ms)}
        return self.post("/v1/embeddings", {"model": "stub", "input": text, **more}, headers)

    def together(self, call: Callable[[int], Any], count: int) -> list[Any]:
        """Run `call` that many times at once."""
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(call, range(count)))

    # ------------------------------------------------------------------------------------------- the end

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> int:
        """SIGTERM and its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LONG_S)

    def kill(self) -> None:
        """SIGKILL to the supervisor alone."""
        self.process.kill()
        self.process.wait(LONG_S)

    def descendants(self) -> list[psutil.Process]:
        """Processes that were started for this supervisor and still run."""
        return processes_of(self.root)

    def close(self) -> None:
        """Stop it and check that nothing is left: no process, no file in the runtime folder."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                for process in self.descendants():
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(signal.SIGCONT)
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(LONG_S)
                except subprocess.TimeoutExpired:
                    self.kill()
                    raise AssertionError(f"it did not stop:\n{self.log()}") from None
        left = wait_for_none(self.root)
        kill_all(left)
        assert not left, f"left running: {left}"


def processes_of(root: Path) -> list[psutil.Process]:
    """Every process that was started with this runtime folder in its environment, zombies left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(RUNTIME_VARIABLE) == str(root):
                found.append(process)
    return found


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL to each that has not ended since the list was made."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def wait_for_none(root: Path, limit_s: float = 2.0) -> list[psutil.Process]:
    """What is still there after the time in which a supervisor's children must be gone (spec 2)."""
    deadline = time.monotonic() + limit_s
    while (left := processes_of(root)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def files_in(root: Path) -> list[Path]:
    """Everything below a runtime folder."""
    return sorted(path for path in root.rglob("*") if not path.is_dir())
