"""What `stoker serve` is to run: a document, with what the flags say written into it (spec 3, 4).

Flags are edits of the document, there is no second state. Without `-c` a document made of MODEL lives in
memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import StokerError
from supervisor.config import saving, write_back
from supervisor.config.load import SUFFIXES, LoadedConfig, parse_config, read_text
from supervisor.config.schema import AUTO, Config, Deployment, Placement
from supervisor.config.shapes import STUB, artifact_kind
from supervisor.core.placement import GPU_PLATFORMS, place
from supervisor.host.devices import Device, list_devices, resolve_auto
from supervisor.names import nearest

DEFAULT_FILE = Path("stoker.yaml")
"""Taken where neither a model nor a file is given."""
NEW_DEPLOYMENT = "primary"
"""Name of the deployment in a new document."""
FORMS = "owner/name, a path (./NAME), pkg:NAME/path, package.module:Class or stub"
"""What may stand for MODEL."""
IN_MEMORY = "(command line)"
"""Named in problems of a document that has no file."""


class NothingToServe(StokerError):
    """Neither a model nor a config file."""


class NotAModel(StokerError):
    """What was given as MODEL cannot be one."""


class NotResizable(StokerError):
    """Flags that would change a deployment whose replicas somebody else runs."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What was said about the document on the command line. `count`: -dp."""

    model: str | None = None
    file: Path | None = None
    count: int | None = None
    device_ids: tuple[int, ...] | None = None
    platform: str | None = None

    @property
    def place(self) -> bool:
        """Whether they say anything about where replicas run."""
        return self.count is not None or self.device_ids is not None or self.platform is not None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A document ready to run. path: its file, None in memory. edited: the file does not say this yet."""

    loaded: LoadedConfig
    path: Path | None
    edited: bool

    def save(self) -> None:
        """Write the edit to its file. Raises NotSaved, and the document is fit to run all the same."""
        if self.path is not None and self.edited:
            saving.save(self.path, self.loaded.text)


def prepare(flags: Flags) -> Prepared:
    """Read, edit and check the document, and write nothing.

    Raises NothingToServe, NotAModel, NotResizable, ConfigError, CannotEdit, PlacementError.
    """
    if flags.model is not None:
        _check_model(flags.model)
    path = flags.file or (DEFAULT_FILE if flags.model is None and DEFAULT_FILE.exists() else None)
    if path is None and flags.model is None:
        raise NothingToServe(
            "nothing to serve: expected a MODEL (`stoker serve owner/name`) or a config file "
            f"(`stoker serve -c FILE`), and there is no ./{DEFAULT_FILE} here"
        )
    if flags.model is not None and (path is None or not path.exists()):
        text, before = write_back.new_document(NEW_DEPLOYMENT, flags.model, _new_placements(flags)), None
    else:
        assert path is not None, "without a model there is a file"
        before = read_text(path)
        text = _edited(before, str(path), flags)
    return Prepared(parse_config(text, str(path or IN_MEMORY)), path, text != before)


def missing_devices(config: Config, devices: Sequence[Device]) -> list[str]:
    """A sentence for each device that the config names and this machine does not have."""
    there = {device.id for device in devices} | {AUTO}
    named = {
        (placement.device, deployment.name)
        for deployment in config.deployments.values()
        for placement in deployment.replicas
        if placement.device is not None and _with_index(placement.device) not in there
    }
    listed = ", ".join(each.id for each in devices)
    return [
        f"{deployment}: there is no device {device} on this machine, only {listed}"
        for device, deployment in sorted(named)
    ]


def _check_model(model: str) -> None:
    """Raises NotAModel. A config file that lies here would else be taken for a hub id."""
    if Path(model).suffix in SUFFIXES and Path(model).is_file():
        raise NotAModel(f"{model} is a config file, and no MODEL: `stoker serve -c {model}`")
    if artifact_kind(model) is not None:
        return
    if Path(model).exists():
        raise NotAModel(f"MODEL {model!r}: where the path here is meant, give it a ./ (`stoker serve ./{model}`)")
    if nearest(model, [STUB]) is not None:
        hint = f"; did you mean {STUB}?"
    else:
        hint = f"; on the hub it is named with its owner: OWNER/{model}" if artifact_kind(f"owner/{model}") else ""
    raise NotAModel(f"MODEL {model!r}: expected {FORMS}{hint}")


def _edited(text: str, source: str, flags: Flags) -> str:
    """The text with what the flags say, all of it about the default deployment."""
    config = parse_config(text, source).config
    if flags.model is None and not flags.place:
        return text
    deployment = _default(config, source)
    if deployment.attached:
        raise NotResizable(
            f"{deployment.name} is attached to servers that Stoker does not start: give no MODEL, -dp, "
            f"--device-ids or --platform, or edit its replicas in {source}"
        )
    if flags.model is not None:
        text = write_back.set_artifact(text, deployment.name, flags.model)
    if flags.place:
        text = write_back.set_placements(text, deployment.name, _placements(flags, deployment))
    return text


def _default(config: Config, source: str) -> Deployment:
    if config.default_deployment is None:
        raise NothingToServe(
            f"{source} has {len(config.deployments)} deployments and no default one, so it is not clear "
            "which one the flags are about: set global.model_catalog.system.decision_model.deployment"
        )
    return config.deployments[config.default_deployment]


def _new_placements(flags: Flags) -> list[Placement]:
    return _placements(flags, Deployment(name=NEW_DEPLOYMENT)) if flags.place else [Placement(device=AUTO)]


def _placements(flags: Flags, deployment: Deployment) -> list[Placement]:
    devices = list_devices().devices
    platform = flags.platform
    if platform is None and not deployment.placement_authored:
        platform = resolve_auto(devices).partition(":")[0]
    places = place(
        count=flags.count,
        device_ids=flags.device_ids,
        platform=platform,
        authored=[placement.device or AUTO for placement in deployment.replicas],
        available=[device.id for device in devices],
    )
    return [Placement(device=device) for device in places]


def _with_index(device: str) -> str:
    """`cuda` means `cuda:0`."""
    return f"{device}:0" if device in GPU_PLATFORMS else device
