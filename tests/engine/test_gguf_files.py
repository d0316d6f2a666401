"""A GGUF file is converted once, whole or not at all, and found where it is the only one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.backends import gguf_files
from engine.backends.artifacts import resolve
from engine.backends.base import LoadError
from engine.backends.gguf_files import as_checkpoint, find_gguf
from tests.engine.conftest import SMOLLM2


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that nobody converts for real, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    return file


def test_a_file_is_converted_once(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def convert(file: Path, dtype: torch.dtype, target: Path) -> None:
        made.append(target)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(gguf_files, "_convert", convert)
    first, again = as_checkpoint(gguf, torch.float32), as_checkpoint(gguf, torch.float32)
    assert first == again and (first / "config.json").exists() and len(made) == 1
    assert as_checkpoint(gguf, torch.bfloat16) != first
    assert {folder.name[0] for folder in first.parent.iterdir()} != {"."}


def test_a_conversion_that_fails_leaves_nothing(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(file: Path, dtype: torch.dtype, target: Path) -> None:
        (target / "half").write_text("")
        raise OSError("no space left on device")

    monkeypatch.setattr(gguf_files, "_convert", convert)
    with pytest.raises(LoadError, match=r"no space left on device .*XDG_CACHE_HOME"):
        as_checkpoint(gguf, torch.float32)
    assert list((gguf.parent / "cache/stoker/gguf").iterdir()) == []


def test_a_file_that_is_no_gguf_is_refused(gguf: Path) -> None:
    with pytest.raises(LoadError, match="transformers cannot read it") as caught:
        as_checkpoint(gguf, torch.float32)
    assert caught.value.final


def test_the_only_gguf_of_a_folder_is_found_and_one_of_several_must_be_named(gguf: Path) -> None:
    assert find_gguf(gguf) == gguf == find_gguf(gguf.parent)
    (gguf.parent / "n.gguf").write_bytes(b"GGUF")
    with pytest.raises(LoadError, match=r"found m.gguf, n.gguf; name the file"):
        find_gguf(gguf.parent)
    (gguf.parent / "config.json").write_text("{}")
    assert find_gguf(gguf.parent) is None


def test_smollm2_is_a_gguf() -> None:
    path = resolve(SMOLLM2).path
    assert find_gguf(path) == path
