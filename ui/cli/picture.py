"""The inventory as a table: a row a deployment, a row a replica, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.control.messages import (
    DeploymentStatus,
    DeviceStatus,
    Inventory,
    ReplicaStatus,
    SupervisorStatus,
)
from ui.cli.tables import Cell, Column, Table
from ui.cli.units import count, duration, milliseconds, rate, share, size
from ui.looks import DEPLOYMENT_LOOKS, REPLICA_LOOKS, Look, Mood, shown_state

COLOURS = {
    Mood.GOOD: "green",
    Mood.BUSY: "cyan",
    Mood.WARN: "yellow",
    Mood.OUT: "magenta",
    Mood.BAD: "red",
    Mood.DIM: "bright_black",
}

COLUMNS = (
    Column("NAME"),
    Column("STATE"),
    Column("DEVICE", least_width=60),
    Column("PID", right=True, least_width=110),
    Column("IN-FLIGHT", right=True, least_width=48),
    Column("REQ/S", right=True, least_width=72),
    Column("P99", right=True, least_width=90),
    Column("FAILED", right=True, least_width=120),
    Column("RESTARTS", right=True, least_width=80),
    Column("CPU", right=True, least_width=130),
    Column("MEMORY", right=True, least_width=100),
    Column("AGE", right=True, least_width=96),
    Column("NOTE"),
)

DEVICE_COLUMNS = (
    Column("DEVICE"),
    Column("NAME"),
    Column("MEMORY", right=True),
    Column("USED", right=True),
    Column("BUSY", right=True),
)


def inventory_table(inventory: Inventory) -> Table:
    """Deployments and their replicas."""
    rows: list[list[Cell]] = []
    for deployment in inventory.deployments:
        rows.append(_deployment_row(deployment))
        rows += [_replica_row(replica) for replica in deployment.replicas]
    return Table(COLUMNS, rows)


def device_table(devices: list[DeviceStatus]) -> Table:
    """Devices of a machine."""
    return Table(DEVICE_COLUMNS, [_device_row(device) for device in devices])


def heading(supervisor: SupervisorStatus) -> str:
    """The supervisor in one line."""
    return (
        f"stoker {supervisor.name} {supervisor.state} on {supervisor.listen}, "
        f"up {duration(supervisor.uptime_s)}, "
        f"{supervisor.cpu_threads_used} of {count(supervisor.cpu_budget, 'CPU thread')} used, "
        f"memory {size(supervisor.memory_used_bytes)} of {size(supervisor.memory_total_bytes)}"
    )


def warnings_of(inventory: Inventory) -> list[str]:
    """All warnings, each with the deployment it is about."""
    own = [f"{each.name}: {text}" for each in inventory.deployments for text in each.warnings]
    return [*inventory.warnings, *own]


def drain_left(replica: ReplicaStatus) -> str:
    """How far a drain is: `3 left, 12s of 30s`."""
    ceiling_s = replica.in_state_s + replica.drain_left_s
    return f"{replica.in_flight} left, {duration(replica.in_state_s)} of {duration(ceiling_s)}"


def note(replica: ReplicaStatus) -> str:
    """Why a replica is in its state and what it waits for: `3 left, 12s of 30s`."""
    waits = []
    if replica.state == "draining":
        waits.append(drain_left(replica))
    if replica.ejected_s > 0:
        waits.append(f"back in {duration(replica.ejected_s)}")
    if replica.backoff_s > 0:
        waits.append(f"tried again in {duration(replica.backoff_s)}")
    if replica.restart_in_s > 0:
        waits.append(f"starts in {duration(replica.restart_in_s)}")
    return "; ".join(filter(None, [replica.reason, *waits]))


def _deployment_row(deployment: DeploymentStatus) -> list[Cell]:
    return [
        Cell(deployment.name, "bold"),
        _state(deployment.state, DEPLOYMENT_LOOKS),
        Cell(""),
        Cell(""),
        Cell(str(sum(replica.in_flight for replica in deployment.replicas))),
        Cell(rate(deployment.requests_per_s)),
        Cell(milliseconds(deployment.p99_ms)),
        Cell(str(deployment.failures)),
        Cell(str(deployment.restarts)),
        Cell(""),
        Cell(""),
        Cell(""),
        Cell(f"{deployment.ready_replicas} of {deployment.desired_replicas} ready"),
    ]


def _replica_row(replica: ReplicaStatus) -> list[Cell]:
    """A row; what is told of a process is blank where there is none, or it is somebody else's."""
    has_process = replica.pid is not None
    return [
        Cell(replica.name),
        _state(shown_state(replica), REPLICA_LOOKS),
        Cell(replica.device if replica.managed else replica.endpoint or replica.device),
        Cell("" if replica.pid is None else str(replica.pid)),
        Cell(str(replica.in_flight)),
        Cell(rate(replica.requests_per_s)),
        Cell(milliseconds(replica.p99_ms)),
        Cell(str(replica.failures)),
        Cell(str(replica.restarts)),
        Cell(f"{replica.cpu_percent:.0f}%" if has_process else ""),
        Cell(size(replica.rss_bytes) if has_process else ""),
        Cell(duration(replica.age_s) if has_process or not replica.managed else ""),
        Cell(note(replica)),
    ]


def _state(state: str, looks: Mapping[str, Look]) -> Cell:
    look = looks.get(state)
    return Cell(state) if look is None else Cell(state, COLOURS[look.mood], look.glyph)


def _device_row(device: DeviceStatus) -> list[Cell]:
    return [
        Cell(device.id),
        Cell(f"{device.name} (simulated)" if device.simulated and "simulated" not in device.name else device.name),
        Cell(size(device.memory_total_bytes)),
        Cell(size(device.memory_used_bytes)),
        Cell(share(device.utilisation)),
    ]
