"""`stoker bench`: what is measured, how far it is, and what came out, in words and tables."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from engine.errors import StokerError
from supervisor.control.client import ControlClient, check_listening
from supervisor.control.messages import Accepted, DeploymentStatus, Trial
from supervisor.host.runtime import RuntimeDir
from ui.bench import load
from ui.bench.bodies import GENERATING
from ui.bench.connection import FAILURES, Server
from ui.bench.measured import Spread, Summary
from ui.bench.plan import Far, OnTick, Plan
from ui.cli.reach import ask, find_deployment, inventory_of
from ui.cli.say import on_terminal, say
from ui.cli.tables import Cell, Column, Table
from ui.cli.units import count, duration, milliseconds, rate
from ui.cli.waiting import WaitFailed, scaled, wait_until

READY_S = 600.0
"""How long a layout may take to be ready."""
REDRAW_TICKS = 4
"""Ticks of the load between two pictures of its progress."""
BUSY_CLIENT = 0.9
"""Share of a core from which the load generator may itself be what limits."""
NOISE = 0.03
"""Layouts that differ by less than this are as good as each other; the smaller one wins."""

LEAST_TO_TELL = 100
"""Requests; of fewer, chance alone can make the rate another one."""
BEHIND = 0.2
"""Share of the wanted rate that may be missing in the answers."""

ROUTE_OF_TASK = {"embed": "embeddings", "classify": "classify", "rerank": "rerank", "generate": "chat"}


class CannotBench(StokerError):
    """What was asked for cannot be measured; the text says what to give."""


class Layout(msgspec.Struct, frozen=True):
    """What a number of replicas came to."""

    replicas: int
    result: Summary


@dataclass(frozen=True, slots=True)
class Comparison:
    """Layouts in the order measured. interrupted: before all of them were; problem: why one could not be."""

    layouts: Sequence[Layout]
    interrupted: bool = False
    problem: str | None = None


def look(runtime: RuntimeDir, name: str | None) -> tuple[DeploymentStatus, str]:
    """The deployment that is meant, and where its supervisor listens. Raises StokerError."""
    with ControlClient(str(runtime.control)) as client:
        inventory = inventory_of(client)
    return find_deployment(inventory, name), inventory.supervisor.listen


def route_for(deployment: DeploymentStatus, stream: bool) -> str:
    """The route that a deployment's task answers; a stub answers all. Raises CannotBench where it is not known."""
    if deployment.task == "any":
        return "chat" if stream else "embeddings"
    if deployment.task not in ROUTE_OF_TASK:
        raise CannotBench(
            f"what {deployment.name} is for is not known (task {deployment.task}): give --route, or wait for a replica "
            "to be ready"
        )
    return ROUTE_OF_TASK[deployment.task]


def address_of(listen: str) -> str:
    """The URL that reaches a supervisor which listens there, from this machine."""
    if listen.startswith("unix:"):
        return listen
    host, _, port = listen.rpartition(":")
    nearer = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"http://{nearer}:{port}"


# ------------------------------------------------------------------------------------------------- measuring


def measure(plan: Plan, server: Server, key: str | None, title: str = "") -> Summary:
    """One run, with a progress bar where standard error is a terminal."""
    with _bar(title) as bar:
        return load.run(plan, server, key, bar)


def compare(
    plan: Plan, server: Server, key: str | None, runtime: RuntimeDir, name: str, counts: Sequence[int]
) -> Comparison:
    """Each number of replicas in turn; those that there were are back at the end, however it ends."""
    layouts: list[Layout] = []
    with _trial(runtime, name) as trial, _ended_by_signals():
        try:
            for number in counts:
                trial.set(number)
                result = measure(plan, server, key, count(number, "replica"))
                trial.check(number)
                if result.requests:
                    layouts.append(Layout(number, result))
                if result.interrupted:
                    return Comparison(layouts, interrupted=True)
        except KeyboardInterrupt:
            return Comparison(layouts, interrupted=True)
        except StokerError as error:
            return Comparison(layouts, problem=f"{count(number, 'replica')}: {error}")
    return Comparison(layouts)


def best(layouts: Sequence[Layout], plan: Plan) -> Layout:
    """The layout that wins: most answers a second; at a given rate, the shortest p99 without failures.

    One that is better by less than `NOISE` does not beat a smaller one.
    """
    if plan.rate is None:
        most = max(each.result.requests_per_s for each in layouts)
        as_good = [each for each in layouts if each.result.requests_per_s >= most * (1 - NOISE)]
    else:
        fewest = min(sum(each.result.failures.values()) for each in layouts)
        whole = [each for each in layouts if sum(each.result.failures.values()) == fewest]
        shortest = min(_p99(each.result) for each in whole)
        as_good = [each for each in whole if _p99(each.result) <= shortest * (1 + NOISE)]
    return min(as_good, key=lambda each: each.replicas)


