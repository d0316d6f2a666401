"""Stoker alone at its limits: overload, half load, 64 replicas, 8 MB bodies, 1000 open streams.

    make bench-limits [SECONDS=5]        python -m benchmarks.limits [--seconds S] [--only PART …]

Each part starts a supervisor of its own with stub engines and gives a few rows of the table; a goal stands beside its
figure and is not asserted. Figures of one part are from one run, so their ratios hold on a machine whose speed drifts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from benchmarks import load, paced, results
from benchmarks.fleet import serving, unwind_on_sigterm
from benchmarks.load import as_request
from tests.support import Running, stub_config

TITLE = "Limits of Stoker alone (`make bench-limits`)"
PATH = "/v1/embeddings"
BODY = json.dumps({"model": "stub", "input": "x" * 464}).encode()
SLOTS = 32
"""Exchanges in flight that a replica takes (spec 6)."""
MIB = 1024 * 1024
Row = tuple[str, str, str]


# ------------------------------------------------------------------------------------------------- overload


def overload(seconds: float) -> list[Row]:
    """Four times as many clients as places, and four times as many requests a second as two replicas can answer."""
    return [*_too_many_clients(seconds), *_too_many_requests(seconds)]


def _too_many_clients(seconds: float) -> list[Row]:
    """Clients that ask again at once after a 429: each refusal costs the supervisor what a request costs."""
    places = 2 * SLOTS
    with serving(stub_config(replicas=2), replicas=2) as running:
        loads = {n: load.run(*running.address, PATH, BODY, n, seconds) for n in (SLOTS, places, 4 * places)}
    peak, over = max(loads[SLOTS].answered_per_s, loads[places].answered_per_s), loads[4 * places]
    rows = [(f"{n} clients: answered/s", f"{one.answered_per_s:,.0f}", "") for n, one in loads.items()]
    return [
        *rows,
        (f"{4 * places} clients: refused/s (429)", f"{over.refused_per_s:,.0f}", ""),
        (f"{4 * places} clients: broken connections", str(over.broken), "0"),
        (f"{4 * places} clients: answered, of the peak", f"{over.answered_per_s / peak:.2f}", "≥ 0.8"),
    ]


def _too_many_requests(seconds: float) -> list[Row]:
    """An open loop, on engines that take 80 ms a forward of 32: what they can answer is known, and the clients are not
    in the way of the server."""
    config = stub_config(replicas=2, engine_args="latency_ms: 80")
    with serving(config, replicas=2) as running:
        peak = load.run(*running.address, PATH, BODY, 2 * SLOTS, seconds)
        over = paced.run(running.address, PATH, BODY, 4 * peak.answered_per_s, seconds, connections=512)
        counted = outcomes(running)
    refused = over.statuses[429]
    other = over.statuses.total() - refused - over.statuses[200]
    share = over.answered_per_s / peak.answered_per_s
    return [
        ("80 ms engines, peak: answered/s", f"{peak.answered_per_s:,.0f}", ""),
        (f"4 × that offered ({over.sent / seconds:,.0f}/s): answered, of the peak", f"{share:.2f}", "≥ 0.8"),
        ("requests: sent, 200, 429", f"{over.sent:,}, {over.statuses[200]:,}, {refused:,}", ""),
        ("requests without an answer, and with another one", f"{over.lost} and {other}", "0 and 0"),
        ("429 that the supervisor counted", f"{counted.get('overloaded', 0):,}", f"{refused + peak.refused:,}"),
    ]


def outcomes(running: Running) -> dict[str, int]:
    """Exchanges by outcome, as /metrics counts them."""
    found: dict[str, int] = {}
    for line in running.get("/metrics").body.decode().splitlines():
        if line.startswith("stoker_requests_total{"):
            name = line.partition('outcome="')[2].partition('"')[0]
            found[name] = found.get(name, 0) + int(float(line.rpartition(" ")[2]))
    return found


# ------------------------------------------------------------------------------------------------ half load


def half_load(seconds: float) -> list[Row]:
    """Latency where nothing should wait: at half of what a closed loop reaches; and what the machine does by itself."""
    if not load.has_wrk():
        return [("half of the highest load: p99 / p50", "needs wrk: apt install wrk", "≤ 5")]
    with serving(stub_config(replicas=2), replicas=2) as running:
        peak = load.run(*running.address, PATH, BODY, SLOTS, seconds).answered_per_s
        half = load.run_paced(*running.address, PATH, BODY, peak / 2, 2 * SLOTS, seconds)
    alone = fixed_work(seconds)
    p50, p99 = (results.percentile(alone, share) * 1e3 for share in (0.5, 0.99))
    return [
        ("half of the highest load: answered/s", f"{half.answered_per_s:,.0f}", ""),
        ("half of the highest load: p50, p99 in ms", f"{half.p50_ms:.2f}, {half.p99_ms:.2f}", ""),
        ("half of the highest load: p99 / p50", f"{half.p99_ms / half.p50_ms:.1f}", "≤ 5"),
        ("half of the highest load: not 200", str(half.errors), "0"),
        ("a loop of fixed work alone: p50, p99, most in ms", f"{p50:.2f}, {p99:.2f}, {max(alone) * 1e3:.1f}", ""),
    ]


def fixed_work(seconds: float) -> list[float]:
    """Seconds that the same work takes again and again, with nothing else to do: the machine's own unrest."""
    end, taken = time.perf_counter() + seconds, []
    while (began := time.perf_counter()) < end:
        sum(range(20_000))
        taken.append(time.perf_counter() - began)
    return taken


