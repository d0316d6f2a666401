"""Whether torch and the devices of a machine fit, without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.host.devices import Device
from tests.cli.conftest import Stoker
from ui.cli.torch_build import Build, build_at, remarks

CPU = Device("cpu", "cpu", 0, "a CPU")
CARD = Device("cuda:0", "cuda", 0, "a card")
SIMULATED = Device("cuda:0", "cuda", 0, "a card", simulated=True)

VERSION = """\
from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda}
hip: Optional[str] = {hip}
"""


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "build"),
    [
        ("2.13.0+cpu", "None", "None", Build("2.13.0+cpu", "cpu")),
        ("2.13.0+cu130", "'13.0'", "None", Build("2.13.0+cu130", "cuda")),
        ("2.13.0+rocm7", "None", "'7.0'", Build("2.13.0+rocm7", "rocm")),
    ],
)
def test_the_build_is_read_from_its_files(tmp_path: Path, version: str, cuda: str, hip: str, build: Build) -> None:
    (tmp_path / "version.py").write_text(VERSION.format(version=version, cuda=cuda, hip=hip))
    assert build_at(tmp_path) == build


def test_a_build_that_does_not_say_is_none(tmp_path: Path) -> None:
    assert build_at(tmp_path) is None
    (tmp_path / "version.py").write_text("something = 'else'\n")
    assert build_at(tmp_path) is None


@pytest.mark.parametrize(
    ("build", "devices", "said"),
    [
        (Build("2+cu130", "cuda"), [CPU], "gigabytes smaller (pip install --force-reinstall torch --index-url"),
        (Build("2+cu130", "cuda"), [CPU, SIMULATED], "gigabytes smaller"),
        (Build("2+cpu", "cpu"), [CPU, CARD], "warning: torch 2+cpu is built for cpu and cannot use cuda:0"),
        (None, [CPU], "no torch is installed here"),
    ],
)
def test_what_does_not_fit_is_said_with_what_to_do(build: Build | None, devices: list[Device], said: str) -> None:
    (words,) = remarks(build, devices)
    assert said in words


@pytest.mark.parametrize(("build", "devices"), [("cpu", [CPU]), ("cuda", [CPU, CARD]), ("cpu", [CPU, SIMULATED])])
def test_what_fits_is_no_word_worth(build: str, devices: list[Device]) -> None:
    assert remarks(Build("2", build), devices) == []


def test_devices_looks_at_torch_without_importing_it(root: Path) -> None:
    script = "import sys; from ui.cli.main import main; main(['devices']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("False\n"), done.stderr


def test_check_says_it_only_where_torch_is_needed(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.cli.verbs.check.torch_build", lambda: None)
    file = tmp_path / "stoker.yaml"
    document = "global: {{model_catalog: {{deployments: {{one: {{artifact: {}}}}}}}}}\n"
    file.write_text(document.format("owner/name"))
    assert "no torch is installed here" in stoker("check", str(file)).err
    file.write_text(document.format("stub"))
    assert "torch" not in stoker("check", str(file)).err
