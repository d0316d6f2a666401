"""`stoker restart`: a new incarnation of one replica, or of all of a deployment in turn."""

from __future__ import annotations

import click

from engine.errors import StokerError
from supervisor import names
from supervisor.control.messages import Inventory, Restart
from ui.cli.completing import deployments_and_replicas
from ui.cli.reach import Where, inventory_of, names_of, order
from ui.cli.say import say
from ui.cli.verb import Verb, wait_options, which_supervisor
from ui.cli.waiting import restarted, wait_until


@click.command(cls=Verb, examples=("stoker restart primary/1", "stoker restart primary --wait"))
@click.argument("target", metavar="REPLICA|DEPLOYMENT", shell_complete=deployments_and_replicas)
@wait_options
@which_supervisor
def restart(where: Where, target: str, wait: bool, timeout: float) -> None:
    """Restart a replica, or a deployment one replica at a time.

    A deployment is restarted rolling: the new incarnation of a replica is ready before the next one leaves. A
    replica that was given up, or taken out by hand, comes back by this.
    """
    with where.connect() as client:
        before = _incarnations(inventory_of(client), target)
        order(client, Restart(target=target))
        if wait:
            say(wait_until(client, restarted(before), timeout))


def _incarnations(inventory: Inventory, target: str) -> dict[str, int]:
    """The replicas that are meant and their incarnations. Raises StokerError."""
    known = names_of(inventory)
    rows = [replica for deployment in inventory.deployments for replica in deployment.replicas]
    found = {
        row.name: row.incarnation
        for row in rows
        if row.name == target or (row.deployment == target and not row.cordoned)  # by hand out: a roll leaves it there
    }
    if not found and target not in known:
        raise StokerError(names.no_deployment_or_replica(target, known))
    if not found:
        raise StokerError(f"every replica of {target!r} was taken out by hand; restart them by name")
    return found
