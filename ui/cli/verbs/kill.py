"""`stoker kill`: SIGKILL, without a drain."""

from __future__ import annotations

import click

from supervisor.control.messages import Kill
from ui.cli.completing import replicas
from ui.cli.kinds import Whole
from ui.cli.reach import Where, find_replica, inventory_of, order
from ui.cli.verb import Verb, which_supervisor


@click.command(cls=Verb, examples=("stoker kill primary/1", "stoker kill primary/1 --incarnation 3"))
@click.argument("replica", shell_complete=replicas)
@click.option(
    "--incarnation",
    type=Whole(min=1),
    metavar="N",
    help="Only if it is still this one; unset: the one that is there now.",
)
@which_supervisor
def kill(where: Where, replica: str, incarnation: int | None) -> None:
    """Kill a replica's processes at once.

    SIGKILL to its whole process group, and a new incarnation is started. A request that it had is tried once more on
    another replica (`retries`); a stream that had begun ends with an error, and so does a request where no other
    replica is ready. To take a replica out without loss, use `stoker drain`.
    """
    with where.connect() as client:
        meant = incarnation or find_replica(inventory_of(client), replica).incarnation
        order(client, Kill(replica=replica, incarnation=meant))
