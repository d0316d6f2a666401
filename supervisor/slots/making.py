"""From a deployment's placement to what a slot is made of: device, threads, environment, identity (spec 4, 8, 9)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence

import msgspec

from engine.errors import StokerError
from engine.messages import LaunchSpec
from supervisor.config.schema import Deployment, Placement
from supervisor.core import budget
from supervisor.host import devices as host_devices
from supervisor.host.cpu import affinity_cores, cpu_flags
from supervisor.host.launcher import engine_environment, identity_of
from supervisor.slots.base import AttachedMake, Make, ManagedMake

THREADS_VARIABLE = "STOKER_CPU_THREADS"
ADAPTIVE_VARIABLE = "STOKER_CPU_ADAPTIVE_THREADS"
CBWR_VARIABLE = "MKL_CBWR"


@dataclasses.dataclass(frozen=True)
class Machine:
    """The facts of this machine that a replica depends on. `endpoint`: where engines connect to.

    cpu_cores: the CPU budget. cores: the logical cores it may run on. cpu_flags: as /proc/cpuinfo names them.
    """

    endpoint: str
    cpu_cores: int
    devices: Sequence[host_devices.Device]
    environ: Mapping[str, str]
    cores: Sequence[int] = dataclasses.field(default_factory=affinity_cores)
    cpu_flags: Collection[str] = dataclasses.field(default_factory=cpu_flags)


def make(deployment: Deployment, place: Placement, machine: Machine, beside: Sequence[Placement]) -> Make:
    """What a replica at that place is made from. Raises StokerError where it cannot be.

    beside: the places of all replicas of the deployment, this one's too: those on one device share its memory.
    """
    if place.endpoint is not None:
        identity = identity_of({"deployment": deployment.name, "endpoint": place.endpoint, "model": place.model})
        return AttachedMake(identity, "attached", deployment.drain_timeout_s, place.endpoint, place.model)
    sharing = sum(other.device == place.device for other in beside) or 1
    spec = _launch_spec(deployment, place, machine, sharing)
    visibility = {} if spec.simulated else host_devices.visibility_env(spec.device, machine.environ)
    comparable = msgspec.structs.replace(spec, endpoint="", supervisor_pid=0, sharing=1)
    spread = _on_cpu(spec) and deployment.cpu.affinity == "spread"
    identity = identity_of({"deployment": deployment.name, "spec": msgspec.to_builtins(comparable), "spread": spread})
    anywhere = msgspec.structs.replace(comparable, device="", simulated=False, threads=0, adaptive=0, reproducible=None)
    generation = identity_of({"spec": msgspec.to_builtins(anywhere)})
    env = engine_environment(spec.threads, visibility, spec.reproducible)
    hung_s = deployment.restart_hung_ms / 1000
    return ManagedMake(identity, generation, deployment.drain_timeout_s, spec, env, hung_s, spread)


class EnvironmentProblem(StokerError):
    """A variable of Stoker's says nothing usable."""


def check_environment(environ: Mapping[str, str]) -> None:
    """Raises EnvironmentProblem for a variable of Stoker's that says nothing usable."""
    for variable, parse in ((THREADS_VARIABLE, budget.parse_threads), (ADAPTIVE_VARIABLE, budget.parse_adaptive)):
        if (text := environ.get(variable)) is not None:
            try:
                parse(text)
            except StokerError as error:
                raise EnvironmentProblem(f"{variable}: {error}") from None


def _launch_spec(deployment: Deployment, place: Placement, machine: Machine, sharing: int) -> LaunchSpec:
    """Everything of a launch that does not differ by incarnation."""
    device = place.device or "auto"
    if device == "auto":
        device = host_devices.resolve_auto(machine.devices)
    args = deployment.engine_args
    spec = LaunchSpec(
        endpoint=machine.endpoint,
        identity=b"",
        supervisor_pid=os.getpid(),
        replica="",
        incarnation=0,
        artifact=deployment.artifact or "",
        revision=deployment.revision,
        device=device,
        threads=_threads(deployment, machine),
        engine=args.engine,
        task=args.task,
        dtype=args.dtype,
        max_model_len=args.max_model_len,
        trust_remote_code=args.trust_remote_code,
        options=args.options,
        max_num_seqs=deployment.max_num_seqs,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        result_cache_entries=deployment.result_cache_entries,
        sharing=sharing,
        simulated=any(known.id == device and known.simulated for known in machine.devices),
    )
    if not _on_cpu(spec):
        return spec
    reproducible, adaptive = _reproducible(deployment, machine), _adaptive(deployment, machine)
    return msgspec.structs.replace(spec, reproducible=reproducible, adaptive=adaptive)


def _on_cpu(spec: LaunchSpec) -> bool:
    return spec.simulated or spec.device == "cpu"


def _reproducible(deployment: Deployment, machine: Machine) -> str | None:
    """MKL_CBWR of a CPU engine: what the user set wins; else by the CPU, unless it is `off`."""
    if (text := machine.environ.get(CBWR_VARIABLE)) is not None:
        return text
    return budget.cbwr_for(machine.cpu_flags) if deployment.cpu.reproducible == "auto" else None


def _adaptive(deployment: Deployment, machine: Machine) -> int:
    """The mode of learning: the environment over the config."""
    text = machine.environ.get(ADAPTIVE_VARIABLE)
    return deployment.cpu.adaptive if text is None else budget.parse_adaptive(text)


def _threads(deployment: Deployment, machine: Machine) -> int:
    """Intra-op threads of each replica: the environment over the config, capped by the budget."""
    configured = deployment.cpu.threads
    if (text := machine.environ.get(THREADS_VARIABLE)) is not None:
        configured = budget.parse_threads(text)
    return budget.threads_for(machine.cpu_cores, configured)