# ------------------------------------------------------------------------------------------------- replicas


def replicas(seconds: float) -> list[Row]:
    """64 replicas beside 2, both running all the time, in turn."""
    rows: list[Row] = []
    counts = (2, 64)
    with contextlib.ExitStack() as stack:
        fleets = {n: stack.enter_context(serving(stub_config(replicas=n), replicas=n)) for n in counts}
        for clients in (SLOTS, 128):
            rates: dict[int, list[float]] = {n: [] for n in counts}
            for count in counts * 3:
                one = load.run(*fleets[count].address, PATH, BODY, clients, seconds / 2)
                rates[count].append(one.answered_per_s)
            for count in counts:
                rows.append((f"{count} replicas, {clients} clients: answered/s", results.spread(rates[count]), ""))
            rows.append((f"64 beside 2, {clients} clients", results.ratio(rates[64], rates[2]), "≥ 0.8"))
        rows.append(("64 replicas: RSS of the supervisor", mib(rss(fleets[64])), ""))
    return rows


# ----------------------------------------------------------------------------------------------------- sizes


def bodies(seconds: float) -> list[Row]:
    """8 MB bodies over four connections: embeddings, whose texts the stub hashes, and completions, which it parses."""
    config = stub_config(replicas=2, engine_args="tokens: 1, token_ms: 0", max_num_batched_tokens=8192)
    text = "x" * 8_000_000
    return [
        *_bodies("embeddings", config, PATH, json.dumps({"model": "stub", "input": text}).encode(), seconds),
        *_bodies(
            "completions", config, "/v1/completions", json.dumps({"model": "stub", "prompt": text}).encode(), seconds
        ),
    ]


def _bodies(what: str, config: str, path: str, body: bytes, seconds: float) -> list[Row]:
    """What passes through, and what the supervisor holds meanwhile."""
    with serving(config, replicas=2) as running:
        before = rss(running)
        supervisor = psutil.Process(running.process.pid)
        used = supervisor.cpu_times()
        with watching(lambda: rss(running)) as seen:
            began = time.perf_counter()
            counts = running.together(lambda _: _send_all_the_time(running.address, path, body, seconds), 4)
            took = time.perf_counter() - began
        after, use = rss(running), supervisor.cpu_times()
    passed = sum(counts) * len(body) / 1e9
    cpu = (use.user + use.system - used.user - used.system) / passed
    return [
        (f"8 MB {what}, 4 connections: GB/s", f"{passed / took:.2f}", "≥ 0.5"),
        (f"8 MB {what}: processor seconds of the supervisor a GB", f"{cpu:.2f}", ""),
        (
            f"8 MB {what}: RSS of the supervisor before, most, after",
            ", ".join(map(mib, (before, max(seen), after))),
            "",
        ),
    ]


