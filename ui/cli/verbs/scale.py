"""`stoker scale`: another number of replicas."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import click

from supervisor.control.messages import Scale
from supervisor.core.placement import MOST_REPLICAS
from ui.cli.completing import deployments
from ui.cli.reach import Where, order
from ui.cli.say import say
from ui.cli.verb import Verb, wait_options, which_supervisor
from ui.cli.waiting import scaled, wait_until


class _Wanted(NamedTuple):
    """One of the two."""

    replicas: int | None = None
    delta: int | None = None


class _Count(click.ParamType):  # type: ignore[type-arg]  # generic in new clicks only
    """A number of replicas, or by how many it changes."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Wanted:
        found = re.fullmatch(r"([+-]?)([0-9]{1,2})", str(value))
        number = int(found[2]) if found else 0
        if found is None or not 1 <= number <= MOST_REPLICAS:
            words = f"expected a number from 1 to {MOST_REPLICAS}, or +N or -N for so many more or fewer"
            self.fail(f"{words}, found {str(value)!r}", param, ctx)
        sign = found[1]
        return _Wanted(delta=-number if sign == "-" else number) if sign else _Wanted(replicas=number)


class _Scale(Verb):
    """`-1` is a number here, and no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _difference_last(args))


def _difference_last(words: list[str]) -> list[str]:
    """The words with one like `-1` behind a `--`, where it is not taken for an option."""
    found = (at for at, word in enumerate(words) if re.fullmatch("-[0-9]+", word) and words[at - 1] != "--timeout")
    at = next(found, None)
    if at is None or "--" in words:
        return words
    return [*words[:at], *words[at + 1 :], "--", words[at]]


@click.command(
    cls=_Scale,
    examples=("stoker scale primary 4", "stoker scale primary +1", "stoker scale primary 2 --wait --timeout 60"),
)
@click.argument("deployment", shell_complete=deployments)
@click.argument("wanted", metavar="N", type=_Count())
@wait_options
@which_supervisor
def scale(where: Where, deployment: str, wanted: _Wanted, wait: bool, timeout: float) -> None:
    """Set the number of replicas of a deployment.

    DEPLOYMENT is its name, N the number wanted, 1 to 64; +N and -N are so many more or fewer than are asked for now.
    New replicas join when they are ready; removed ones finish what they have first. A scale that meets another joins
    it: the last number asked wins.

    With --wait it ends when exactly so many are ready and no other remains, and fails with the reason when a
    replica cannot come up.
    """
    with where.connect() as client:
        accepted = order(client, Scale(deployment=deployment, replicas=wanted.replicas, delta=wanted.delta))
        if wait:
            asked = accepted.asked if wanted.replicas is None else wanted.replicas
            assert asked is not None, "an accepted scale says how many were asked for"
            say(wait_until(client, scaled(deployment, asked), timeout))
