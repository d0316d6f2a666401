"""`stoker logs`: what the replicas print."""

from __future__ import annotations

import click

from supervisor.control.messages import GetLogs, Lines, Subscribe
from ui.cli.completing import replicas
from ui.cli.follow import follow
from ui.cli.lines import as_json as line_as_json
from ui.cli.lines import as_text, write_all
from ui.cli.reach import Where, ask
from ui.cli.verb import Verb, json_option, which_supervisor


@click.command(
    cls=Verb,
    examples=("stoker logs -f", "stoker logs primary/1 -n 50", "stoker logs -f --json | jq -r .text"),
)
@click.argument("replica", required=False, shell_complete=replicas)
@click.option(
    "-f",
    "--follow",
    "following",
    is_flag=True,
    help="Go on with new lines, also across restarts of the supervisor.",
)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    metavar="LINES",
    help="Lines to begin with.",
)
@json_option
@which_supervisor
def logs(where: Where, replica: str | None, following: bool, count: int, as_json: bool) -> None:
    """Show what the replicas print.

    Of one REPLICA, or of all, oldest line first. Lines are shown literally: on a terminal their control
    characters are escaped. Where lines come faster than they can be sent, standard error says how many were
    left out. With --json an object a line: time (seconds since 1970), replica, incarnation, text.
    """
    write = line_as_json if as_json else as_text
    first = GetLogs(replica=replica, lines=count)
    if following:
        path = str(where.runtime().control)
        write_all(follow(path, Subscribe(events=False, logs=True, replica=replica), first), write)
        return
    with where.connect() as client:
        lines = ask(client, first, Lines).lines
    write_all(lines, write)
