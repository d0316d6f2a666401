"""Devices of fake machines: a fake NVML, a fake nvidia-smi on PATH, a fake /sys (spec 4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import StokerError
from supervisor.host import devices
from supervisor.host.devices import DeviceReport, apple_devices, list_devices, resolve_auto, visibility_env

GIB = 1024**3


class NvmlError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class FakeNvml:
    """NVML as nvidia-ml-py has it; the card `lost` does not answer, `mute` knows neither memory nor load."""

    NVMLError = NvmlError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12

    def __init__(
        self,
        cards: int = 0,
        broken: NvmlError | None = None,
        lost: int | None = None,
        mute: int | None = None,
    ) -> None:
        self.cards, self.broken, self.lost, self.mute = cards, broken, lost, mute
        self.users = 0

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.broken
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == self.lost:
            raise NvmlError(15, "GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}{handle}{handle}-aaaa"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return self.unless_mute(handle, SimpleNamespace(total=141 * GIB, used=handle * GIB))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return self.unless_mute(handle, SimpleNamespace(gpu=25))

    def unless_mute(self, handle: int, answer: SimpleNamespace) -> SimpleNamespace:
        if handle == self.mute:
            raise NvmlError(3, "Not Supported")
        return answer


def no_nvml() -> None:
    return None


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., DeviceReport]:
    """`list_devices` on a machine without GPUs, without tools and without NVML, unless the test adds them."""

    def run(environ: dict[str, str] | None = None, nvml: Any = None) -> DeviceReport:
        path = {"PATH": str(tmp_path / "bin"), **(environ or {})}
        return list_devices(path, sys=tmp_path / "sys", nvml=(lambda: nvml) if nvml else no_nvml)

    return run


def gpu_ids(report: DeviceReport) -> list[str]:
    return [device.id for device in report.devices if device.kind != "cpu"]


def write_tool(folder: Path, script: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    tool = folder / "bin/nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


# --- the CPU -----------------------------------------------------------------------------------


def test_the_cpu_is_always_first_with_name_and_memory(listed: Callable[..., DeviceReport]) -> None:
    report = listed()
    cpu = report.devices[0]
    assert (cpu.id, cpu.kind, cpu.index, cpu.simulated) == ("cpu", "cpu", 0, False)
    assert cpu.name and cpu.memory_total_bytes and 0 < (cpu.memory_used_bytes or 0) < cpu.memory_total_bytes
    assert 0 <= (cpu.utilisation or 0) <= 1
    assert (gpu_ids(report), report.problems) == ([], ())


# --- NVIDIA through NVML -----------------------------------------------------------------------


def test_nvml_cards_have_memory_and_utilisation(listed: Callable[..., DeviceReport]) -> None:
    nvml = FakeNvml(cards=2)
    report = listed(nvml=nvml)
    card = report.devices[2]
    assert (card.id, card.kind, card.index, card.name) == ("cuda:1", "cuda", 1, "NVIDIA H200")
    assert (card.memory_total_bytes, card.memory_used_bytes, card.utilisation) == (141 * GIB, GIB, 0.25)
    assert nvml.users == 0


def test_a_lost_card_costs_itself_and_a_sentence(listed: Callable[..., DeviceReport]) -> None:
    report = listed(nvml=FakeNvml(cards=3, lost=1))
    assert gpu_ids(report) == ["cuda:0", "cuda:2"]
    assert report.problems == ("NVIDIA GPU 1 cannot be asked: GPU is lost",)


def test_what_a_card_does_not_support_is_unknown(listed: Callable[..., DeviceReport]) -> None:
    card = listed(nvml=FakeNvml(cards=1, mute=0)).devices[1]
    assert (card.memory_total_bytes, card.memory_used_bytes, card.utilisation) == (None, None, None)


def test_a_broken_driver_is_a_problem_and_not_an_error(listed: Callable[..., DeviceReport]) -> None:
    report = listed(nvml=FakeNvml(broken=NvmlError(18, "Driver/library version mismatch")))
    assert gpu_ids(report) == []
    assert report.problems == ("NVIDIA GPUs cannot be listed: Driver/library version mismatch",)


def test_no_driver_at_all_is_not_worth_a_word(listed: Callable[..., DeviceReport]) -> None:
    assert listed(nvml=FakeNvml(broken=NvmlError(12, "NVML Shared Library Not Found"))).problems == ()


# --- NVIDIA through nvidia-smi -----------------------------------------------------------------


def test_without_nvml_the_tool_is_asked(listed: Callable[..., DeviceReport], tmp_path: Path) -> None:
    write_tool(
        tmp_path,
        "echo '0, GPU-aa, NVIDIA L4, 23034, 1024, 50'; echo '1, GPU-bb, Orin, [N/A], [N/A], [Not Supported]'",
    )
    report = listed()
    first, second = report.devices[1:]
    assert (first.id, first.name, first.memory_used_bytes, first.utilisation) == (
        "cuda:0",
        "NVIDIA L4",
        GIB,
        0.5,
    )
    assert (second.id, second.memory_total_bytes, second.utilisation) == ("cuda:1", None, None)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo NVIDIA-SMI has failed; exit 9", "ended with code 9: NVIDIA-SMI has failed"),
        ("exit 1", "ended with code 1: no output"),
        ("echo No devices were found", "said something unknown: 'No devices were found'"),
        ("exec /bin/sleep 60", "did not answer in 0.1 s"),
    ],
)
def test_a_failing_tool_is_a_problem_and_not_an_error(
    listed: Callable[..., DeviceReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    sentence: str,
) -> None:
    monkeypatch.setattr(devices, "TOOL_LIMIT_S", 0.1 if "sleep" in script else 5.0)
    write_tool(tmp_path, script)
    report = listed()
    assert gpu_ids(report) == []
    assert len(report.problems) == 1 and sentence in report.problems[0]


def test_a_tool_that_is_no_program_is_a_problem(listed: Callable[..., DeviceReport], tmp_path: Path) -> None:
    write_tool(tmp_path, "")
    (tmp_path / "bin/nvidia-smi").write_bytes(b"\x7fnot a program")
    assert "cannot be run" in listed().problems[0]


# --- AMD ---------------------------------------------------------------------------------------


def amd_node(root: Path, number: int, minor: int, simds: int = 440) -> None:
    node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
    card = root / f"sys/class/drm/renderD{minor}/device"
    node.mkdir(parents=True)
    card.mkdir(parents=True, exist_ok=True)
    (node / "properties").write_text(
        f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version 90402\n"
        f"drm_render_minor {minor}\nunique_id {number}\nstrange\n"
    )
    (card / "mem_info_vram_total").write_text(f"{192 * GIB}\n")
    (card / "mem_info_vram_used").write_text(f"{number * GIB}\n")
    (card / "gpu_busy_percent").write_text("75\n")


def test_amd_cards_come_from_the_kernel_in_rocm_order(listed: Callable[..., DeviceReport], tmp_path: Path) -> None:
    amd_node(tmp_path, 0, 0, simds=0)
    amd_node(tmp_path, 10, 129)
    amd_node(tmp_path, 2, 128)
    (tmp_path / "sys/class/drm/renderD129/device/product_name").write_text("AMD Instinct MI300X\n")
    first, second = listed().devices[1:]
    assert (first.id, first.name, first.memory_used_bytes) == ("rocm:0", "AMD gfx942", 2 * GIB)
    assert (second.id, second.name, second.utilisation) == ("rocm:1", "AMD Instinct MI300X", 0.75)


def test_a_card_without_readable_properties_is_not_listed(listed: Callable[..., DeviceReport], tmp_path: Path) -> None:
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/1").mkdir(parents=True)
    assert gpu_ids(listed()) == []


# --- Apple, simulated, auto --------------------------------------------------------------------


def test_apple_silicon_has_mps() -> None:
    assert [device.id for device in apple_devices("Darwin", "arm64")] == ["mps"]
    assert apple_devices("Darwin", "x86_64") == apple_devices("Linux", "arm64") == []


def test_simulated_gpus_stand_in_for_the_real_ones(listed: Callable[..., DeviceReport]) -> None:
    report = listed({"STOKER_SIMULATE_DEVICES": "cuda:2, rocm:1"}, FakeNvml(cards=8))
    assert gpu_ids(report) == ["cuda:0", "cuda:1", "rocm:0"]
    assert [device.simulated for device in report.devices] == [False, True, True, True]


@pytest.mark.parametrize(
    "text",
    ["cuda", "cuda:0", "cuda:65", "cuda:-1", "mps:1", "cuda:1,cuda:2", "cuda:1,", ",", "cuda:1;rocm:1", " "],
)
def test_a_malformed_simulation_says_what_is_allowed(listed: Callable[..., DeviceReport], text: str) -> None:
    with pytest.raises(StokerError, match="expected cuda:N, rocm:N or both"):
        listed({"STOKER_SIMULATE_DEVICES": text})


def test_auto_is_the_first_gpu_and_else_the_cpu(listed: Callable[..., DeviceReport]) -> None:
    assert resolve_auto(listed(nvml=FakeNvml(cards=2)).devices) == "cuda:0"
    assert resolve_auto(listed().devices) == "cpu"
    assert resolve_auto([]) == "cpu"


# --- visibility --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("", []),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("0,-1,2", [0]),
        ("0,7,2", [0]),
        ("1,1", []),
        ("GPU-2222,GPU-0", [2, 0]),
        ("GPU-", []),
        ("NoDevFiles", []),
    ],
)
def test_ordinals_are_those_a_process_would_see(
    listed: Callable[..., DeviceReport], visible: str, seen: list[int]
) -> None:
    report = listed({"CUDA_VISIBLE_DEVICES": visible}, FakeNvml(cards=4))
    gpus = [device for device in report.devices if device.kind == "cuda"]
    assert [device.id for device in gpus] == [f"cuda:{ordinal}" for ordinal in range(len(seen))]
    assert [device.memory_used_bytes for device in gpus] == [card * GIB for card in seen]


def test_a_mig_slice_is_a_device_of_its_own(listed: Callable[..., DeviceReport]) -> None:
    report = listed({"CUDA_VISIBLE_DEVICES": "MIG-abc"}, FakeNvml(cards=1))
    assert [(device.id, device.name) for device in report.devices[1:]] == [("cuda:0", "MIG-abc")]


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, [1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"HIP_VISIBLE_DEVICES": ""}, [1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000003"}, [3]),
    ],
)
def test_amd_visibility_follows_rocr_then_hip_then_cuda(
    listed: Callable[..., DeviceReport], tmp_path: Path, environ: dict[str, str], seen: list[int]
) -> None:
    for number in (1, 2, 3):
        amd_node(tmp_path, number, 127 + number)
    gpus = listed(environ).devices[1:]
    assert [device.id for device in gpus] == [f"rocm:{ordinal}" for ordinal in range(len(seen))]
    assert [(device.memory_used_bytes or 0) // GIB for device in gpus] == seen


@pytest.mark.parametrize(
    ("device", "environ", "expected"),
    [
        ("cpu", {}, {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}),
        ("cuda:1", {}, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ("cuda", {}, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (
            "cuda:1",
            {"CUDA_VISIBLE_DEVICES": "5,GPU-77", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
            {"CUDA_VISIBLE_DEVICES": "GPU-77", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
        ),
        ("rocm:2", {}, {"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "2"}),
        ("rocm:1", {"HIP_VISIBLE_DEVICES": "6,4"}, {"HIP_VISIBLE_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "4"}),
        ("rocm:0", {"CUDA_VISIBLE_DEVICES": "3"}, {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}),
        ("rocm:0", {"HIP_VISIBLE_DEVICES": ""}, {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}),
        (
            "cuda:3",
            {"STOKER_SIMULATE_DEVICES": "cuda:4"},
            {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"},
        ),
        ("mps", {}, {}),
        ("xpu:1", {}, {}),
    ],
)
def test_an_engine_sees_only_its_card(device: str, environ: dict[str, str], expected: dict[str, str]) -> None:
    assert visibility_env(device, environ) == expected


@pytest.mark.parametrize("visible", ["", "0,1", "0,-1,2"])
def test_a_card_hidden_from_stoker_cannot_be_given_to_an_engine(visible: str) -> None:
    with pytest.raises(StokerError, match="cuda:2 is hidden: CUDA_VISIBLE_DEVICES"):
        visibility_env("cuda:2", {"CUDA_VISIBLE_DEVICES": visible})


@given(visible=st.lists(st.integers(0, 3), unique=True))
def test_the_variable_of_an_engine_leads_to_the_card_that_was_listed(visible: list[int]) -> None:
    environ = {"PATH": "", "CUDA_VISIBLE_DEVICES": ",".join(map(str, visible))}
    nvml = FakeNvml(cards=4)
    listing = list_devices(environ, sys=Path("/nowhere"), nvml=lambda: nvml)
    for device in listing.devices[1:]:
        inside = list_devices(
            {**environ, **visibility_env(device.id, environ)}, sys=Path("/nowhere"), nvml=lambda: nvml
        )
        assert [(seen.id, seen.memory_used_bytes) for seen in inside.devices[1:]] == [
            ("cuda:0", device.memory_used_bytes)
        ]
