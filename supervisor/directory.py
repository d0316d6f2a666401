"""Who answers which `model` (spec 6): a deployment's name, or its artifact where only one has it; none: the default."""

from __future__ import annotations

from supervisor.exchanges import Lane
from supervisor.fleet import Fleet


class Directory:
    """Looks deployments up in a fleet (`gateway.app.Directory`)."""

    def __init__(self, fleet: Fleet, default: str | None) -> None:
        self._fleet = fleet
        self.default = default

    @property
    def stopping(self) -> bool:
        return self._fleet.stopping

    def find(self, model: str | None) -> Lane | None:
        groups = self._fleet.groups
        name = self.default if model is None else model
        if name is None:
            return None
        group = groups.get(name)
        if group is not None:
            return group.lane
        same = [group.lane for group in groups.values() if group.deployment.artifact == name]
        return same[0] if len(same) == 1 else None

    def names(self) -> list[str]:
        return list(self._fleet.groups)
