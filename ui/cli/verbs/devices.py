"""`stoker devices`: what this machine computes with. Needs no supervisor."""

from __future__ import annotations

import click
import msgspec

from supervisor.control.messages import DeviceStatus
from supervisor.host.devices import Device, list_devices
from ui.cli import tables
from ui.cli.picture import device_table
from ui.cli.say import emit, json_text, say
from ui.cli.torch_build import remarks, torch_build
from ui.cli.verb import Verb, json_option


@click.command(
    cls=Verb,
    examples=("stoker devices", "stoker devices --json", "STOKER_SIMULATE_DEVICES=cuda:4 stoker devices"),
)
@json_option
def devices(as_json: bool) -> None:
    """List what this machine computes with.

    The CPU, and the GPUs as a process started here would see them: their names are what `device:` and
    `--device-ids` take. Where the torch of this environment does not fit them, standard error says so.
    STOKER_SIMULATE_DEVICES=cuda:4 shows four simulated GPUs, to try placement rules on a laptop.
    """
    report = list_devices()
    found = [_status(device) for device in report.devices]
    if as_json:
        emit(json_text(msgspec.json.encode(found)))
    else:
        tables.show(device_table(found))
    for problem in report.problems:
        say(f"warning: {problem}")
    for words in remarks(torch_build(), report.devices):
        say(words)


def _status(device: Device) -> DeviceStatus:
    """A device in the words of the inventory."""
    return DeviceStatus(
        id=device.id,
        name=device.name,
        memory_total_bytes=device.memory_total_bytes,
        memory_used_bytes=device.memory_used_bytes,
        utilisation=device.utilisation,
        simulated=device.simulated,
    )
