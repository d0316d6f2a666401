"""A closed-loop HTTP load: N keep-alive connections, each sends its next request when the last one was answered.

Uses `wrk` where it is installed (a load generator in C disturbs a 2-core machine least); else a small asyncio client,
which costs about as much as the server it measures: compare its figures only with themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import http
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

from benchmarks.results import percentile

UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}


class NotAnswered(Exception):
    """A request of a fixed list of work got another answer than 200, or none."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One run. Latencies in milliseconds, of all answers; `refused`: answers that were not 2xx; `broken`: connections
    that broke or never answered; `seconds`: how long it ran."""

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
    return asyncio.run(_asyncio(host, port, path, body, clients, seconds))


def has_wrk() -> bool:
    """Whether wrk does it."""
    return shutil.which("wrk") is not None


def _wrk(host: str, port: int, path: str, body: bytes, clients: int, seconds: float) -> Result:
    script = (
        f'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\nwrk.body = [==[{body.decode()}]==]\n'
    )
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


async def _asyncio(host: str, port: int, path: str, body: bytes, clients: int, seconds: float) -> Result:
    request = as_request(host, path, body)
    latencies: list[float] = []
    refused = broken = 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal refused, broken
        reader, writer = await asyncio.open_connection(host, port)
        try:
            while (started := time.perf_counter()) < end:
                writer.write(request)
                status = (await read_answer(reader))[0]
                latencies.append(time.perf_counter() - started)
                refused += status // 100 != 2
        except (OSError, asyncio.IncompleteReadError):
            broken += 1
        finally:
            writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - began
    p50, p99 = (percentile(latencies, share) * 1e3 for share in (0.5, 0.99))
    return Result(clients, len(latencies) / took, p50, p99, refused, broken, took, "asyncio")


def as_request(host: str, path: str, body: bytes) -> bytes:
    """A POST of JSON on a connection that stays open."""
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of one answer that has a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]) if length else 0)


async def work_through(
    address: tuple[str, int], path: str, bodies: Sequence[bytes], clients: int
) -> tuple[float, list[float]]:
    """Have a list of requests answered by so many clients, each asking for the next one when its last was answered.

    Returns the seconds from the first request to the last answer, and the seconds of each. Raises NotAnswered where
    one is not answered with 200: the work would not be the same for all.
    """
    waiting = iter(bodies)
    latencies: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            for body in waiting:
                started = time.perf_counter()
                writer.write(as_request(address[0], path, body))
                await _expect_ok(reader)
                latencies.append(time.perf_counter() - started)
        finally:
            writer.close()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return time.perf_counter() - began, latencies


async def _expect_ok(reader: asyncio.StreamReader) -> None:
    try:
        status, answer = await read_answer(reader)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise NotAnswered(f"the connection broke: {error}") from None
    if status != http.HTTPStatus.OK:
        raise NotAnswered(f"expected 200, found {status}: {answer[:200]!r}")
