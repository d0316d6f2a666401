"""`stoker readmit`: an ejected replica serves again."""

from __future__ import annotations

import click

from supervisor.control.messages import Readmit
from ui.cli.completing import replicas
from ui.cli.reach import Where, order
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker readmit primary/1",))
@click.argument("replica", shell_complete=replicas)
@which_supervisor
def readmit(where: Where, replica: str) -> None:
    """Put an ejected replica back into rotation."""
    with where.connect() as client:
        order(client, Readmit(replica=replica))
