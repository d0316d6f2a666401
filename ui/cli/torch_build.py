"""What the torch of this environment was built for, read from its files: neither the supervisor nor a command imports
it (spec 2), and it would take a second.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from supervisor.core.placement import GPU_PLATFORMS
from supervisor.host.devices import Device

CPU_BUILD = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cpu"
ALL_BUILDS = "https://pytorch.org/get-started/locally"

_SAID = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= '([^'\n]+)'", re.MULTILINE)


class Build(NamedTuple):
    """platform: `cuda`, `rocm` or `cpu`."""

    version: str
    platform: str


def torch_build() -> Build | None:
    """The torch that engines here would import; None where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return build_at(Path(spec.origin).parent)


def build_at(package: Path) -> Build | None:
    """The torch in that folder; None where its files do not say."""
    try:
        said = dict(_SAID.findall((package / "version.py").read_text("utf-8")))
    except (OSError, UnicodeDecodeError):
        return None
    if "__version__" not in said:
        return None
    return Build(said["__version__"], "cuda" if "cuda" in said else "rocm" if "hip" in said else "cpu")


def remarks(build: Build | None, devices: Sequence[Device]) -> list[str]:
    """What does not fit between a torch and the devices of this machine, and what to do about it."""
    if build is None:
        return [f"no torch is installed here, which `engine: transformers` computes with: see {ALL_BUILDS}"]
    cards = [each for each in devices if each.kind in GPU_PLATFORMS and not each.simulated]
    if not cards and build.platform != "cpu":
        return [
            f"torch {build.version} is built for {build.platform} and there is no such card here: it computes on the "
            f"CPU, as the CPU build does, which is gigabytes smaller ({CPU_BUILD})"
        ]
    unusable = [each.id for each in cards if each.kind != build.platform]
    if unusable:
        return [
            f"warning: torch {build.version} is built for {build.platform} and cannot use {', '.join(unusable)}: "
            f"install one that is built for it ({ALL_BUILDS})"
        ]
    return []
