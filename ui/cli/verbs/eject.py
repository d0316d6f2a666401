"""`stoker eject`: out of rotation for a while, by hand."""

from __future__ import annotations

import click

from supervisor.control.messages import Eject
from ui.cli.completing import replicas
from ui.cli.reach import Where, order
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker eject primary/1",))
@click.argument("replica", shell_complete=replicas)
@which_supervisor
def eject(where: Where, replica: str) -> None:
    """Take a replica out of rotation for a while.

    Its process keeps running. It comes back when its cool-down is over, when it answers something that was in
    flight, or with `stoker readmit`.
    """
    with where.connect() as client:
        order(client, Eject(replica=replica))
