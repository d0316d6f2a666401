"""No-op requests over HTTP: Stoker beside Mosec, LitServe and Ray Serve, each with two workers, in one run.

    make bench-peers [ROUNDS=3] [SECONDS=5]        python -m benchmarks.http_peers [--rounds N] [--seconds S] [--only …]

All get the same 500 bytes of JSON from the same load generator. In each round each server is started, measured at
every number of clients, and ended, so that no other is in its way; the order turns from round to round. Bare uvicorn
without any worker is there as a ceiling for a front in Python. What cannot be installed or started is named.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import statistics
from collections.abc import Mapping
from importlib.metadata import version

from benchmarks import load, results
from benchmarks.fleet import unwind_on_sigterm
from benchmarks.peers import contest
from benchmarks.peers.contest import NotStarted, Serving
from benchmarks.peers.environments import LITSERVE, MOSEC, RAY, UVICORN, NotInstalled, Peer, ensure
from tests.support import stub_config

TITLE = "No-op requests over HTTP, beside the peers (`make bench-peers`)"
CLIENTS = (1, 32, 128)
WARM_S = 1.0
STOKER = "Stoker"
YARDSTICK = MOSEC.name
BODY = json.dumps({"model": "stub", "input": "x" * 464}).encode()
PEERS = {peer.name: peer for peer in (MOSEC, LITSERVE, RAY, UVICORN)}
PATHS = {MOSEC.name: "/inference", LITSERVE.name: "/predict", RAY.name: "/", UVICORN.name: "/"}

Runs = dict[tuple[str, int], list["Run"]]


class Run:
    """One server at one number of clients in one round; `cpu_us`: processor time of the server a request."""

    def __init__(self, result: load.Result, cpu_s: float) -> None:
        self.result = result
        self.cpu_us = cpu_s * 1e6 / max(1.0, result.requests_per_s * result.seconds)


def ensure_installed(name: str) -> None:
    """Nothing to do for Stoker. Raises NotInstalled."""
    if name != STOKER:
        ensure(PEERS[name])


def start(name: str) -> contextlib.AbstractContextManager[Serving]:
    """A contestant by its name, two workers."""
    if name == STOKER:
        return contest.stoker(stub_config(replicas=2), replicas=2)
    return contest.peer(PEERS[name], "noop", PATHS[name], BODY)


def measure(server: Serving, seconds: float) -> dict[int, Run]:
    """Every number of clients, after a while to warm up."""
    load.run(*server.address, server.path, BODY, max(CLIENTS), WARM_S)
    found = {}
    for clients in CLIENTS:
        before = server.cpu_s()
        result = load.run(*server.address, server.path, BODY, clients, seconds)
        found[clients] = Run(result, server.cpu_s() - before)
    return found


def contend(names: list[str], rounds: int, seconds: float) -> tuple[Runs, dict[str, str]]:
    """All rounds of all servers; and why some are missing."""
    runs: Runs = collections.defaultdict(list)
    missing: dict[str, str] = {}
    for name in names:
        try:
            ensure_installed(name)
        except NotInstalled as error:
            missing[name] = f"not installed: {error}"
    for number in range(rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            if name in missing:
                continue
            try:
                with start(name) as server:
                    for clients, run in measure(server, seconds).items():
                        runs[name, clients].append(run)
                        rate = run.result.answered_per_s
                        print(f"round {number + 1}: {name}, {clients} clients: {rate:,.0f}/s", flush=True)
            except NotStarted as error:
                missing[name] = f"not started: {error}"
    return runs, missing


def table(names: list[str], runs: Runs, missing: Mapping[str, str]) -> str:
    """A row a server and number of clients."""
    by = YARDSTICK if runs.get((YARDSTICK, CLIENTS[0])) else STOKER
    columns = ["server", "clients", "answered/s", f"× {by}", "refused/s", "p50 ms", f"p50 × {by}", "p99 ms", "CPU µs"]
    rows = []
    for clients in CLIENTS:
        for name in names:
            if done := runs.get((name, clients)):
                rows.append(_row(name, clients, done, runs.get((by, clients), [])))
            else:
                rows.append([name, str(clients), "–", *[""] * (len(columns) - 3)])
    said = [f"- {name}: {why}" for name, why in missing.items()]
    return "\n".join([results.markdown(columns, rows), "", *said])


def _row(name: str, clients: int, done: list[Run], yardstick: list[Run]) -> list[str]:
    answered, p50 = [run.result.answered_per_s for run in done], [run.result.p50_ms for run in done]
    return [
        name,
        str(clients),
        results.spread(answered),
        results.ratio(answered, [run.result.answered_per_s for run in yardstick]),
        f"{statistics.median(run.result.refused_per_s for run in done):,.0f}",
        results.spread(p50, 2),
        results.ratio(p50, [run.result.p50_ms for run in yardstick]),
        results.spread([run.result.p99_ms for run in done], 2),
        f"{statistics.median(run.cpu_us for run in done):,.0f}",
    ]


def main() -> None:
    """Run, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--only", nargs="*", choices=sorted(PEERS), help="these peers instead of all")
    asked = parser.parse_args()
    unwind_on_sigterm()
    names = [STOKER, *(name for name in PEERS if asked.only is None or name in asked.only)]
    runs, missing = contend(names, asked.rounds, asked.seconds)
    results.keep(TITLE, f"{results.machine()}\n\n{_conditions(names, runs, asked)}\n\n{table(names, runs, missing)}")


def _conditions(names: list[str], runs: Runs, asked: argparse.Namespace) -> str:
    by = next(iter(runs.values()))[0].result.by
    return (
        f"Two workers each, {len(BODY)} bytes of JSON, load by {by}; {asked.rounds} rounds of {asked.seconds:g} s in "
        "turn: medians (least to most), ratios within a round. Stoker takes 32 exchanges a replica and answers 429 to "
        "what is beyond (`refused/s`; its latencies at 128 clients are of both kinds of answers), the peers queue. "
        "CPU µs: of all processes of the server, an answer of either kind.\n"
        f"Versions: stoker {version('stoker')}, {', '.join(_versions(names))}."
    )


def _versions(names: list[str]) -> list[str]:
    peers: list[Peer] = [PEERS[name] for name in names if name != STOKER]
    return [peer.version for peer in peers]


if __name__ == "__main__":
    main()
