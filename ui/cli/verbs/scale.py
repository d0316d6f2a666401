"""`stoker scale`: another number of replicas."""

from __future__ import annotations

import click

from supervisor.control.messages import Scale
from supervisor.core.placement import MOST_REPLICAS
from ui.cli.completing import deployments
from ui.cli.reach import Where, order
from ui.cli.say import say
from ui.cli.verb import Verb, wait_options, which_supervisor
from ui.cli.waiting import scaled, wait_until


@click.command(cls=Verb, examples=("stoker scale primary 4", "stoker scale primary 2 --wait --timeout 60"))
@click.argument("deployment", shell_complete=deployments)
@click.argument("replicas", metavar="N", type=click.IntRange(1, MOST_REPLICAS))
@wait_options
@which_supervisor
def scale(where: Where, deployment: str, replicas: int, wait: bool, timeout: float) -> None:
    """Set the number of replicas of a deployment.

    DEPLOYMENT is its name, N the number wanted, 1 to 64. New replicas join when they are ready; removed ones
    finish what they have first. A scale that meets another joins it: the last number asked wins.

    With --wait it ends when exactly N are ready and no other remains, and fails with the reason when a
    replica cannot come up.
    """
    with where.connect() as client:
        order(client, Scale(deployment=deployment, replicas=replicas))
        if wait:
            say(wait_until(client, scaled(deployment, replicas), timeout))
