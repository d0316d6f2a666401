"""`stoker logs`: what the replicas print."""

from __future__ import annotations

import click

from supervisor.control.messages import GetLogs, Lines, Subscribe
from ui.cli.completing import deployments_and_replicas
from ui.cli.follow import follow
from ui.cli.kinds import Whole
from ui.cli.lines import as_json as line_as_json
from ui.cli.lines import as_text, write_all
from ui.cli.reach import Where, ask
from ui.cli.say import say
from ui.cli.verb import Verb, json_option, which_supervisor


@click.command(
    cls=Verb,
    examples=(
        "stoker logs -f",
        "stoker logs primary/1 -n 50",
        "stoker logs primary -f",
        "stoker logs -f --json | jq -r .text",
    ),
)
@click.argument("of", metavar="[REPLICA|DEPLOYMENT]", required=False, shell_complete=deployments_and_replicas)
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
    type=Whole(min=0),
    default=200,
    show_default=True,
    metavar="LINES",
    help="Lines to begin with.",
)
@json_option
@which_supervisor
def logs(where: Where, of: str | None, following: bool, count: int, as_json: bool) -> None:
    """Show what the replicas print.

    Of one REPLICA, of those of a DEPLOYMENT, or of all, oldest line first. Times are local on a terminal, UTC in a
    pipe. Lines are shown literally: on a terminal their control characters are escaped. Where lines come faster than
    they can be sent, standard error says how many were left out. With --json an object a line: time (seconds since
    1970), replica, incarnation, text.
    """
    write = line_as_json if as_json else as_text
    replica, deployment = (of, None) if of is None or "/" in of else (None, of)
    first = GetLogs(replica=replica, deployment=deployment, lines=count)
    if following:
        path = str(where.runtime().control)
        write_all(
            follow(path, Subscribe(events=False, logs=True, replica=replica, deployment=deployment), first), write
        )
        return
    with where.connect() as client:
        lines = ask(client, first, Lines).lines
    write_all(lines, write)
    if count and not lines:
        say("nothing was printed yet" if of is None else f"{of} has printed nothing yet")
