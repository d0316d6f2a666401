"""`stoker events`: what happened."""

from __future__ import annotations

from collections.abc import Iterator

import click

from supervisor.control.events import Event
from supervisor.control.messages import Events, GetEvents, Subscribe
from ui.cli.follow import Gap, Heard, follow
from ui.cli.kinds import Whole
from ui.cli.lines import as_json as event_as_json
from ui.cli.lines import as_text, write_all
from ui.cli.reach import Where, ask
from ui.cli.verb import Verb, json_option, which_supervisor
from ui.looks import TROUBLE, event_mood


@click.command(
    cls=Verb,
    examples=(
        "stoker events",
        "stoker events -f --trouble",
        "stoker events -f --json | jq 'select(.event == \"replica_ejected\")'",
    ),
)
@click.option(
    "-f",
    "--follow",
    "following",
    is_flag=True,
    help="Go on with new events, also across restarts of the supervisor.",
)
@click.option(
    "--since",
    type=Whole(min=0),
    metavar="N",
    help="Only events after number N; 0: all that are kept. Unset: all, and with -f the new ones only.",
)
@click.option("--trouble", is_flag=True, help="Only what somebody should look at: warnings, failures, ejections.")
@json_option
@which_supervisor
def events(where: Where, following: bool, since: int | None, trouble: bool, as_json: bool) -> None:
    """Show what happened.

    Starts, states, drains, ejections, scales and commands, numbered from 1. Times are local on a terminal, UTC in a
    pipe. The supervisor keeps the last few thousand; where earlier ones were asked for, standard error says how many
    are gone. With --json an object a line.
    """
    write = event_as_json if as_json else as_text
    wanted = _of_trouble if trouble else iter
    if following:
        write_all(wanted(follow(str(where.runtime().control), Subscribe(since=since))), write)
        return
    with where.connect() as client:
        kept = ask(client, GetEvents(since=since or 0), Events)
    write_all(wanted(_told(kept, asked=since is not None)), write)


def _of_trouble(heard: Iterator[Heard]) -> Iterator[Heard]:
    """Without the events that nobody has to look at."""
    return (each for each in heard if not isinstance(each, Event) or event_mood(each) in TROUBLE)


def _told(kept: Events, asked: bool) -> Iterator[Heard]:
    """The events, and how many are gone where somebody asked from a number on."""
    if kept.missed and asked:
        yield Gap(kept.missed, "events")
    yield from kept.events
