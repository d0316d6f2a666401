"""A closed-loop HTTP load: N keep-alive connections, each sends its next request when the last one was answered.

Uses `wrk` where it is installed (a load generator in C disturbs a 2-core machine least); else a small asyncio client,
which costs about as much as the server it measures: compare its figures only with themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shutil
import subprocess
import tempfile
import time

UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}


@dataclasses.dataclass(frozen=True)
class Result:
    """One run. Latencies in milliseconds; `errors`: answers that were not 2xx, and broken connections."""

    clients: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int
    by: str


def run(host: str, port: int, path: str, body: bytes, clients: int, seconds: float) -> Result:
    """Load a server for some seconds."""
    if shutil.which("wrk"):
        return _wrk(host, port, path, body, clients, seconds)
    return asyncio.run(_asyncio(host, port, path, body, clients, seconds))


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
            f"-d{seconds:g}s",
            "--latency",
            "-s",
            lua.name,
            f"http://{host}:{port}{path}",
        ]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    errors = sum(int(number) for number in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    errors += sum(int(n) for line in re.findall(r"Socket errors: (.*)", text) for n in re.findall(r"\d+", line))
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])  # type: ignore[index]
    return Result(clients, rate, _latency(text, "50%"), _latency(text, "99%"), errors, "wrk")


def _latency(text: str, share: str) -> float:
    found = re.search(rf"{share}\s+([\d.]+)(us|ms|s|m)\b", text)
    assert found, text
    return float(found[1]) * UNITS[found[2]]


async def _asyncio(host: str, port: int, path: str, body: bytes, clients: int, seconds: float) -> Result:
    request = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    latencies: list[float] = []
    errors = 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection(host, port)
        while (started := time.perf_counter()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            latencies.append(time.perf_counter() - started)
            errors += not head.startswith(b"HTTP/1.1 2")
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - began
    latencies.sort()
    return Result(
        clients,
        len(latencies) / took,
        latencies[len(latencies) // 2] * 1e3,
        latencies[int(len(latencies) * 0.99)] * 1e3,
        errors,
        "asyncio",
    )
