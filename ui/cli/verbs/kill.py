"""`stoker kill`: SIGKILL, without a drain."""

from __future__ import annotations

import click

from supervisor.control.messages import Kill
from ui.cli.completing import replicas
from ui.cli.reach import Where, find_replica, inventory_of, order
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker kill primary/1", "stoker kill primary/1 --incarnation 3"))
@click.argument("replica", shell_complete=replicas)
@click.option(
    "--incarnation",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only if it is still this one; unset: the one that is there now.",
)
@which_supervisor
def kill(where: Where, replica: str, incarnation: int | None) -> None:
    """Kill a replica's processes at once.

    SIGKILL to its whole process group: what is in flight there fails or is tried on another replica, and a
    new incarnation is started. To take a replica out without loss, use `stoker drain`.
    """
    with where.connect() as client:
        meant = incarnation or find_replica(inventory_of(client), replica).incarnation
        order(client, Kill(replica=replica, incarnation=meant))
