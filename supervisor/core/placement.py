"""Where the replicas of a deployment go: what `-dp`, `--device-ids` and `scale` make of the list (spec 4).

Pure: the devices that exist are passed in. Device names are `cpu`, `mps`, `cuda:0`, `rocm:1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from engine.errors import StokerError

MOST_REPLICAS = 64
GPU_PLATFORMS = ("cuda", "rocm")

Place = TypeVar("Place")
"""A device's name, or a replica's placement with it."""


class PlacementError(StokerError):
    """The replicas cannot be placed as asked."""


def check_count(count: int) -> None:
    """Raises PlacementError unless a deployment may have that many replicas."""
    if not 1 <= count <= MOST_REPLICAS:
        raise PlacementError(f"a deployment has 1 to {MOST_REPLICAS} replicas, not {count}")


def resize(existing: Sequence[Place], count: int) -> list[Place]:
    """The list in its order, cut or repeated in turn: `existing[i % len]`."""
    check_count(count)
    return [existing[index % len(existing)] for index in range(count)]


def place(
    *,
    count: int | None,
    device_ids: Sequence[int] | None,
    platform: str | None,
    authored: Sequence[str],
    available: Sequence[str],
) -> list[str]:
    """The devices of a deployment's replicas, from the flags of `serve`.

    count: `-dp`. device_ids: `--device-ids`. platform: `--platform`, else that of the authored devices.
    authored: devices that the document names. available: devices of this machine.
    Raises PlacementError: ids repeated, their number neither one nor `count`, too few GPUs.
    """
    kind = platform or _platform_of(authored)
    if device_ids is not None:
        return _by_ids(count or max(1, len(device_ids)), device_ids, kind)
    wanted = count or max(1, len(authored))
    check_count(wanted)
    if platform and any(_kind(device) != platform for device in authored):
        authored = []
    if authored:
        return resize(authored, wanted)
    if kind in GPU_PLATFORMS:
        return _first_gpus(kind, wanted, available)
    return [kind or "cpu"] * wanted


def _by_ids(count: int, device_ids: Sequence[int], kind: str | None) -> list[str]:
    check_count(count)
    if kind not in GPU_PLATFORMS:
        raise PlacementError(f"--device-ids goes with --platform cuda or rocm, not {kind or 'cpu'}")
    repeated = sorted({number for number in device_ids if list(device_ids).count(number) > 1})
    if repeated:
        raise PlacementError(f"--device-ids names {repeated[0]} twice; use -dp N to run N replicas on one device")
    if len(device_ids) == 1:
        return [f"{kind}:{device_ids[0]}"] * count
    if len(device_ids) != count:
        raise PlacementError(f"--device-ids needs one id or {count} of them (-dp {count}), not {len(device_ids)}")
    return [f"{kind}:{number}" for number in device_ids]


def _first_gpus(kind: str, count: int, available: Sequence[str]) -> list[str]:
    gpus = [device for device in available if _kind(device) == kind]
    if not gpus:
        raise PlacementError(
            f"there is no {kind} device on this machine, see `stoker devices`; --platform cpu computes without one"
        )
    if len(gpus) < count:
        raise PlacementError(
            f"-dp {count} needs {count} {kind} devices of its own, found {len(gpus)}; "
            "pass --device-ids to share one on purpose"
        )
    return gpus[:count]


def _kind(device: str) -> str:
    return device.split(":", 1)[0]


def _platform_of(devices: Sequence[str]) -> str | None:
    kinds = {_kind(device) for device in devices}
    return kinds.pop() if len(kinds) == 1 else None
