"""A closed-loop HTTP load: N keep-alive connections, each sends its next request when the last one was answered.

Uses `wrk` where it is installed (a load generator in C disturbs a 2-core machine least); else that of `stoker bench`,
which takes a good part of what the server takes: compare its figures only with themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence

import uvloop

from ui.bench.bodies import Shape
from ui.bench.connection import Server
from ui.bench.load import load_of
from ui.bench.measured import Measured, Summary
from ui.bench.plan import Plan

PATIENCE_S = 120.0
"""Longest wait for one answer."""
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}


class NotAnswered(Exception):
    """A request of a fixed list of work got another answer than 2xx, or none."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One run. Latencies in milliseconds, where wrk measured those of refusals, too; `refused`: answers that were not
    2xx; `broken`: connections that broke or never answered; `seconds`: how long it ran."""

    clients: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    refused: int
    broken: int
    seconds: float
    by: str

    @property
    def errors(self) -> int:
        """Whatever was not a 2xx."""
        return self.refused + self.broken

    @property
    def refused_per_s(self) -> float:
        """Answers that were not 2xx."""
        return self.refused / self.seconds

    @property
    def answered_per_s(self) -> float:
        """Answers that were 2xx."""
        return self.requests_per_s - self.refused_per_s


def run(host: str, port: int, path: str, body: bytes, clients: int, seconds: float) -> Result:
    """Load a server for some seconds."""
    if has_wrk():
        return _wrk(host, port, path, body, clients, seconds)
    return _ours(host, port, path, body, clients, seconds)


def run_paced(host: str, port: int, path: str, body: bytes, rate: float, clients: int, seconds: float) -> Result:
    """About `rate` requests a second from clients that pause for random times. Needs wrk."""
    return _wrk(host, port, path, body, clients, seconds, pause_ms=clients / rate * 1e3)


def has_wrk() -> bool:
    """Whether wrk does it."""
    return shutil.which("wrk") is not None


def _wrk(host: str, port: int, path: str, body: bytes, clients: int, seconds: float, pause_ms: float = 0.0) -> Result:
    script = (
        f'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\nwrk.body = [==[{body.decode()}]==]\n'
    )
    if pause_ms:
        script += f"function delay() return math.random(0, {round(2 * pause_ms)}) end\n"
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(script)
        lua.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{clients}",
            f"-d{math.ceil(seconds)}s",  # it takes whole seconds only
            "--latency",
            "-s",
            lua.name,
            f"http://{host}:{port}{path}",
        ]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    refused = sum(int(number) for number in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    broken = sum(int(n) for line in re.findall(r"Socket errors: (.*)", text) for n in re.findall(r"\d+", line))
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m),", text)
    assert total, text
    took = float(total[2]) * UNITS[total[3]] / 1e3
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])  # type: ignore[index]
    return Result(clients, rate, _latency(text, "50%"), _latency(text, "99%"), refused, broken, took, "wrk")


def _latency(text: str, share: str) -> float:
    found = re.search(rf"{share}\s+([\d.]+)(us|ms|s|m)\b", text)
    assert found, text
    return float(found[1]) * UNITS[found[2]]


def _ours(host: str, port: int, path: str, body: bytes, clients: int, seconds: float) -> Result:
    plan = Plan(Shape(), clients=clients, seconds=seconds, timeout_s=PATIENCE_S)
    found, _ = _measure(plan, (host, port), path, itertools.repeat(body))
    broken = sum(count for kind, count in found.failures.items() if not kind.isdigit())
    refused = sum(found.failures.values()) - broken
    spread = found.latency_ms
    p50, p99 = (spread.p50, spread.p99) if spread is not None else (math.inf, math.inf)
    rate = (found.answered + refused) / found.seconds
    return Result(clients, rate, p50, p99, refused, broken, found.seconds, "stoker bench")


def _measure(plan: Plan, address: tuple[str, int], path: str, bodies: Iterable[bytes]) -> tuple[Summary, Measured]:
    """What a load with these bodies came to, and each latency behind it."""
    server = Server.at("http://{}:{}".format(*address))

    async def send() -> tuple[Summary, Measured]:
        load = load_of(plan, server, server.request("POST", path, None), _Given(bodies))
        return await load.run(), load.measured

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(send())


class _Given:
    """Bodies that there are already, in their order."""

    def __init__(self, bodies: Iterable[bytes]) -> None:
        self._left = iter(bodies)

    def make(self) -> bytes:
        """The next one."""
        return next(self._left)


def as_request(host: str, path: str, body: bytes) -> bytes:
    """A POST of JSON on a connection that stays open."""
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def work_through(
    address: tuple[str, int], path: str, bodies: Sequence[bytes], clients: int
) -> tuple[float, Sequence[float]]:
    """Have a list of requests answered by so many clients, each asking for the next one when its last was answered.

    Returns the seconds from the first request to the last answer, and the seconds of each. Raises NotAnswered where
    one is not answered with 2xx: the work would not be the same for all.
    """
    plan = Plan(Shape(), clients=clients, seconds=None, requests=len(bodies), timeout_s=PATIENCE_S)
    found, measured = _measure(plan, address, path, bodies)
    if found.failures:
        failed = ", ".join(f"{kind}: {count}" for kind, count in found.failures.items())
        raise NotAnswered(f"expected {len(bodies)} answers, found {found.answered}; {failed}")
    return found.seconds, measured.latencies
