"""Names for the shell's completion, asked from the running supervisor; none where it does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from engine.errors import StokerError

if TYPE_CHECKING:
    from supervisor.control.messages import Inventory

PATIENCE_S = 0.5
"""How long a press of Tab may wait for the supervisor."""


def supervisors(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of supervisors that run."""
    from supervisor.host.runtime import running_supervisors

    names = (running.name for running in running_supervisors(ctx.params.get("runtime_dir")))
    return [name for name in names if name.startswith(incomplete)]


def deployments(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of deployments."""
    return _names(ctx, incomplete, lambda inventory: [each.name for each in inventory.deployments])


def replicas(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of replicas."""
    return _names(ctx, incomplete, _replicas)


def deployments_and_replicas(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of both."""
    return deployments(ctx, param, incomplete) + replicas(ctx, param, incomplete)


def _replicas(inventory: Inventory) -> list[str]:
    return [replica.name for deployment in inventory.deployments for replica in deployment.replicas]


def _names(ctx: click.Context, incomplete: str, pick: Callable[[Inventory], list[str]]) -> list[str]:
    from ui.cli.reach import Where, inventory_of

    try:
        with Where(ctx.params.get("name"), ctx.params.get("runtime_dir")).connect() as client:
            return [each for each in pick(inventory_of(client, PATIENCE_S)) if each.startswith(incomplete)]
    except StokerError:
        return []
