"""Lists what this machine computes with (spec 4): cpu, cuda:N, rocm:N, mps; without torch, waking no GPU.

A driver that is broken, old or half installed is daily life: it costs the devices it drives and gives a
sentence in `DeviceReport.problems`, never an exception. Ordinals are those that a process started in this
environment would see: the supervisor's own `CUDA_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` are applied
when listing, and translated back by `visibility_env`, because the variable that an engine gets replaces the
supervisor's and does not refine it. Where a GPU is there, asking its driver can take long: call
`list_devices` off the event loop.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from engine.errors import StokerError

SIMULATE = "STOKER_SIMULATE_DEVICES"
MAX_SIMULATED = 64
"""Simulated GPUs of one kind; a deployment has at most 64 replicas."""

TOOL_LIMIT_S = 5.0
"""How long nvidia-smi may take; with a sick driver it hangs."""

KILL_LIMIT_S = 0.5
"""How long a killed tool is waited for."""

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Device:
    """Something a replica can be placed on. Memory in bytes, utilisation 0..1; None: not known."""

    id: str
    kind: str
    index: int
    name: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilisation: float | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The devices, cpu first, and one sentence for each thing that could not be asked."""

    devices: tuple[Device, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Card:
    """One GPU as its driver numbers it, before any visibility variable is applied."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    utilisation: float | None


class _Found(NamedTuple):
    cards: list[_Card]
    problems: list[str]


class _ToolFailed(Exception):
    """A vendor's tool could not be run or did not answer; the text says why."""


def import_nvml() -> Any | None:
    """NVIDIA's management library (`pip install stoker[nvidia]`), or None where the package is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def list_devices(
    environ: Mapping[str, str] = os.environ,
    *,
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
    nvml: Callable[[], Any | None] = import_nvml,
) -> DeviceReport:
    """Every device a replica may be placed on. Raises StokerError: malformed `STOKER_SIMULATE_DEVICES`."""
    cpu = cpu_device(proc)
    if environ.get(SIMULATE):
        return DeviceReport((cpu, *simulated_devices(environ[SIMULATE])))
    nvidia = _nvidia(environ, nvml)
    devices = [
        cpu,
        *_as_devices("cuda", _visible(nvidia.cards, environ.get("CUDA_VISIBLE_DEVICES"))),
        *_as_devices("rocm", _visible_to_hip(_kfd_cards(sys), environ)),
        *apple_devices(platform.system(), platform.machine()),
    ]
    return DeviceReport(tuple(devices), tuple(nvidia.problems))


def resolve_auto(devices: Sequence[Device]) -> str:
    """The device that `auto` means: the first GPU, else the CPU."""
    return next((device.id for device in devices if device.kind != "cpu"), "cpu")


# --- what one engine may see ----------------------------------------------------------------------

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""No GPU at all. HIP takes an empty variable as unset and shows every card, so its list names none."""


def visibility_env(device_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment by which an engine sees only the card of `device_id`, as its device 0 (spec 4).

    Simulated GPUs compute on the CPU, so their engines see no card. A kind without such a variable gets
    nothing. Raises StokerError where the supervisor itself does not see that ordinal.
    """
    kind, _, ordinal = device_id.partition(":")
    if kind == "cpu" or (kind in ("cuda", "rocm") and environ.get(SIMULATE)):
        return dict(HIDDEN)
    if kind == "cuda":
        entry = _own_entry(device_id, int(ordinal or 0), "CUDA_VISIBLE_DEVICES", environ)
        order = environ.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID"
        return {"CUDA_VISIBLE_DEVICES": entry, "CUDA_DEVICE_ORDER": order}
    if kind == "rocm":
        entry = _own_entry(device_id, int(ordinal or 0), _hip_variable(environ), environ)
        return {"HIP_VISIBLE_DEVICES": entry, "CUDA_VISIBLE_DEVICES": entry}
    return {}


def _own_entry(device_id: str, ordinal: int, variable: str, environ: Mapping[str, str]) -> str:
    """What names the card in `variable`: an entry of the supervisor's own list; without one, the ordinal."""
    own = environ.get(variable)
    if own is None or (not own and variable != "CUDA_VISIBLE_DEVICES"):
        return str(ordinal)
    entries = _entries(own)
    if ordinal < len(entries):
        return entries[ordinal]
    raise StokerError(
        f"device {device_id} is hidden: {variable}={own!r} shows {len(entries)} GPUs to Stoker; "
        "choose a lower number or start Stoker with that GPU visible"
    )


def _hip_variable(environ: Mapping[str, str]) -> str:
    """The variable HIP obeys: its own, else CUDA's; empty counts as unset (rocclr's `Device::init`)."""
    cuda_decides = environ.get("CUDA_VISIBLE_DEVICES") and not environ.get("HIP_VISIBLE_DEVICES")
    return "CUDA_VISIBLE_DEVICES" if cuda_decides else "HIP_VISIBLE_DEVICES"


def _entries(text: str) -> list[str]:
    """The entries of a visibility variable as drivers read it.

    What follows an entry that names nothing is ignored; a list that repeats itself shows no card.
    """
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not re.fullmatch(r"[0-9]{1,9}|(GPU|MIG)-.+", entry):
            break
        entries.append(entry)
    return [] if len(set(entries)) < len(entries) else entries


def _visible(cards: Sequence[_Card], text: str | None) -> list[tuple[int, _Card]]:
    """The cards that a visibility variable leaves, with the ordinals a process sees them by; None: all."""
    if text is None:
        return [(card.index, card) for card in cards]
    seen: list[tuple[int, _Card]] = []
    for ordinal, entry in enumerate(_entries(text)):
        card = _named(entry, cards)
        if card is None:
            break
        seen.append((ordinal, card))
    return seen


def _named(entry: str, cards: Sequence[_Card]) -> _Card | None:
    """The card an entry names, by number or by the beginning of its uuid; a MIG slice is its own card."""
    if entry.startswith("MIG-") and cards:
        return _Card(0, entry, entry, None, None, None)
    if entry.isdigit():
        return next((card for card in cards if card.index == int(entry)), None)
    matches = [card for card in cards if card.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _visible_to_hip(cards: Sequence[_Card], environ: Mapping[str, str]) -> list[tuple[int, _Card]]:
    """ROCr filters first and renumbers, HIP filters what is left."""
    left = _visible(cards, environ.get("ROCR_VISIBLE_DEVICES"))
    renumbered = [replace(card, index=ordinal) for ordinal, card in left]
    return _visible(renumbered, environ.get(_hip_variable(environ)) or None)


def _as_devices(kind: str, cards: Sequence[tuple[int, _Card]]) -> list[Device]:
    return [
        Device(
            id=f"{kind}:{ordinal}",
            kind=kind,
            index=ordinal,
            name=card.name,
            memory_total_bytes=card.memory_total_bytes,
            memory_used_bytes=card.memory_used_bytes,
            utilisation=card.utilisation,
        )
        for ordinal, card in cards
    ]


# --- cpu, Apple, simulated ------------------------------------------------------------------------


def cpu_device(proc: Path) -> Device:
    """The CPU with the host's memory; utilisation is the last minute's load by core, at most 1."""
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return Device("cpu", "cpu", 0, _cpu_name(proc), memory.total, used, min(1.0, load))


def _cpu_name(proc: Path) -> str:
    """The first model name of /proc/cpuinfo, from its beginning alone: it has a page for each core."""
    try:
        with (proc / "cpuinfo").open(encoding="utf-8", errors="replace") as file:
            match = re.search(r"^model name\s*:\s*(\S.*)$", file.read(4096), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine() or "CPU"


def apple_devices(system: str, machine: str) -> list[Device]:
    """`mps` on Apple silicon, whose GPU shares the machine's memory."""
    if (system, machine) != ("Darwin", "arm64"):
        return []
    return [Device("mps", "mps", 0, "Apple GPU", psutil.virtual_memory().total)]


def simulated_devices(text: str) -> list[Device]:
    """The GPUs of `STOKER_SIMULATE_DEVICES` (`cuda:4`, `cuda:2,rocm:1`); their engines compute on the CPU."""
    parts = [re.fullmatch(r"(cuda|rocm):([1-9][0-9]?)", part.strip()) for part in text.split(",")]
    counts = {part[1]: int(part[2]) for part in parts if part}
    if len(counts) < len(parts) or max(counts.values()) > MAX_SIMULATED:
        raise StokerError(
            f"{SIMULATE}={text[:80]!r}: expected cuda:N, rocm:N or both with a comma between them, "
            f"N from 1 to {MAX_SIMULATED} (cuda:4 shows four simulated GPUs)"
        )
    return [
        Device(f"{kind}:{index}", kind, index, f"simulated {kind} GPU", simulated=True)
        for kind, count in counts.items()
        for index in range(count)
    ]


# --- NVIDIA ---------------------------------------------------------------------------------------


def _nvidia(environ: Mapping[str, str], nvml: Callable[[], Any | None]) -> _Found:
    library = nvml()
    return _cards_of_smi(environ) if library is None else _cards_of_nvml(library)


def _cards_of_nvml(nvml: Any) -> _Found:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        absent = getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return _Found([], [] if absent else [f"NVIDIA GPUs cannot be listed: {error}"])
    try:
        return _counted_cards(nvml)
    finally:
        _optional(nvml, nvml.nvmlShutdown)


def _counted_cards(nvml: Any) -> _Found:
    found = _Found([], [])
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return _Found([], [f"NVIDIA GPUs cannot be counted: {error}"])
    for index in range(count):
        try:
            found.cards.append(_nvml_card(nvml, index))
        except nvml.NVMLError as error:
            found.problems.append(f"NVIDIA GPU {index} cannot be asked: {error}")
    return found


def _nvml_card(nvml: Any, index: int) -> _Card:
    """One card. What it does not support (memory under WSL, utilisation with MIG) is None, not an error."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    memory = _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    total, used = (int(memory.total), int(memory.used)) if memory else (None, None)
    return _Card(index, uuid, name, total, used, rates.gpu / 100 if rates else None)


def _optional(nvml: Any, call: Callable[..., Any], *args: Any) -> Any | None:
    try:
        return call(*args)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    """Older bindings answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _cards_of_smi(environ: Mapping[str, str]) -> _Found:
    tool = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if tool is None:
        return _Found([], [])
    fields = "--query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu"
    try:
        output = _run([tool, fields, "--format=csv,noheader,nounits"])
    except _ToolFailed as error:
        return _Found([], [f"NVIDIA GPUs cannot be listed: {error}"])
    rows = [[cell.strip() for cell in row] for row in csv.reader(output.splitlines()) if row]
    bad = [f"nvidia-smi said something unknown: {','.join(row)[:200]!r}" for row in rows if not _is_card(row)]
    return _Found([_smi_card(row) for row in rows if _is_card(row)], bad)


def _is_card(row: Sequence[str]) -> bool:
    return len(row) == 6 and _number(row[0]) is not None


def _smi_card(row: Sequence[str]) -> _Card:
    total, used, busy = (_number(cell) for cell in row[3:])
    return _Card(
        index=int(row[0]),
        uuid=row[1],
        name=row[2],
        memory_total_bytes=None if total is None else total * MIB,
        memory_used_bytes=None if used is None else used * MIB,
        utilisation=None if busy is None else busy / 100,
    )


def _run(command: Sequence[str]) -> str:
    """Output of a vendor's tool. One that hangs in its driver cannot even be killed: it is left behind."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
        )
    except OSError as error:
        raise _ToolFailed(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        output, _ = process.communicate(timeout=TOOL_LIMIT_S)
    except subprocess.TimeoutExpired:
        _abandon(process)
        raise _ToolFailed(f"{command[0]} did not answer in {TOOL_LIMIT_S:g} s") from None
    if process.returncode != 0:
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise _ToolFailed(f"{command[0]} ended with code {process.returncode}: {last[0][:200]}")
    return output


def _abandon(process: subprocess.Popen[str]) -> None:
    process.kill()
    if process.stdout:
        process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_LIMIT_S)


# --- AMD ------------------------------------------------------------------------------------------


def _kfd_cards(sys: Path) -> list[_Card]:
    """AMD's GPUs from the kernel driver's own topology, in the order ROCm numbers them; no tool, no library.

    Nodes without SIMDs are CPUs; a card that this container may not use shows no properties.
    """
    nodes = (sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*")
    properties = [_properties(node) for node in sorted(nodes, key=lambda node: (len(node.name), node.name))]
    gpus = [values for values in properties if values.get("simd_count", 0) > 0]
    return [_kfd_card(index, values, sys) for index, values in enumerate(gpus)]


def _properties(node: Path) -> dict[str, int]:
    """`name value` lines of a topology node."""
    pairs = [line.split() for line in _read(node / "properties").splitlines()]
    numbers = {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}
    return {name: number for name, number in numbers.items() if number is not None}


def _kfd_card(index: int, properties: Mapping[str, int], sys: Path) -> _Card:
    card = sys / f"class/drm/renderD{properties.get('drm_render_minor', -1)}/device"
    busy = _number(_read(card / "gpu_busy_percent"))
    return _Card(
        index=index,
        uuid=f"GPU-{properties.get('unique_id', 0):016x}",
        name=_read(card / "product_name").strip() or f"AMD {_gfx(properties.get('gfx_target_version', 0))}",
        memory_total_bytes=_number(_read(card / "mem_info_vram_total")),
        memory_used_bytes=_number(_read(card / "mem_info_vram_used")),
        utilisation=None if busy is None else min(1.0, busy / 100),
    )


def _gfx(version: int) -> str:
    """The architecture's usual name: 90402 is gfx942 (major, minor, stepping; the last in hexadecimal)."""
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else "GPU"


def _number(text: str) -> int | None:
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 25 else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