def _send_all_the_time(address: tuple[str, int], path: str, body: bytes, seconds: float) -> int:
    request = as_request(address[0], path, body)
    end, count = time.monotonic() + seconds, 0
    with socket.create_connection(address) as connection, connection.makefile("rb") as answers:
        while time.monotonic() < end:
            connection.sendall(request)
            assert answers.readline().startswith(b"HTTP/1.1 200"), "expected 200 for an 8 MB body"
            length = 0
            while (line := answers.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            answers.read(length)
            count += 1
    return count


def streams(seconds: float) -> list[Row]:
    """1000 open streams on 32 replicas, a token each half second."""
    config = stub_config(replicas=32, engine_args="tokens: 100000, token_ms: 500")
    with serving(config, replicas=32) as running:
        before = rss(running)
        first, most, tokens = asyncio.run(_open_streams(running, 1000, seconds))
    return [
        ("1000 streams: opened, each with a first token", f"{first}", "1000"),
        ("1000 streams: tokens/s", f"{tokens / seconds:,.0f}", "2,000"),
        ("1000 streams: RSS of the supervisor before and with them", f"{mib(before)}, {mib(most)}", "< 200 MiB"),
    ]


async def _open_streams(running: Running, count: int, seconds: float) -> tuple[int, int, int]:
    """How many gave a first token, most RSS, and tokens (SSE events) within some seconds."""
    body = json.dumps({"model": "stub", "prompt": "x", "stream": True, "max_tokens": 100000}).encode()
    request = as_request("stoker", "/v1/completions", body)
    opened = [await asyncio.open_connection(*running.address) for _ in range(count)]
    for _, writer in opened:
        writer.write(request)
    firsts = [asyncio.wait_for(reader.readuntil(b"data: "), 60) for reader, _ in opened]
    first = sum(isinstance(one, bytes) for one in await asyncio.gather(*firsts, return_exceptions=True))
    counting = [asyncio.ensure_future(_count_events(reader, time.monotonic() + seconds)) for reader, _ in opened]
    most = rss(running)
    while not all(one.done() for one in counting):
        most = max(most, rss(running))
        await asyncio.sleep(0.05)
    for _, writer in opened:
        writer.close()
    return first, most, sum(one.result() for one in counting)


async def _count_events(reader: asyncio.StreamReader, end: float) -> int:
    count = 0
    with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(end - time.monotonic()):
            while True:
                await reader.readuntil(b"data: ")
                count += 1
    return count


# ------------------------------------------------------------------------------------------------ measuring


def rss(running: Running) -> int:
    """Resident bytes of the supervisor's own process."""
    return int(psutil.Process(running.process.pid).memory_info().rss)


def mib(size: int) -> str:
    """Bytes as text."""
    return f"{size / MIB:,.0f} MiB"


@contextlib.contextmanager
def watching(gauge: Callable[[], int]) -> Iterator[list[int]]:
    """Reads a gauge 50 times a second meanwhile."""
    seen, ended = [gauge()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            seen.append(gauge())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


PARTS: dict[str, Callable[[float], list[Row]]] = {
    "overload": overload,
    "half_load": half_load,
    "replicas": replicas,
    "bodies": bodies,
    "streams": streams,
}


def main() -> None:
    """Run, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    asked = parser.parse_args()
    unwind_on_sigterm()
    rows: list[Row] = []
    for name in asked.only:
        print(f"{name} …", flush=True)
        rows += PARTS[name](asked.seconds)
    by = "wrk" if load.has_wrk() else "stoker bench"
    about = (
        f"Stub engines, {asked.seconds:g} s each; closed loops by {by}, half load by wrk with random pauses, the open "
        "loop by benchmarks/paced.py."
    )
    table = results.markdown(["what", "measured", "goal"], rows)
    results.keep(TITLE, f"{results.machine()}\n\n{about}\n\n{table}")


if __name__ == "__main__":
    main()