class _Trial:
    """Sets numbers of replicas that the config never hears of. It lasts as long as its client's connection."""

    def __init__(self, runtime: RuntimeDir, name: str, client: ControlClient) -> None:
        self._runtime = runtime
        self._name = name
        self._client = client
        self._begun = False

    def set(self, number: int) -> None:
        """So many, and wait until they are ready."""
        self._ask(number)
        self._begun = True
        with ControlClient(str(self._runtime.control)) as watching:
            wait_until(watching, scaled(self._name, number), READY_S)

    def check(self, number: int) -> None:
        """Raises StokerError where other numbers came into force while these were measured."""
        check_listening(str(self._runtime.control))
        found = find_deployment(inventory_of(self._client), self._name).desired_replicas
        if found != number:
            raise WaitFailed(f"{self._name} was scaled to {found} while they were measured; these figures are left out")

    def end(self) -> None:
        """Those that there were again. They come back by themselves; this does not wait for it."""
        if not self._begun:
            return
        accepted = self._ask(None)
        say(f"{self._name} is back to {count(accepted.asked or 0, 'replica')}; the config was not touched")

    def _ask(self, number: int | None) -> Accepted:
        """An open connection does not tell that the other end is gone, and would wait for an answer."""
        check_listening(str(self._runtime.control))
        return ask(self._client, Trial(deployment=self._name, replicas=number), Accepted)


@contextlib.contextmanager
def _trial(runtime: RuntimeDir, name: str) -> Iterator[_Trial]:
    with ControlClient(str(runtime.control)) as client:
        trial = _Trial(runtime, name, client)
        try:
            yield trial
        finally:
            trial.end()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end it as Ctrl-C does, so that the replicas are restored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _bar(title: str) -> Iterator[OnTick]:
    if not on_terminal(sys.stderr):
        yield lambda far: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task(title or "asking once", total=1.0, words="")
        ticks = 0

        def show(far: Far) -> None:
            nonlocal ticks
            if ticks % REDRAW_TICKS == 0:
                what = "warming up" if far.warming else "measuring"
                named = f"{title}, {what}" if title else what
                progress.update(task, completed=far.share, description=named, words=_so_far(far), refresh=True)
            ticks += 1

        yield show


def _so_far(far: Far) -> str:
    measured = far.so_far
    per_s = len(measured.latencies) / far.seconds if far.seconds > 0 else 0.0
    failed = measured.failures.total()
    words = f"{duration(far.seconds)}, {measured.requests} done, {rate(per_s)}/s, {far.in_flight} in flight"
    return f"{words}, {failed} failed" if failed else words


# ------------------------------------------------------------------------------------------------- telling


def load_in_words(plan: Plan, url: str) -> str:
    """What is about to be done, in a line."""
    shape = plan.shape
    if plan.rate is None:
        who = count(plan.clients or 1, "client")
    else:
        who = f"{rate(plan.rate)} requests/s, {'evenly' if plan.even else 'at random (Poisson)'}"
    limits = [] if plan.seconds is None else [f"for {duration(plan.seconds)}"]
    limits += [] if plan.requests is None else [f"up to {count(plan.requests, 'request')}"]
    low, high = shape.tokens
    lengths = f"{low} tokens" if low == high else f"{low} to {high} tokens"
    if shape.route in GENERATING:
        what = f"a prompt of {lengths}, up to {shape.max_tokens} tokens back{', streamed' if shape.stream else ''}"
    else:
        what = f"{count(shape.inputs, 'document' if shape.route == 'rerank' else 'input')} of {lengths}"
    return f"{who}, {' or '.join(limits)}: {shape.path} at {url}, {what}"


def table(layouts: Sequence[Layout], plan: Plan, compared: bool) -> Table:
    """A row a layout; `compared` adds what tells them apart."""
    generating, streamed = plan.shape.route in GENERATING, plan.shape.stream
    thing = "TOKENS/S" if generating else "DOCS/S" if plan.shape.route == "rerank" else "INPUTS/S"
    columns = [Column("REQUESTS", right=True, least_width=50 if compared else 0), Column("REQ/S", right=True)]
    columns += [Column(thing, right=True, least_width=60)]
    columns += [Column("P50", right=True), Column("P90", right=True, least_width=90), Column("P99", right=True)]
    columns += [Column("MAX", right=True, least_width=100)]
    if streamed:
        columns += [Column("FIRST-P50", right=True, least_width=50), Column("FIRST-P99", right=True, least_width=70)]
        columns += [Column("NEXT-P50", right=True, least_width=110), Column("NEXT-P99", right=True, least_width=110)]
    columns += [Column("FAILED")]
    if compared:
        columns = [Column("REPLICAS", right=True), *columns[:2], Column("RATIO", right=True), *columns[2:]]
    winner = best(layouts, plan) if compared else None
    rows = [_row(each, layouts[0], plan, compared, "bold green" if each is winner else "") for each in layouts]
    return Table(columns, rows)


