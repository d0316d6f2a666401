"""Who answers which `model` (spec 6): a deployment's name, or its artifact where only one has it; none: the default."""

from __future__ import annotations

from supervisor import names
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
        if group is not None and not group.is_removed:
            return group.lane
        same = [one.lane for one in groups.values() if one.deployment.artifact == name and not one.is_removed]
        return same[0] if len(same) == 1 else None

    def why_none(self, model: str | None) -> str:
        known = list(self._fleet.served)
        if model is None:
            return f"name a model: there is no default deployment ({names.listed(known)})"
        return names.no_such("model", model, known)
