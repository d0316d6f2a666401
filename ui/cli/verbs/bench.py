"""`stoker bench`: how much a deployment can take, and with how many replicas."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ui.bench.bodies import GENERATING, Shape
from ui.bench.plan import Plan
from ui.cli.completing import deployments
from ui.cli.exits import Exit
from ui.cli.kinds import Number, Whole
from ui.cli.reach import Where
from ui.cli.say import emit, json_text, say
from ui.cli.verb import Verb, json_option, which_supervisor

if TYPE_CHECKING:
    from ui.cli.benching import Layout

DEFAULT_CLIENTS = 8
DEFAULT_SECONDS = 10.0
WARMUP_S = 1.0
"""Before each layout of a comparison: its replicas have just started."""
MOST_TOKENS = 100_000


def _tokens(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", value)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high <= MOST_TOKENS:
        raise click.BadParameter(f"expected a number of tokens or a range, such as 16 or 4-256, found {value!r}")
    return low, high


def _counts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    from supervisor.core.placement import MOST_REPLICAS

    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    numbers = tuple(int(part) if re.fullmatch("[0-9]{1,3}", part) else 0 for part in parts)
    if not all(1 <= number <= MOST_REPLICAS for number in numbers) or len(set(numbers)) < len(numbers):
        raise click.BadParameter(f"expected numbers of replicas such as 1,2,4, each once, found {value!r}")
    return numbers


@dataclass(frozen=True, slots=True)
class Wish:
    """The options, as they were given."""

    url: str | None
    route: str | None
    clients: int | None
    rate: float | None
    arrivals: str
    duration: float | None
    requests: int | None
    tokens: tuple[int, int]
    inputs: int
    stream: bool
    max_tokens: int
    timeout: float
    warmup: float | None
    compare: tuple[int, ...] | None
    api_key_env: str | None

    def check(self) -> None:
        """Raises click.UsageError where they do not go together."""
        if self.clients is not None and self.rate is not None:
            raise click.UsageError("--clients is a closed load and --rate an open one: give one of them")
        if self.url is not None and self.route is None:
            raise click.UsageError("--url goes with --route: what that server is for cannot be seen from here")
        if self.url is not None and self.compare is not None:
            raise click.UsageError("--compare scales a deployment of a supervisor on this machine, and --url is none")

    def key(self) -> str | None:
        """The API key. Raises click.UsageError."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise click.UsageError(f"--api-key-env names {self.api_key_env}, which is not set in the environment")
        return key

    def plan(self, route: str, model: str | None) -> Plan:
        """What to do. Raises click.UsageError where the route does not take it."""
        generating = route in GENERATING
        if self.stream and not generating:
            raise click.UsageError(f"--stream goes with generated answers (chat, completions), not with {route}")
        if generating and self.inputs != 1:
            raise click.UsageError(f"--inputs goes with embeddings, classify and rerank, not with {route}")
        unlimited = self.duration is None and self.requests is None
        warmup = self.warmup if self.warmup is not None else WARMUP_S if self.compare is not None else 0.0
        return Plan(
            shape=Shape(route, model, self.tokens, self.inputs, self.stream, self.max_tokens),
            clients=None if self.rate is not None else self.clients or DEFAULT_CLIENTS,
            rate=self.rate,
            even=self.arrivals == "even",
            seconds=DEFAULT_SECONDS if unlimited else self.duration,
            requests=self.requests,
            warmup_s=warmup,
            timeout_s=self.timeout,
        )


