"""A control socket with a fleet behind it and no supervisor: what the source and the terminal tests attach to.

`python -m tests.dashboard.served PATH --replicas 64` serves a fleet that moves, until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator

import msgspec
import zmq

from supervisor.control.events import Commanded, EventLog
from supervisor.control.messages import (
    Accepted,
    Answer,
    AnyCommand,
    GetLogs,
    GetReplica,
    GetStatus,
    Inventory,
    Lines,
    LogLine,
    Refused,
    Status,
)
from supervisor.control.server import ControlServer
from tests.dashboard.fleet import details_of, fleet_of_twelve, log_lines, many, story, swayed
from ui.dashboard.model import find_replica


@dataclasses.dataclass
class Served:
    """A fleet as data behind a real control socket."""

    inventory: Inventory
    pid: int = 4711
    events: EventLog = dataclasses.field(default_factory=EventLog)
    asked: list[AnyCommand] = dataclasses.field(default_factory=list)
    lines: list[LogLine] = dataclasses.field(default_factory=log_lines)
    server: ControlServer | None = None

    def handle(self, command: AnyCommand, caller: bytes) -> Answer:
        match command:
            case GetStatus():
                return Status(inventory=self.now())
            case GetReplica():
                status = find_replica(self.now(), command.replica)
                return Refused(message=f"no {command.replica}") if status is None else details_of(status)
            case GetLogs():
                wanted = [line for line in self.lines if command.replica in (None, line.replica)]
                wanted = [line for line in wanted if command.deployment in (None, line.replica.rpartition("/")[0])]
                return Lines(lines=wanted[-command.lines :])
            case _:
                self.asked.append(command)
                self.events.publish(Commanded(command=type(command).__name__, target="demo"))
                return Accepted(text=f"{type(command).__name__} accepted")

    def now(self) -> Inventory:
        supervisor = msgspec.structs.replace(self.inventory.supervisor, pid=self.pid, last_event=self.events.last_seq)
        return msgspec.structs.replace(self.inventory, supervisor=supervisor)

    def write(self, lines: list[LogLine]) -> None:
        """A replica writes."""
        self.lines.extend(lines)
        assert self.server is not None
        self.server.on_log(lines)


@contextlib.asynccontextmanager
async def serving(path: str, served: Served) -> AsyncIterator[Served]:
    """Bind the socket at `path` for a while."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    served.server = ControlServer(context, path, served.events, served.handle, served.now, lambda why: None)
    try:
        yield served
    finally:
        served.server.close()
        context.destroy(linger=0)


async def _serve(path: str, replicas: int) -> None:
    moment = 0
    base = many(replicas) if replicas else fleet_of_twelve()
    served = Served(base, pid=os.getpid())
    for event in story():
        served.events.publish(event)
    async with serving(path, served):
        while True:
            served.inventory = many(replicas, moment) if replicas else swayed(base, moment)
            await asyncio.sleep(0.5)
            moment += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--replicas", type=int, default=0, help="0: the fleet of twelve")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.path, arguments.replicas))
