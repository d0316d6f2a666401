"""The rules of the document that span several keys (spec 3). None knows of YAML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from supervisor.config.engine_options import ARTIFACTS, default_engine
from supervisor.config.schema import DeploymentSection, OutlierDetection, Placement
from supervisor.config.shapes import ARTIFACT, ArtifactKind, artifact_kind, same_endpoint
from supervisor.core.placement import MOST_REPLICAS


class Broken(NamedTuple):
    """A rule that does not hold, and where below the section.

    `leans_on`: a key that the rule compares with; where that one was refused, the rule has nothing to say.
    """

    where: tuple[str | int, ...]
    found: str
    allowed: str
    leans_on: tuple[str, ...] = ("nothing",)


def broken_rules(section: DeploymentSection) -> Iterator[Broken]:
    """The rules of spec 3 that span several keys of one deployment."""
    if section.replicas is None:
        single = Placement(device=section.device, endpoint=section.endpoint, model=section.model)
        yield from _placement_rules((), single)
    else:
        yield from _replicas_rules(section, section.replicas)
    yield from _artifact_rules(section)
    yield from _ejection_rules(section.outlier_detection)


def _replicas_rules(section: DeploymentSection, replicas: tuple[Placement, ...]) -> Iterator[Broken]:
    for key in ("device", "endpoint", "model"):
        if getattr(section, key) is not None:
            yield Broken((key,), f"{key} together with replicas", f"replicas or a deployment-level {key}")
    if not 1 <= len(replicas) <= MOST_REPLICAS:
        yield Broken(("replicas",), f"{len(replicas)} replicas", f"1 to {MOST_REPLICAS} replicas")
    seen = set()
    for index, placement in enumerate(replicas):
        yield from _placement_rules(("replicas", index), placement)
        server = (same_endpoint(placement.endpoint or ""), placement.model)
        if placement.attached and server in seen:
            yield Broken(("replicas", index), "the endpoint and model of an earlier replica", "each of them once")
        seen.add(server)


def _placement_rules(where: tuple[str | int, ...], placement: Placement) -> Iterator[Broken]:
    if placement.device is not None and placement.attached:
        yield Broken((*where, "endpoint"), "endpoint together with device", "a device or an endpoint")
    if placement.model is not None and placement.managed:
        yield Broken((*where, "model"), "model without endpoint", "model only with an endpoint")


def _artifact_rules(section: DeploymentSection) -> Iterator[Broken]:
    managed = any(placement.managed for placement in section.placements())
    kind = artifact_kind(section.artifact or "")
    engine = section.engine_args.engine or default_engine(section.artifact)
    if managed and section.artifact is None:
        allowed = f"for a managed replica: {ARTIFACT.allowed}"
        yield Broken(("artifact",), "no artifact", allowed, leans_on=("replicas",))
    if managed and kind is not None and kind not in ARTIFACTS[engine]:
        allowed = ", ".join(form.value for form in ArtifactKind if form in ARTIFACTS[engine])
        found = f'"{section.artifact}" with engine {engine}'
        yield Broken(("artifact",), found, allowed, leans_on=("engine_args", "engine"))
    if section.revision is not None and kind is not ArtifactKind.HUB:
        found = "a revision of what is not on the hub"
        allowed = f"revision only where artifact is {ArtifactKind.HUB.value}"
        yield Broken(("revision",), found, allowed, leans_on=("artifact",))


def _ejection_rules(ejection: OutlierDetection) -> Iterator[Broken]:
    longest, base = ejection.longest_ejection_ms, ejection.base_ejection_ms
    if longest < base:
        where = ("outlier_detection", "max_ejection_ms")
        allowed = "base_ejection_ms or more, at most an hour"
        leans_on = ("outlier_detection", "base_ejection_ms")
        yield Broken(where, f"{longest}, less than base_ejection_ms {base}", allowed, leans_on)
