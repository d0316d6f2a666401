"""A document onto the disk: written aside, synced, renamed, so that a reader finds the old one or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from engine.errors import StokerError


class NotSaved(StokerError):
    """The file could not be written; what it held before is still there."""


def save(path: Path, text: str) -> None:
    """Put the text in the file's place at once, or not at all; a symbolic link stays one. Raises NotSaved.

    Written aside in the same folder, synced, renamed, the folder synced. The file keeps its mode and owner.
    Edit what the file holds now, not what was read long ago, or what its user saved since is overwritten.
    """
    target = Path(os.path.realpath(path))
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "it is read-only")
        _write_aside(aside, target, text.encode("utf-8"))
        os.replace(aside, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise NotSaved(f"{path} was not saved: {error.strerror or error}") from error
    with contextlib.suppress(OSError):  # the text is in place; a folder that cannot be synced changes nothing
        _sync_folder(target.parent)


def _write_aside(aside: Path, target: Path, data: bytes) -> None:
    old = target.stat() if target.exists() else None
    mode = stat.S_IMODE(old.st_mode) if old else 0o666
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        if old and os.geteuid() == 0:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        if old:
            os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
