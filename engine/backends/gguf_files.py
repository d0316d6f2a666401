"""GGUF files: turned once into an ordinary checkpoint, kept in the user's cache, and read from there ever after.

transformers reads a GGUF with numpy, a string of the vocabulary at a time: 20 s for a model of 135M, each time. What
comes out is the same each time, so it is written down as safetensors, config and tokeniser under
`${XDG_CACHE_HOME:-~/.cache}/stoker/gguf/`, named after the file's fingerprint, the dtype and the version of
transformers. The next start maps it into memory like any other model: the 540 MB of that model in 0.1 s, shared by all
replicas. The folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from engine.backends.artifacts import weights_digest
from engine.backends.base import LoadError
from engine.backends.library import be_single_threaded, calm


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that an artifact is or holds; None where it is another kind of model. Raises LoadError."""
    if path.is_file():
        return path
    if (path / "config.json").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise LoadError(f"{path}: expected one GGUF file, found {names}; name the file as the artifact", final=True)
    return files[0] if files else None


def as_checkpoint(file: Path, dtype: torch.dtype) -> Path:
    """The folder with what `file` holds, dequantised to `dtype`: from the cache, or put there now. Raises LoadError."""
    name = f"{weights_digest(file)}-{str(dtype).removeprefix('torch.')}-transformers{version('transformers')}"
    folder = _cache() / name
    if folder.is_dir():
        return folder
    started = time.monotonic()
    _say(f"{file.name}: dequantising it once, to be kept in {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _beside(folder) as aside:
            _convert(file, dtype, aside)
            _publish(aside, folder)
    except OSError as error:
        hint = "XDG_CACHE_HOME names another place"
        raise LoadError(f"{file.name}: could not be converted into {folder}: {error} ({hint})") from error
    _say(f"{file.name}: converted in {time.monotonic() - started:.0f} s")
    return folder


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "stoker" / "gguf"


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A new folder on the same disk, gone afterwards unless it was moved away."""
    aside = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _publish(aside: Path, folder: Path) -> None:
    """In one step, so that nobody finds half a model; another process may have been faster with the same one."""
    try:
        aside.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _convert(file: Path, dtype: torch.dtype, target: Path) -> None:
    """Through transformers' own reader, which knows the names and layouts of each architecture."""
    with calm():
        from safetensors.torch import save_file
        from tqdm import tqdm
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    tqdm.monitor_interval = 0  # no watcher thread: none may exist before a fork
    be_single_threaded()
    try:
        described = load_gguf_checkpoint(str(file))["config"]
        config = AutoConfig.for_model(**described)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        _say(f"{file.name}: {described.get('model_type')}, its vocabulary is read, its weights are next")
        with contextlib.redirect_stderr(io.StringIO()):  # a bar is no line of a log
            read = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model, torch_dtype=dtype)
        _say(f"{file.name}: weights are dequantised, its tokeniser is next")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (ImportError, ValueError, LookupError, NotImplementedError) as error:
        raise LoadError(f"{file.name}: transformers cannot read it: {error}", final=True) from error
    weights = read["tensors"]
    _require_all(file, model, weights)
    config.architectures = [type(model).__name__]
    config.dtype = dtype
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, target / "model.safetensors", {"format": "pt"})
    config.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _require_all(file: Path, model: Any, weights: dict[str, torch.Tensor]) -> None:
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    missing = sorted(name for name in model.state_dict() if name not in weights and name not in tied)
    if missing:
        raise LoadError(f"{file.name}: it lacks {len(missing)} weights, the first is {missing[0]}", final=True)


def _say(line: str) -> None:
    """Into the replica's or the template's log: who waits for a load wants to see that it goes on."""
    print(line, flush=True)
