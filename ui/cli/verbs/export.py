"""`stoker export`: the same supervisor, started by a service manager, or watched by one."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from pathlib import Path

import click

from supervisor.config.load import LoadedConfig, load_config
from supervisor.config.shapes import ArtifactKind, artifact_kind, is_deployment_name
from supervisor.core.grace import stop_grace_s
from ui.cli.document import DEFAULT_FILE
from ui.cli.export import grafana, kubernetes, systemd
from ui.cli.say import emit, say
from ui.cli.verb import Verb, config_option

DEFAULT_PORT = 8100
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@click.command(
    cls=Verb,
    examples=(
        "stoker export systemd -c stoker.yaml | sudo tee /etc/systemd/system/stoker.service",
        "stoker export k8s -c stoker.yaml --image registry.example/stoker:1 | kubectl apply -f -",
        "stoker export grafana > stoker-dashboard.json",
    ),
)
@click.argument("kind", metavar="systemd|k8s|grafana", type=click.Choice(["systemd", "k8s", "grafana"]))
@config_option(f"Config file that is served; it is read and checked now. Unset: {DEFAULT_FILE}.")
@click.option(
    "--name",
    envvar="STOKER_NAME",
    show_envvar=True,
    metavar="NAME",
    help="Name of the supervisor; unset: the config's.",
)
@click.option(
    "--image", metavar="IMAGE", help="k8s: an image with Stoker in it. Unset: a name that has to be replaced."
)
@click.option("--namespace", metavar="NAMESPACE", help="k8s: unset: whatever kubectl is set to.")
def export(kind: str, file: Path | None, name: str | None, image: str | None, namespace: str | None) -> None:
    """Print a systemd unit, k8s manifests, or a Grafana dashboard.

    systemd: a unit that serves a config file. It starts the `stoker` of this environment as the user who asks, in the
    folder that is the current one now.

    k8s: ConfigMap, Deployment and Service. Its CPU is the threads of all replicas and one core for the supervisor; GPUs
    are those that the config names.

    The time that either gives it to stop follows from the config's `drain_timeout_s`.

    grafana: a dashboard of the metrics that every supervisor exports, for Import in Grafana. It needs no config.
    """
    if kind != "k8s" and (image is not None or namespace is not None):
        raise click.UsageError("--image and --namespace go with k8s")
    if image is not None and not _IMAGE.fullmatch(image):
        raise click.UsageError(f"--image: expected a name such as registry.example/stoker:1, found {image!r}")
    if namespace is not None and not _LABEL.fullmatch(namespace):
        raise click.UsageError(f"--namespace: expected 1 to 63 of a-z, 0-9 and '-', found {namespace!r}")
    if kind == "grafana":
        if file is not None:
            raise click.UsageError("the dashboard is the same for every config: give no -c")
        emit(json.dumps(grafana.dashboard(), indent=2))
        return
    path = file or DEFAULT_FILE
    loaded = load_config(path)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    named = name or loaded.config.stoker.name
    if not is_deployment_name(named):
        raise click.UsageError(f"--name: expected 1 to 64 letters, digits, '.', '_' or '-', found {named!r}")
    if kind == "systemd":
        emit(systemd.unit(_unit_facts(loaded, path, named)))
        return
    facts = _pod_facts(loaded, named, image, namespace)
    emit(kubernetes.manifests(facts))
    for words in _to_be_done(loaded, facts):
        say(words)


# ------------------------------------------------------------------------------------------------- systemd


def _unit_facts(loaded: LoadedConfig, file: Path, name: str) -> systemd.Facts:
    return systemd.Facts(
        name=name,
        command=_this_stoker(),
        config=file.absolute(),
        folder=Path.cwd(),
        user=_user(),
        grace_s=_grace_s(loaded),
        key_variable=loaded.config.stoker.api_key_env,
    )


def _grace_s(loaded: LoadedConfig) -> int:
    return stop_grace_s(deployment.drain_timeout_s for deployment in loaded.config.deployments.values())


def _this_stoker() -> list[str]:
    """The command of this environment; where it has none, its Python with our module."""
    script = Path(sysconfig.get_path("scripts"), "stoker")
    if os.access(script, os.X_OK):
        return [str(script)]
    return [sys.executable, "-P", "-m", "ui.cli.main"]


def _user() -> str:
    """The name of the user that this process acts for; the number where there is no name."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


# ------------------------------------------------------------------------------------------------- Kubernetes


def _pod_facts(loaded: LoadedConfig, name: str, image: str | None, namespace: str | None) -> kubernetes.Facts:
    replicas = _replicas(loaded)
    unset = [each for each in loaded.config.deployments.values() if each.cpu.threads is None and not each.attached]
    on_cpu = [each.threads for each in replicas if each.device == "cpu"]
    return kubernetes.Facts(
        name=name,
        image=image,
        namespace=namespace,
        text=loaded.text,
        port=_port(loaded.config.stoker.listen),
        replicas=replicas,
        threads=max(on_cpu) if on_cpu and len(unset) == len(loaded.config.deployments) else None,
        grace_s=_grace_s(loaded),
        key_variable=loaded.config.stoker.api_key_env,
    )


def _replicas(loaded: LoadedConfig) -> list[kubernetes.Replica]:
    """The managed replicas, with the threads that they would have on this machine."""
    from supervisor.host.cpu import cpu_budget
    from supervisor.host.devices import list_devices
    from supervisor.slots.base import ManagedMake
    from supervisor.slots.making import Machine, make

    machine = Machine("", cpu_budget().cores, list_devices().devices, os.environ)
    found = []
    for deployment in loaded.config.deployments.values():
        for place in deployment.replicas:
            made = make(deployment, place, machine, deployment.replicas)
            if isinstance(made, ManagedMake):
                device = made.spec.device
                whole = f"{device}:0" if device in kubernetes.GPU_RESOURCES else device
                found.append(kubernetes.Replica(deployment.name, whole, made.spec.threads))
    return found


def _port(listen: str) -> int:
    """The port of the config, unless it is none that a pod could announce."""
    found = re.search(r":([1-9][0-9]*)$", listen)
    return int(found[1]) if found else DEFAULT_PORT


def _to_be_done(loaded: LoadedConfig, facts: kubernetes.Facts) -> list[str]:
    """What only the user can see to."""
    said = []
    if facts.image is None:
        said.append(f"no --image was given: replace {kubernetes.NO_IMAGE}")
    if facts.key_variable is None:
        said.append("no API key is set (stoker.api_key_env): whoever reaches the Service can use and watch it")
    for deployment in loaded.config.deployments.values():
        if deployment.artifact and artifact_kind(deployment.artifact) not in (
            ArtifactKind.HUB,
            ArtifactKind.STUB,
            None,
        ):
            said.append(f"{deployment.name}: {deployment.artifact} has to be in the image")
    cards = sorted(
        {each.device for each in facts.replicas if each.device.partition(":")[0] in kubernetes.GPU_RESOURCES}
    )
    if cards and {int(card.partition(":")[2]) for card in cards} != set(range(len(cards))):
        said.append(f"a pod counts its GPUs from 0, and the config names {', '.join(cards)}: number them anew")
    return said
