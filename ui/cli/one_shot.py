"""Models that a command has loaded by a process of its own (`engine.one_shot`): which one is meant, how it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine.errors import StokerError
from engine.messages import LaunchSpec
from supervisor import names
from supervisor.config.load import load_config, parse_config
from supervisor.config.schema import Config, Deployment, Placement
from supervisor.config.write_back import new_document
from supervisor.control.messages import DeploymentStatus
from supervisor.host.cpu import cpu_budget
from supervisor.host.devices import list_devices
from supervisor.host.launcher import framed_launch
from supervisor.slots.base import ManagedMake
from supervisor.slots.making import Machine, make
from ui.cli.reach import SeveralDeployments, Where, find_deployment, inventory_of


class NotLoadable(StokerError):
    """The deployment's model is not Stoker's to load."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The model of a deployment as one replica on the CPU would load it, and the environment to do it in."""

    deployment: str
    spec: LaunchSpec
    env: Mapping[str, str]

    @property
    def launch(self) -> bytes:
        """What the process is given on its standard input."""
        return framed_launch(self.spec)

    def with_threads(self, threads: int) -> Wanted:
        """The same on so many intra-op threads."""
        return replace(self, spec=msgspec.structs.replace(self.spec, threads=threads))


def wanted(where: Where, name: str | None, file: Path | None) -> Wanted:
    """The deployment of a file, or of the running supervisor. Raises StokerError."""
    if file is not None:
        return _from(load_config(file).config, name, str(file))
    with where.connect() as client:
        inventory = inventory_of(client)
    status = find_deployment(inventory, name)
    config = inventory.supervisor.config
    return _from(load_config(Path(config)).config if config else _in_memory(status), status.name, config or "memory")


def command(module: str) -> list[str]:
    """How that module of `engine` is started."""
    return [sys.executable, "-P", "-m", module]


def _from(config: Config, name: str | None, source: str) -> Wanted:
    deployment = _deployment(config, name, source)
    if deployment.artifact is None:
        raise NotLoadable(f"{deployment.name} is attached: its model is not Stoker's to load")
    machine = Machine("", cpu_budget().cores, list_devices().devices, os.environ)
    place = Placement(device="cpu")
    made = make(deployment, place, machine, [place])
    assert isinstance(made, ManagedMake)
    spec = msgspec.structs.replace(made.spec, replica=f"{deployment.name}/one-shot", adaptive=0)
    return Wanted(deployment.name, spec, made.env)


def _deployment(config: Config, name: str | None, source: str) -> Deployment:
    wanted = name or config.default_deployment
    if wanted is None:
        raise SeveralDeployments(list(config.deployments))
    if wanted not in config.deployments:
        raise StokerError(f"{source}: {names.no_such('deployment', wanted, list(config.deployments))}")
    return config.deployments[wanted]


def _in_memory(status: DeploymentStatus) -> Config:
    """The document of a supervisor that was started without a file says nothing but the artifact."""
    text = new_document(status.name, status.artifact or "", [Placement(device="cpu")])
    return parse_config(text, "(the running supervisor)").config
