"""Whether what a config names is on this machine: before anything starts, and without running any of it.

A replica would say the same, but only after it has started: seconds later, in a log, where nobody looks whose
`serve --daemon` has ended well. Models of the hub are not asked for: that takes a network, which an offline machine
with a full cache does not need.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from engine.backends import artifacts
from engine.backends.base import LoadError
from engine.errors import StokerError
from supervisor.config.load import DEPLOYMENTS, LoadedConfig
from supervisor.config.schema import Deployment
from supervisor.config.shapes import ArtifactKind, artifact_kind

FILES = frozenset({ArtifactKind.PATH, ArtifactKind.PACKAGE})
"""Forms of an artifact whose files are here or nowhere."""


class NotHere(StokerError):
    """What a config names and this machine does not have: a line each, with what to do."""


Missing = Iterator[tuple[tuple[str, ...], str]]
"""Keys below the deployment, and what is not there."""


def check_presence(loaded: LoadedConfig) -> None:
    """Raises NotHere with everything that is missing, each at its place in the document."""
    _refuse([f"{loaded.place(*DEPLOYMENTS, *where)}: {words}" for where, words in _all_missing(loaded)])


def check_model(loaded: LoadedConfig) -> None:
    """The same of a document that was made of MODEL, and has no lines that anybody has seen."""
    _refuse([f"MODEL {words}" for _, words in _all_missing(loaded)])


def _refuse(missing: list[str]) -> None:
    if missing:
        raise NotHere("\n".join(missing))


def _all_missing(loaded: LoadedConfig) -> Missing:
    for name, deployment in loaded.config.deployments.items():
        if any(placement.managed for placement in deployment.replicas):
            yield from (((name, *where), words) for where, words in _missing(deployment))


def _missing(deployment: Deployment) -> Missing:
    engine, artifact = deployment.engine_args.engine, deployment.artifact or ""
    if engine == "transformers":
        yield from _files(artifact)
    elif engine == "python":
        yield from _module(artifact)
    elif engine == "command":
        options = deployment.engine_args.options
        yield from _program(options["command"][0], options["env"])
        if any("{artifact}" in word for word in options["command"]):
            yield from _files(artifact)


def _files(artifact: str) -> Missing:
    """The same look, and so the same words, as of the replica that would load them."""
    if artifact_kind(artifact) in FILES:
        try:
            artifacts.resolve(artifact)
        except LoadError as error:
            yield ("artifact",), str(error).removeprefix("artifact ")


def _module(artifact: str) -> Missing:
    """The module of `package.module:Class`. It is not imported, and so whether it has the class is not known here."""
    module = artifact.partition(":")[0]
    found = ""
    folders: list[str] | None = None
    for part in module.split("."):
        spec = _spec(f"{found}.{part}".lstrip("."), folders)
        if spec is None:
            where = f"in the package {found}" if found else f"among the installed packages or in {os.getcwd()}"
            advice = "install it, or start Stoker in the folder that has it"
            yield ("artifact",), f"{artifact}: there is no module {part!r} {where}; {advice}"
            return
        found = spec.name
        folders = list(spec.submodule_search_locations or ())


def _spec(name: str, folders: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Where a module is, in those folders of its package or, without one, anywhere. Runs no code of a package."""
    if folders is not None:
        return importlib.machinery.PathFinder.find_spec(name, folders)
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module of this process that does not say where it is from
        spec = None
    return spec or importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])


def _program(program: str, env: dict[str, str]) -> Missing:
    path = env.get("PATH", os.environ.get("PATH"))
    if shutil.which(program, path=path) is not None:
        return
    where = ("engine_args", "command")
    if "/" not in program:
        yield where, f"there is no program {program!r} in $PATH; install it, or give its whole path"
    elif Path(program).is_file():
        yield where, f"{program!r} cannot be executed; make it executable (`chmod +x`), or name another program"
    else:
        yield where, f"there is no program at {Path(program).absolute()}; install it, or give the path where it is"