def _row(layout: Layout, first: Layout, plan: Plan, compared: bool, style: str) -> list[Cell]:
    result = layout.result
    things = result.tokens_per_s if plan.shape.route in GENERATING else result.inputs_per_s
    texts = [str(result.requests), rate(result.requests_per_s), rate(things), *_spread(result.latency_ms)]
    if plan.shape.stream:
        texts += [*_two(result.first_token_ms), *_two(result.between_tokens_ms)]
    texts.append(", ".join(f"{kind}: {number}" for kind, number in result.failures.items()))
    if compared:
        base = first.result.requests_per_s
        ratio = f"{result.requests_per_s / base:.2f}" if base else ""
        texts = [str(layout.replicas), *texts[:2], ratio, *texts[2:]]
    return [Cell(text, style) for text in texts]


def as_json(layouts: Sequence[Layout], plan: Plan, compared: bool) -> bytes:
    """The plan and what came out; of a comparison, each layout and the best one."""
    said: dict[str, object] = {"load": {**msgspec.to_builtins(plan), "shape": plan.shape._asdict()}}
    if compared:
        said |= {"layouts": layouts, "best": best(layouts, plan).replicas}
    else:
        said["result"] = layouts[0].result
    return msgspec.json.encode(said)


def remarks(layouts: Sequence[Layout], plan: Plan, compared: bool) -> list[str]:
    """What the table cannot say."""
    said = []
    if compared and len(layouts) > 1:
        said.append(_verdict(layouts, plan))
    results = [each.result for each in layouts]
    if any(each.interrupted for each in results):
        left = sum(each.unfinished for each in results)
        said.append(f"interrupted: these are the requests that had ended by then; {left} that had not are left out")
    if plan.rate is not None and (slow := next((each for each in results if _fell_behind(each, plan.rate)), None)):
        said.append(
            f"the server fell behind: {rate(slow.requests_per_s)} answers/s at {rate(plan.rate)} requests/s; at a rate "
            "that it cannot take, latency says how long the run was"
        )
    if plan.rate is None and any("429" in each.failures for each in results):
        said.append("429: all replicas were full; a client sends its next request at once, so fewer clients mean fewer")
    said += [f"{kind}: {words}" for kind, words in _why_failed(results).items() if kind != "429" or plan.rate]
    if any(each.client_cpu > BUSY_CLIENT for each in results):
        said.append("warning: the load generator itself used a whole core; the server may be faster than this shows")
    return said


def _fell_behind(result: Summary, wanted: float) -> bool:
    """Whether far fewer were answered than asked for, and chance is not why."""
    asked = result.requests + result.unfinished
    return asked >= LEAST_TO_TELL and result.requests_per_s < (1 - BEHIND) * wanted and not result.failures


def _why_failed(results: Sequence[Summary]) -> dict[str, str]:
    """What each kind of failure means, in the server's own words where it had some."""
    kinds = dict.fromkeys(kind for each in results for kind in each.failures)
    spoken = {kind: words for each in reversed(results) for kind, words in each.messages.items()}
    return {kind: words for kind in kinds if (words := spoken.get(kind) or FAILURES.get(kind))}


def _verdict(layouts: Sequence[Layout], plan: Plan) -> str:
    winner, first = best(layouts, plan), layouts[0]
    by = "requests/s" if plan.rate is None else "p99 at this rate"
    words = f"{count(winner.replicas, 'replica')} win by {by}" if winner.replicas > 1 else f"1 replica wins by {by}"
    if winner is first or not first.result.requests_per_s or plan.rate is not None:
        return words
    times = winner.result.requests_per_s / first.result.requests_per_s
    return f"{words}: {times:.2f} times that of {count(first.replicas, 'replica')}"


def _spread(spread: Spread | None) -> list[str]:
    if spread is None:
        return [""] * 4
    return [milliseconds(each) for each in (spread.p50, spread.p90, spread.p99, spread.max)]


def _two(spread: Spread | None) -> list[str]:
    return ["", ""] if spread is None else [milliseconds(spread.p50), milliseconds(spread.p99)]


def _p99(result: Summary) -> float:
    return result.latency_ms.p99 if result.latency_ms is not None else float("inf")
