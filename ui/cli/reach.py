"""Which supervisor a command means, and how it is asked.

A name that was given (`--name`, `$STOKER_NAME`) is taken at its word. Where none was given it is `default`;
and where that one does not run but exactly one other does, that one is meant, as with supervisorctl on a
machine with a single supervisor, and standard error says so. Between several a command never guesses.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.errors import ProtocolError, StokerError
from supervisor import names
from supervisor.control.client import ANSWER_S, ControlClient, NotRunning
from supervisor.control.messages import (
    Accepted,
    Answer,
    AnyCommand,
    DeploymentStatus,
    GetStatus,
    Inventory,
    ReplicaStatus,
    Status,
)
from supervisor.host.runtime import RuntimeDir, running_supervisors, runtime_root
from ui.cli.say import say

DEFAULT_NAME = "default"

Kind = TypeVar("Kind", bound=Answer)


class SeveralRunning(StokerError):
    """No name was given, and several supervisors run."""


class SeveralDeployments(StokerError):
    """No deployment was named, and there are several."""

    def __init__(self, known: Sequence[str]) -> None:
        super().__init__(f"name a deployment ({names.listed(known)})")


@dataclass(frozen=True, slots=True)
class Where:
    """Which supervisor was asked for: its name, and the folder of the running ones, where they were given."""

    name: str | None
    root: Path | None

    def runtime(self) -> RuntimeDir:
        """The running supervisor that is meant. Raises NotRunning, SeveralRunning."""
        root = self.root.absolute() if self.root else runtime_root()
        _check_owner(root)
        running = [each.name for each in running_supervisors(root)]
        name = choose(self.name, running)
        if self.name is None and name != DEFAULT_NAME:
            say(f"using the supervisor {name!r}, the only one that runs")
        return RuntimeDir(name, root)

    def connect(self) -> ControlClient:
        """A client of that supervisor, to be used as a context manager. Raises NotRunning, SeveralRunning."""
        return ControlClient(str(self.runtime().control))


def _check_owner(root: Path) -> None:
    """Raises StokerError where somebody else could have put sockets there (spec 15: the same user)."""
    try:
        owner = os.stat(root).st_uid
    except OSError:
        return
    if owner != os.geteuid():
        raise StokerError(
            f"{root} belongs to user {owner}, and you are user {os.geteuid()}: a supervisor obeys its "
            "own user only; become that user, or set STOKER_RUNTIME_DIR to a folder of your own"
        )


def choose(asked: str | None, running: Sequence[str]) -> str:
    """The name that is meant, of those that run. Raises NotRunning, SeveralRunning."""
    wanted = asked or DEFAULT_NAME
    if wanted in running:
        return wanted
    if asked is None and len(running) == 1:
        return running[0]
    if not running:
        named = f" named {asked!r}" if asked else ""
        raise NotRunning(f"no supervisor{named} is running; `stoker serve` starts one")
    if asked is None:
        raise SeveralRunning(f"{len(running)} supervisors are running, say which with --name: {', '.join(running)}")
    near = names.nearest(asked, running)
    guess = f"; did you mean {near!r}?" if near else ""
    raise NotRunning(f"no supervisor named {asked!r} is running{guess} (running now: {', '.join(running)})")


def ask(client: ControlClient, command: AnyCommand, kind: type[Kind], timeout_s: float = ANSWER_S) -> Kind:
    """The answer to a command, which must be of that kind. Raises CommandRefused, NotRunning, NoAnswer."""
    answer = client.ask(command, timeout_s)
    if not isinstance(answer, kind):
        raise ProtocolError(f"expected {kind.__name__} as an answer, found {type(answer).__name__}: another version?")
    return answer


def inventory_of(client: ControlClient, timeout_s: float = ANSWER_S) -> Inventory:
    """The inventory now."""
    return ask(client, GetStatus(), Status, timeout_s).inventory


def order(client: ControlClient, command: AnyCommand) -> Accepted:
    """Ask for a change and say what was answered."""
    accepted = ask(client, command, Accepted)
    say(accepted.text)
    if accepted.saved is False:
        say("it takes effect, but it could not be saved to the config file")
    return accepted


def find_replica(inventory: Inventory, name: str) -> ReplicaStatus:
    """The row of a replica. Raises StokerError that names those that exist."""
    for deployment in inventory.deployments:
        for row in deployment.replicas:
            if row.name == name:
                return row
    raise StokerError(names.no_replica(name, names_of(inventory)))


def find_deployment(inventory: Inventory, name: str | None) -> DeploymentStatus:
    """The deployment that is meant, without a name the only one. Raises StokerError that names those that exist."""
    served = inventory.deployments
    for each in served:
        if each.name == name or (name is None and len(served) == 1):
            return each
    if name is None:
        raise SeveralDeployments([each.name for each in served])
    raise StokerError(names.no_deployment(name, names_of(inventory)))


def names_of(inventory: Inventory) -> names.Fleet:
    """The names of all that runs."""
    return {each.name: [replica.name for replica in each.replicas] for each in inventory.deployments}
