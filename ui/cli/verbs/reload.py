"""`stoker reload`: the config file as it is now."""

from __future__ import annotations

import click

from supervisor.control.messages import CommandRefused, Reload
from ui.cli.exits import Exit
from ui.cli.reach import Where, order
from ui.cli.say import say
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker check stoker.yaml && stoker reload",))
@which_supervisor
def reload(where: Where) -> None:
    """Read the config file again and apply what changed.

    Replicas whose identity did not change go on undisturbed; new ones are ready before old ones are drained.
    A file with errors changes nothing. SIGHUP to the supervisor does the same.
    """
    with where.connect() as client:
        try:
            order(client, Reload())
        except CommandRefused as refused:
            if refused.code != "config":
                raise
            say(str(refused))
            raise click.exceptions.Exit(Exit.USAGE) from None