@click.command(
    cls=Verb,
    examples=(
        "stoker bench                                          8 clients for 10 s on the deployment that runs",
        "stoker bench minilm --clients 32 --tokens 4-256       mixed lengths",
        "stoker bench minilm --rate 50 --duration 30           50 requests a second, whatever comes back",
        "stoker bench smollm2 --stream --max-tokens 64         time to the first token, and between tokens",
        "stoker bench minilm --compare 1,2,4                   which number of replicas wins",
        "stoker bench qwen --url http://127.0.0.1:8000 --route chat",
    ),
)
@click.argument("deployment", required=False, shell_complete=deployments)
@click.option(
    "--url",
    metavar="URL",
    help="Any OpenAI-compatible server instead of a supervisor of this machine; DEPLOYMENT is then the model's name.",
)
@click.option(
    "--route",
    type=click.Choice(["embeddings", "chat", "completions", "classify", "rerank"]),
    help="What to ask for. Unset: what the deployment is for.",
)
@click.option(
    "--clients",
    type=Whole(1, 10_000),
    metavar="N",
    help=f"Closed load: so many clients, each sends when it was answered. Unset, and no --rate: {DEFAULT_CLIENTS}.",
)
@click.option(
    "--rate",
    type=Number(min=0, min_open=True, max=1_000_000),
    metavar="R",
    help="Open load: R requests a second, whether the last ones were answered or not.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "even"]),
    default="poisson",
    show_default=True,
    help="With --rate: as chance brings them, or at equal distances.",
)
@click.option(
    "--duration",
    type=Number(min=0, min_open=True, max=86_400),
    metavar="SECONDS",
    help=f"How long to send. Unset, and no --requests: {DEFAULT_SECONDS:g}.",
)
@click.option("--requests", type=Whole(min=1), metavar="N", help="How many to send, at the most.")
@click.option(
    "--tokens",
    callback=_tokens,
    default="16",
    show_default=True,
    metavar="N|A-B",
    help="Length of a text, in words of about a token each, or an even mix of lengths.",
)
@click.option(
    "--inputs",
    type=Whole(1, 2048),
    default=1,
    show_default=True,
    metavar="N",
    help="Texts of one request; documents where it reranks.",
)
@click.option("--stream", is_flag=True, help="Stream the answers, and time their tokens.")
@click.option(
    "--max-tokens",
    type=Whole(min=1),
    default=32,
    show_default=True,
    metavar="N",
    help="Longest generated answer.",
)
@click.option(
    "--timeout",
    type=Number(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for one answer.",
)
@click.option(
    "--warmup",
    type=Number(min=0),
    metavar="SECONDS",
    help=f"The same load before, not counted. Unset: none, and {WARMUP_S:g} with --compare.",
)
@click.option(
    "--compare",
    callback=_counts,
    metavar="N,M,…",
    help="Measure with each of these numbers of replicas, then go back to the present one.",
)
@click.option(
    "--api-key-env",
    metavar="VARIABLE",
    help="Environment variable that holds the API key, where the server wants one.",
)
@json_option
@which_supervisor
def bench(where: Where, deployment: str | None, as_json: bool, **asked: Any) -> int:
    """Load a deployment and show what it can take.

    A row: requests that ended, answers a second, inputs (or generated tokens, or documents) a second, percentiles of
    the latency, and what failed, by status or kind (timeout, connection, cut). FIRST is the time to the first token of
    a stream, NEXT that from one token to the next. All of it is about answers; what failed is only counted.

    With --rate, latency counts from the moment that a request was to be sent: a server that falls behind cannot hide
    by being asked less. Each text is sent once, so no result cache answers.

    With --compare the numbers of replicas are tried without writing them to the config, and the present ones are
    restored at the end, also after Ctrl-C. Do it while nobody else needs the deployment.

    Ctrl-C shows what was measured so far. The exit code is 0 where all requests were answered, or refused for want of
    room (429, 503); any other failure, or no answer at all, makes it 1.
    """
    wish = Wish(**asked)
    wish.check()
    from ui.bench.connection import Server
    from ui.cli import benching

    key = wish.key()
    if wish.url is not None:
        assert wish.route is not None, "checked"
        return _one(wish.plan(wish.route, deployment), wish.url, key, as_json)
    runtime = where.runtime()
    found, listen = benching.look(runtime, deployment)
    plan = wish.plan(wish.route or benching.route_for(found, wish.stream), found.name)
    url = benching.address_of(listen)
    if wish.compare is None:
        return _one(plan, url, key, as_json)
    say(benching.load_in_words(plan, url))
    comparison = benching.compare(plan, Server.at(url), key, runtime, found.name, wish.compare)
    code = _show(comparison.layouts, plan, as_json, compared=True, interrupted=comparison.interrupted)
    if comparison.problem is not None:
        say(f"stoker: {comparison.problem}")
        return Exit.FAILED
    return code


def _one(plan: Plan, url: str, key: str | None, as_json: bool) -> int:
    from ui.bench.connection import Server
    from ui.cli import benching

    server = Server.at(url)
    say(benching.load_in_words(plan, url))
    result = benching.measure(plan, server, key)
    return _show([benching.Layout(0, result)], plan, as_json, compared=False, interrupted=result.interrupted)


def _show(layouts: Sequence[Layout], plan: Plan, as_json: bool, compared: bool, interrupted: bool) -> int:
    from ui.cli import benching, tables

    if layouts:
        if as_json:
            emit(json_text(benching.as_json(layouts, plan, compared)))
        else:
            tables.show(benching.table(layouts, plan, compared))
        for words in benching.remarks(layouts, plan, compared):
            say(words)
    if interrupted:
        return Exit.INTERRUPTED
    return Exit.DONE if all(each.result.sound for each in layouts) else Exit.FAILED
