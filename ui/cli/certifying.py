"""`stoker threads certify`: which model is meant, and the process that computes the grid, with a progress bar."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.errors import StokerError
from engine.messages import LaunchSpec
from engine.threads.records import Said, Step, Verdict
from supervisor.config.load import load_config, parse_config
from supervisor.config.schema import Config, Deployment, Placement
from supervisor.config.write_back import new_document
from supervisor.control.messages import DeploymentStatus, Inventory
from supervisor.host.cpu import cpu_budget
from supervisor.host.devices import list_devices
from supervisor.host.launcher import encode_launch
from supervisor.slots.base import ManagedMake
from supervisor.slots.making import Machine, make
from ui.cli import say
from ui.cli.reach import Where, inventory_of

MOST_COUNT = 16
"""Counts up to this are tried where only one thread is configured and there is nothing to compare."""

_said = msgspec.json.Decoder(Said)


class CertifyFailed(StokerError):
    """The process that was to certify ended without a verdict."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to certify, and the environment to do it in."""

    deployment: str
    spec: LaunchSpec
    env: Mapping[str, str]


def wanted(where: Where, name: str | None, file: Path | None) -> Wanted:
    """The deployment of a file, or of the running supervisor. Raises StokerError."""
    if file is not None:
        return _from(load_config(file).config, name, str(file))
    with where.connect() as client:
        inventory = inventory_of(client)
    status = _status(inventory, name)
    config = inventory.supervisor.config
    return _from(load_config(Path(config)).config if config else _in_memory(status), status.name, config or "memory")


def run(asked: Wanted) -> Verdict:
    """Start the process, show how far it is, and wait for its verdict. Raises CertifyFailed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    data = encode_launch(asked.spec)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    command = [sys.executable, "-P", "-m", "engine.threads.certificate"]
    pipe = subprocess.PIPE
    with (
        Progress(
            *columns, console=Console(stderr=True), transient=True, disable=not say.on_terminal(sys.stderr)
        ) as bar,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, env=dict(asked.env)) as process,
    ):
        task = bar.add_task(f"loading {asked.spec.artifact}", total=None)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(len(data).to_bytes(4, "big") + data)
        process.stdin.flush()
        verdict, in_a_log = None, say.Progress()  # beside the bar: where nobody watches, a line now and then
        for line in process.stdout:
            said = _said.decode(line)
            if isinstance(said, Step):
                bar.update(task, description=f"{said.rows} x {said.tokens} tokens", completed=said.done, total=said.of)
                if bar.disable:
                    in_a_log.show(f"{asked.deployment}: {said.done} of {said.of} shapes")
            else:
                verdict = said
        process.stdin.close()
    if verdict is None:
        raise CertifyFailed(f"the model of {asked.deployment} could not be certified (exit code {process.returncode})")
    return verdict


def _from(config: Config, name: str | None, source: str) -> Wanted:
    deployment = _deployment(config, name, source)
    if deployment.artifact is None:
        raise CertifyFailed(f"{deployment.name} is attached: its model is not Stoker's to load")
    machine = Machine("", cpu_budget().cores, list_devices().devices, os.environ)
    made = make(deployment, Placement(device="cpu"), machine)
    assert isinstance(made, ManagedMake)
    threads = made.spec.threads if made.spec.threads > 1 else min(MOST_COUNT, machine.cpu_cores)
    spec = msgspec.structs.replace(made.spec, threads=threads, replica=f"{deployment.name}/certify", adaptive=0)
    return Wanted(deployment.name, spec, made.env)


def _deployment(config: Config, name: str | None, source: str) -> Deployment:
    wanted = name or config.default_deployment
    if wanted is None or wanted not in config.deployments:
        known = ", ".join(config.deployments)
        raise StokerError(f"{source} has no deployment {wanted!r}; give one of: {known}")
    return config.deployments[wanted]


def _status(inventory: Inventory, name: str | None) -> DeploymentStatus:
    names = [each.name for each in inventory.deployments]
    for each in inventory.deployments:
        if each.name == name or (name is None and len(names) == 1):
            return each
    raise StokerError(f"there is no deployment {name!r}; give one of: {', '.join(names)}")


def _in_memory(status: DeploymentStatus) -> Config:
    """The document of a supervisor that was started without a file says nothing but the artifact."""
    text = new_document(status.name, status.artifact or "", [Placement(device="cpu")])
    return parse_config(text, "(the running supervisor)").config
